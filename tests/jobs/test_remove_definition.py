"""A definition that code dropped can be removed, by a command and by a button."""

from __future__ import annotations

import html
import logging
import shlex
from collections.abc import Callable

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.state import state_of
from flask_cronjobs.models import JobDefinition, JobRun
from tests.rows import Rows

OWN = {"Sec-Fetch-Site": "same-origin"}
NAME = "dropped; 'x'"


@pytest.fixture
def jobs(app: Flask, db: SQLAlchemy) -> CronJobs:
    """The extension with one definition that code declares."""
    jobs = CronJobs(app, authorize=lambda action: True, actor=lambda: "ada")
    jobs.task(name="declared", schedule="@daily")(lambda: None)
    with app.app_context():
        db.create_all()
        jobs.tick()
    return jobs


@pytest.fixture
def names(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> Callable[[], list[str]]:
    def names() -> list[str]:
        with app.app_context():
            return list(db.session.scalars(select(JobDefinition.name).order_by("name")))

    return names


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Callable[..., Result]:
    return lambda *args: app.test_cli_runner().invoke(args=["jobs", "admin", *args])


def test_the_command_removes_it_and_keeps_its_runs(
    app: Flask,
    db: SQLAlchemy,
    rows: Rows,
    run: Callable[..., Result],
    names: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rows.run("succeeded", definition_id=rows.definition(NAME))
    todo = [f.todo for f in examine(state_of(app)) if f.id == "orphaned-definition"]
    command = f"flask jobs admin remove {shlex.quote(NAME)}"
    assert len(todo) == 1
    assert command in todo[0]
    result = run("remove", NAME)
    assert result.output == f"Removed {NAME}. Its runs stay.\n"
    assert names() == ["declared"]
    with app.app_context():
        assert len(db.session.scalars(select(JobRun)).all()) == 1
    assert f"removed by {caplog.records[-1].cronjobs_actor}: definition {NAME}" in caplog.text  # type: ignore[attr-defined]
    again = run("remove", NAME)
    assert again.exit_code == 1
    assert again.output.startswith(f"Error: There is no definition {NAME!r}.")


@pytest.mark.pages
def test_what_code_declares_is_refused(
    app: Flask, run: Callable[..., Result], names: Callable[[], list[str]]
) -> None:
    result = run("remove", "declared")
    assert result.exit_code == 1
    assert "is declared in code, so the next tick would create it again" in result.output
    answer = app.test_client().post(
        "/jobs/definitions/remove", data={"name": "declared"}, headers=OWN
    )
    assert answer.status_code == 303
    assert names() == ["declared"]


@pytest.mark.pages
def test_the_page_has_a_button_for_what_code_dropped_alone(
    app: Flask, rows: Rows, names: Callable[[], list[str]]
) -> None:
    rows.definition(NAME)
    rows.definition("added", job_type="declared", origin="database")
    client = app.test_client()
    page = client.get("/jobs/").text
    buttons = [part.partition("</form>")[0] for part in page.split('/definitions/remove"')[1:]]
    assert len(buttons) == 1
    assert f'value="{html.escape(NAME)}"' in buttons[0].replace("&#39;", "&#x27;")
    answer = client.post("/jobs/definitions/remove", data={"name": NAME}, headers=OWN)
    assert answer.status_code == 303
    assert "is removed. Its runs stay." in client.get(answer.location).text
    assert names() == ["added", "declared"]
    gone = client.post("/jobs/definitions/remove", data={"name": NAME}, headers=OWN)
    assert gone.status_code == 404


def test_the_command_removes_what_was_added_at_run_time(
    run: Callable[..., Result], rows: Rows, names: Callable[[], list[str]]
) -> None:
    rows.definition("added", job_type="declared", origin="database")
    assert run("remove", "added").exit_code == 0
    assert names() == ["declared"]


def test_definitions_added_changed_and_removed_by_code_are_logged(
    app: Flask, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with app.app_context():
        jobs.add_definition("mine", "declared", schedule="@hourly")
        jobs.add_definition("mine", "declared", schedule="@hourly")
        jobs.add_definition("mine", "declared", schedule="@daily")
        assert jobs.remove_definition("mine")
        assert not jobs.remove_definition("mine")
    said = [record.getMessage() for record in caplog.records if "mine" in record.getMessage()]
    assert [message.split()[0] for message in said] == ["added", "changed", "removed"]
