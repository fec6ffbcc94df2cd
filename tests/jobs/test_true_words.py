"""Words of the pages and commands that are true also where little is known or ticks are stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.definitions.views import list_definitions
from flask_cronjobs.jobs.runs import list as run_list
from flask_cronjobs.jobs.state import state_of
from tests.rows import Rows, ago, now

pytestmark = pytest.mark.pages

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _schedules(jobs: CronJobs) -> None:
    """Four definitions that code declares, and no tick yet."""
    task = jobs.task(name="it")(lambda: None)
    for name in ("one", "two", "three", "four"):
        task.schedule("*/5 * * * *", name=name)


@pytest.fixture
def client(app: Flask, jobs: CronJobs) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Run:
    return lambda *args, **kwargs: app.test_cli_runner().invoke(
        args=["jobs", "admin", *args], **kwargs
    )


def test_a_search_that_was_cut_short_does_not_say_that_nothing_matches(
    client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "WINDOW", 2)
    rows.run("succeeded", job_type="wanted")
    for _ in range(5):
        rows.run("succeeded", job_type="other")
    page = client.get("/jobs/runs?task=wanted").text
    assert "No runs match" not in page
    assert "None found, searched back to" in page
    older = client.get("/jobs/runs?task=wanted&before=5").text
    assert "None found before run" in older
    assert "wanted" in client.get("/jobs/runs?task=wanted&before=3").text.partition("<ol")[2]


def test_an_app_that_declares_schedules_is_not_told_to_add_one(
    client: FlaskClient, run: Run
) -> None:
    for text in (client.get("/jobs/").text, run().output, run("definitions").output):
        assert "schedule=" not in text
        assert "code declares 4 schedules; the next tick records them" in text


def test_the_command_is_not_green_where_the_page_is_amber(
    client: FlaskClient, run: Run, rows: Rows
) -> None:
    rows.tick()
    green = "\x1b[32mOK\x1b[0m"
    assert green in run(color=True).output
    rows.run("dead")
    rows.run("running", locked_until=ago(60))
    first = run(color=True).output.splitlines()[0]
    assert green not in first
    assert "\x1b[33mWARN\x1b[0m" in first
    assert "2 things need you" in first
    assert '<section class="verdict warn">' in client.get("/jobs/").text


def test_a_slot_that_has_passed_is_late_and_not_to_come(
    app: Flask, db: SQLAlchemy, client: FlaskClient, run: Run, rows: Rows
) -> None:
    """While ticks are stopped."""
    missed = now().replace(second=0, microsecond=0)
    rows.definition("one", job_type="it", next_run_at=ago(3 * 60))
    rows.tick(age=600)
    (found,) = list_definitions(state_of(app)).rows
    assert found.next_run_at is not None
    assert found.next_slots[0] == found.next_run_at < missed.astimezone()
    assert found.next_slots[1] > now()
    assert len(found.next_slots) == 3
    assert "3 min late" in client.get("/jobs/").text
    line = next(line for line in run().output.splitlines() if line.startswith("one "))
    assert line.endswith("3 min late")


def test_a_slot_of_a_paused_definition_is_not_late(app: Flask, rows: Rows, jobs: CronJobs) -> None:
    rows.definition("one", job_type="it", next_run_at=ago(180), paused_at=ago(600))
    (found,) = list_definitions(state_of(app)).rows
    assert found.next_slots == ()
