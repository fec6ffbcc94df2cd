"""What pages, commands, health, metrics and the doctor say of runs that are handed on."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs, SetupError
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.health import read_verdict, read_verdict_and_figures
from flask_cronjobs.jobs.runs.detail import find_run
from flask_cronjobs.jobs.runs.filters import RunFilter
from flask_cronjobs.jobs.runs.list import list_runs
from flask_cronjobs.jobs.state import State
from flask_cronjobs.registry.executor import executor_of
from tests.executors.threads import Threads
from tests.tables import make_tables


@pytest.fixture
def handed(far: Any, jobs: CronJobs) -> int:
    """The id of a run that waits in the executor's broker."""
    run = far.enqueue(value=7)
    jobs.tick()
    return int(run.id)


@pytest.mark.pages
def test_pages_say_that_a_run_was_handed_on(handed: int, app: Flask) -> None:
    app.debug = True
    client = app.test_client()
    page = client.get(f"/jobs/runs/{handed}").get_data(as_text=True)
    assert re.search("It was handed to threads (just now|.* ago), and has not begun there.", page)
    assert "<dt>Handed to</dt>" in page
    listed = client.get("/jobs/runs?status=running").get_data(as_text=True)
    assert "handed to threads," in listed
    assert "1 handed on" in client.get("/jobs/").get_data(as_text=True)


def test_commands_say_that_a_run_was_handed_on(handed: int, app: Flask) -> None:
    runner = app.test_cli_runner()
    show = ["jobs", "admin", "show", str(handed)]
    assert "running, handed to threads" in runner.invoke(args=show).output
    assert "handed:threads:" in runner.invoke(args=[*show, "--json"]).output
    assert "handed to threads" in runner.invoke(args=["jobs", "admin", "list"]).output
    assert "handed on 1" in runner.invoke(args=["jobs", "admin"]).output


@pytest.mark.pages
def test_metrics_count_what_waits_in_brokers(handed: int, app: Flask) -> None:
    pytest.importorskip("prometheus_client")
    app.debug = True
    assert "cronjobs_handed_runs 1.0" in app.test_client().get("/jobs/metrics").get_data(True)


def test_without_executors_nothing_is_said_of_them(app: Flask, jobs: CronJobs) -> None:
    app.debug = True
    assert "handed" not in app.test_client().get("/jobs/").get_data(as_text=True)
    assert "handed" not in app.test_client().get("/jobs/metrics").get_data(as_text=True)


def test_what_waits_too_long_in_a_broker_is_overdue(
    handed: int, state: State, db: SQLAlchemy
) -> None:
    assert read_verdict(state).word == "ok"
    db.session.execute(text("UPDATE job_runs SET run_at = '2020-01-01 00:00:00.000000'"))
    db.session.commit()
    verdict, figures = read_verdict_and_figures(state)
    assert verdict.word == "overdue"
    assert (figures.overdue.value, figures.stale.value) == (1, 0)
    assert [run.id for run in list_runs(state, RunFilter(overdue=True)).rows] == [handed]


def test_a_run_that_comes_back_is_no_lost_worker(handed: int, state: State, db: SQLAlchemy) -> None:
    db.session.execute(text("UPDATE job_runs SET locked_until = '2020-01-01 00:00:00.000000'"))
    db.session.commit()
    found = find_run(state, handed)
    assert found is not None
    assert not found.row.is_stale(found.now)


def of_engines(state: State) -> Sequence[tuple[str, str]]:
    return [(each.level, each.what) for each in examine(state) if each.id == "executor"]


def test_doctor_asks_the_engine(far: Any, executor: Threads, state: State) -> None:
    assert of_engines(state) == [("ok", "threads executes far (0 waiting)")]
    executor.problems = ["no worker answers"]
    assert of_engines(state) == [("error", "no worker answers")]
    executor.unreachable = ConnectionRefusedError("no broker")
    ((level, what),) = of_engines(state)
    assert level == "error"
    assert "threads cannot be reached: ConnectionRefusedError: no broker" in what


@pytest.mark.parametrize("name", ["celery", "rq"])
def test_doctor_says_that_an_executor_is_not_initialized(
    name: str, app: Flask, db: SQLAlchemy
) -> None:
    pytest.importorskip(name)
    from flask_cronjobs.jobs.state import state_of

    app.config["CRONJOBS_EXECUTORS"] = {"far": name}
    CronJobs(app)
    make_tables(app, db)
    ((level, what),) = of_engines(state_of(app))
    assert level == "error"
    assert f"Call flask_cronjobs.executors.{name}.init(" in what


def test_an_executor_whose_package_is_missing_says_what_to_install(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "celery", None)
    monkeypatch.delitem(sys.modules, "flask_cronjobs.executors.celery", raising=False)
    with pytest.raises(SetupError, match=r"pip install 'Flask-CronJobs\[celery\]'"):
        executor_of(app, "celery")


@pytest.mark.parametrize(
    "value", ["redis://:s3cret@mq", {"far": "redis://:s3cret@mq"}, {"far": {"password": "s3cret"}}]
)
def test_a_refused_executor_is_not_shown(value: object, app: Flask) -> None:
    """It may hold a password."""
    from flask_cronjobs import ConfigError

    app.config["CRONJOBS_EXECUTORS"] = value
    with pytest.raises(ConfigError) as caught:
        CronJobs(app)
    assert "s3cret" not in str(caught.value)
    assert "'celery'" in str(caught.value)
