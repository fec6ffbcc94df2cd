"""FAULTS: one row is corrupt, by a hand or by an older host: it is said, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text

from flask_cronjobs import CronJobs, TickReport
from flask_cronjobs.jobs.definitions.views import definitions_by_name
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.overview import read_overview
from flask_cronjobs.jobs.runs.detail import find_run
from flask_cronjobs.jobs.runs.list import list_runs
from flask_cronjobs.jobs.state import State, state_of
from flask_cronjobs.models import JobRun
from tests.marks import on_sqlite

Tick = Callable[[], TickReport]
LONG_AGO = "2026-01-01 00:00:00.000000"

#: What a definition's row says, what the page then knows of it, and what the doctor calls it.
CORRUPT: dict[str, tuple[str, str, str]] = {
    "bad cron": ("schedule = '61 * * * *'", "broken", "broken-definition"),
    "unknown zone": ("timezone = 'Mars/Olympus'", "broken", "broken-definition"),
    "missing handler": ("job_type = 'gone'", "orphaned", "orphaned-definition"),
}
#: What SQLite takes for a JSON or a time, and no reader does.
UNREADABLE_DEFINITIONS = ["payload = 'nonsense'", "next_run_at = '0'", "next_run_at = '1st of May'"]
UNREADABLE_RUNS = ["payload = 'nonsense'", "payload = '[1]'", "scheduled_for = 'tomorrow'"]


@pytest.fixture
def state(app: Flask, jobs: CronJobs) -> Iterator[State]:
    """An app with a definition of code and two of the database, all due."""
    jobs.task(name="it", schedule="@yearly")(lambda: None)
    with app.app_context():
        jobs.tick()
        for name in ("bad", "good"):
            jobs.add_definition(name, "it", schedule="@yearly")
        execute(state_of(app), f"UPDATE job_definitions SET next_run_at = '{LONG_AGO}'")
        yield state_of(app)


def execute(state: State, sql: str) -> None:
    with state.engine.begin() as connection:
        connection.execute(text(sql))


def outcomes(db: SQLAlchemy) -> dict[str, list[tuple[int, str]]]:
    """The ids and statuses of the runs that are no gaps, by the name of their definition."""
    db.session.expire_all()
    sql = """
    SELECT d.name, r.id, r.status FROM job_runs r JOIN job_definitions d ON d.id = r.definition_id
    WHERE r.status <> 'skipped' ORDER BY r.id
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for name, run_id, status in db.session.execute(text(sql)):
        found.setdefault(name, []).append((run_id, status))
    return found


@pytest.mark.parametrize("case", CORRUPT)
def test_corrupt_definition_is_shown_and_the_others_go_on(
    state: State, db: SQLAlchemy, tick: Tick, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    corrupt, word, finding = CORRUPT[case]
    execute(state, f"UPDATE job_definitions SET {corrupt} WHERE name = 'bad'")
    assert tick().succeeded == 2
    assert outcomes(db).keys() == {"it", "good"}
    if word == "broken":
        assert "The definition 'bad' is broken, and its slots wait" in caplog.text
    shown = {view.name: getattr(view, word) for view in definitions_by_name(state).rows}
    assert shown["bad"]
    assert not shown["good"]
    assert finding in {found.id for found in examine(state)}


@on_sqlite
@pytest.mark.parametrize("corrupt", UNREADABLE_DEFINITIONS)
def test_definition_that_cannot_be_read_is_logged_and_the_others_go_on(
    state: State, db: SQLAlchemy, tick: Tick, corrupt: str, caplog: pytest.LogCaptureFixture
) -> None:
    execute(state, f"UPDATE job_definitions SET {corrupt} WHERE name = 'bad'")
    assert tick().succeeded == 2
    assert outcomes(db).keys() == {"it", "good"}
    assert "The definition 'bad' is broken, and its slots wait" in caplog.text
    shown = {view.name: view.broken for view in read_overview(state).definitions.rows}
    assert shown["bad"] is not None
    assert (shown["good"], shown["it"]) == (None, None)
    assert "broken-definition" in {found.id for found in examine(state)}


@on_sqlite
@pytest.mark.parametrize("corrupt", UNREADABLE_RUNS)
def test_run_that_cannot_be_read_is_a_recorded_failure_and_its_neighbors_succeed(
    state: State, db: SQLAlchemy, jobs: CronJobs, tick: Tick, corrupt: str
) -> None:
    execute(state, "DELETE FROM job_definitions")
    ids = jobs.get("it").using(commit=True, max_attempts=1).enqueue_many([{}] * 10)
    execute(state, f"UPDATE job_runs SET {corrupt} WHERE id = {ids[4]}")
    done = tick()
    assert (done.succeeded, done.dead) == (9, 1)
    row: Any = db.session.execute(
        select(JobRun.status, JobRun.attempts, JobRun.error_type, JobRun.last_error).where(
            JobRun.id == ids[4]
        )
    ).one()
    assert (row.status, row.attempts) == ("dead", 1)
    if corrupt != "payload = '[1]'":
        assert row.error_type == "PayloadError"
        assert "cannot be read" in row.last_error
    assert [shown.id for shown in list_runs(state).rows] == ids[::-1]
    view = find_run(state, ids[4])
    assert view is not None
    assert view.row.status == "dead"
    if corrupt == "payload = 'nonsense'":
        assert view.payload == "nonsense"
