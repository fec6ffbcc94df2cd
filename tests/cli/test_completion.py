"""Shell completion of names: from code and database, and silent whatever goes wrong."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest
from click.shell_completion import ShellComplete
from flask import Flask
from flask.cli import FlaskGroup
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.cli import jobs_group, params
from tests.rows import Rows

Offered = Callable[..., list[str]]


def offered_by(create_app: Callable[[], Flask]) -> Offered:
    """Return what completes the last of some words after ``flask jobs``."""
    group = FlaskGroup(create_app=create_app)
    group.add_command(jobs_group)

    def offer(*words: str) -> list[str]:
        shell = ShellComplete(group, {}, "flask", "_FLASK_COMPLETE")
        return [item.value for item in shell.get_completions(["jobs", *words[:-1]], words[-1])]

    return offer


@pytest.fixture
def offered(app: Flask, jobs: CronJobs, rows: Rows) -> Offered:
    jobs.task(name="mail")(lambda: None)
    jobs.task(name="report", schedule="@daily")(lambda: None)
    rows.definition("recorded")
    return offered_by(lambda: app)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("admin", "run", ""), ["mail", "recorded", "report"]),
        (("admin", "run", "re"), ["recorded", "report"]),
        (("admin", "pause", ""), ["recorded", "report"]),
        (("admin", "resume", "rec"), ["recorded"]),
        (("admin", "remove", "x"), []),
        (("admin", "list", "--task", ""), ["mail", "report"]),
        (("admin", "retry", "--definition", "rep"), ["report"]),
        (("admin", "list", "--status", "d"), ["dead"]),
        (("admin", "ti"), ["ticks"]),
        (("ti",), ["tick"]),
    ],
)
def test_names_are_offered(offered: Offered, words: tuple[str, ...], names: list[str]) -> None:
    assert offered(*words) == names


@pytest.mark.parametrize("url", ["sqlite:////nowhere/x.sqlite", "sqlite://", None])
def test_without_a_database_the_code_s_names_are_offered(
    url: str | None, sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    app, db = Flask("x"), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = url or sqlite_url  # The latter has no tables.
    db.init_app(app)
    CronJobs(app).task(name="report", schedule="@daily")(lambda: None)
    assert offered_by(lambda: app)("admin", "pause", "") == ["report"]
    assert capfd.readouterr() == ("", "")


def test_a_database_that_hangs_is_not_waited_for(
    offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(params, "COMPLETION_SECONDS", 0.05)
    answers, answered = threading.Event(), list[bool]()
    monkeypatch.setattr(
        "flask_cronjobs.jobs.definitions.views.definition_names",
        lambda state: answered.append(answers.wait(120)),
    )
    assert offered("admin", "pause", "") == ["report"]
    assert answered == []
    answers.set()


def fail() -> NoReturn:
    print("out")
    print("err", file=sys.stderr)
    raise RuntimeError("no such module")


def leave() -> NoReturn:
    raise SystemExit("The variable SECRET_KEY is missing.")


@pytest.mark.parametrize("create_app", [fail, leave, lambda: Flask("without jobs")])
def test_a_broken_app_is_silent_and_offers_nothing(
    create_app: Callable[[], Flask], capfd: pytest.CaptureFixture[str]
) -> None:
    offered = offered_by(create_app)
    assert offered("admin", "run", "") == []
    assert offered("admin", "list", "--task", "") == []
    assert capfd.readouterr() == ("", "")
