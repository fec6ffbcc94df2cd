"""FAULTS: an invalid value in one row, set by hand or by an older host, harms only that row."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs, Retry
from flask_cronjobs.core import leases
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.core.claim import ClaimRequest
from flask_cronjobs.core.look import next_run
from flask_cronjobs.insights.batch_views import list_batches
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.insights.overview import read_overview
from flask_cronjobs.insights.prune_actions import prune_all as prune
from flask_cronjobs.insights.run_detail import find_run
from flask_cronjobs.insights.run_list import list_runs
from flask_cronjobs.insights.schedule_views import list_definitions
from flask_cronjobs.models import JobRun
from flask_cronjobs.signals import run_dead
from tests.kit import received
from tests.marks import on_sqlite
from tests.rows import Rows, ago

DEEP = '{"a": ' + "[" * 2000 + "]" * 2000 + "}"
DIGITS = '{"a": ' + "9" * 5000 + "}"
LONG_AGO = "2020-01-01 00:00:00.000000"

#: Odd runs: the SQL that changes a run, the databases, and its status after the first tick.
ODD_RUNS: dict[str, tuple[str, str, str]] = {
    "scheduled for infinity": ("scheduled_for = 'infinity'", "postgresql", "failed"),
    "scheduled BC": ("scheduled_for = '0044-03-15 BC'", "postgresql", "failed"),
    "scheduled in the year 20000": ("scheduled_for = '20000-01-01'", "postgresql", "failed"),
    "due since ever": ("run_at = '-infinity'", "postgresql", "succeeded"),
    "due BC": ("run_at = '0044-03-15 BC'", "postgresql", "succeeded"),
    "due never": ("run_at = 'infinity'", "postgresql", "queued"),
    "many digits": (f"payload = '{DIGITS}'", "sqlite postgresql", "failed"),
    "deep payload": (f"payload = '{DEEP}'", "sqlite postgresql", "failed"),
    "payload null": ("payload = 'null'", "postgresql", "failed"),
    "payload a list": ("payload = '[1]'", "sqlite postgresql", "failed"),
    "payload no JSON": ("payload = 'nonsense'", "sqlite", "failed"),
    "scheduled tomorrow": ("scheduled_for = 'tomorrow'", "sqlite", "failed"),
    "payload a blob": ("payload = x'00'", "sqlite", "failed"),
    "priority a text": ("priority = 'high'", "sqlite", "succeeded"),
    "priority a blob": ("priority = x'00'", "sqlite", "succeeded"),
    "run_at a number": ("run_at = 0", "sqlite", "succeeded"),
    "run_at empty": ("run_at = ''", "sqlite", "succeeded"),
    "run_at a blob": ("run_at = x'00'", "sqlite", "queued"),
    "max_attempts a text": ("max_attempts = 'y'", "sqlite", "succeeded"),
    "attempts a fraction": ("attempts = 0.5", "sqlite", "succeeded"),
    "both attempts texts": ("attempts = 'x', max_attempts = 'y'", "sqlite", "succeeded"),
}
#: Odd definitions that are due: the SQL that changes one, and the databases.
ODD_DEFINITIONS: dict[str, tuple[str, str]] = {
    "never": ("next_run_at = 'infinity'", "postgresql"),
    "since ever": ("next_run_at = '-infinity'", "postgresql"),
    "BC": ("next_run_at = '0044-03-15 BC'", "postgresql"),
    "the year 20000": ("next_run_at = '20000-01-01'", "postgresql"),
    "the first year": ("next_run_at = '0001-01-01 00:00:00.000000'", "sqlite"),
    "the first year, aware": ("next_run_at = '0001-01-01 00:00:00+00'", "postgresql"),
    "a blob": ("next_run_at = x'00'", "sqlite"),
    "a number": ("next_run_at = '0'", "sqlite"),
    "words": ("next_run_at = '1st of May'", "sqlite"),
    "empty": ("next_run_at = ''", "sqlite"),
    "payload no JSON": ("payload = 'nonsense'", "sqlite"),
    "payload a list": ("payload = '[1]'", "sqlite postgresql"),
    "bad cron": ("schedule = '61 * * * *'", "sqlite postgresql"),
    "unknown zone": ("timezone = 'Mars/Olympus'", "sqlite postgresql"),
    "many digits": (f"payload = '{DIGITS}'", "sqlite postgresql"),
    "deep payload": (f"payload = '{DEEP}'", "sqlite postgresql"),
}
#: Odd batches whose last run has ended: the SQL that changes one, and the databases.
ODD_BATCHES: dict[str, tuple[str, str]] = {
    "no columns": ("then_columns = NULL", "sqlite postgresql"),
    "empty columns": ("then_columns = '{}'", "sqlite postgresql"),
    "a list of columns": ("then_columns = '[1]'", "sqlite postgresql"),
    "columns no JSON": ("then_columns = 'x'", "sqlite"),
    "priority a text": ('then_columns = \'{"queue": "q", "priority": {}}\'', "sqlite postgresql"),
    "no payload": ("then_payload = NULL", "sqlite postgresql"),
}


def cases(odd: Mapping[str, tuple[str, ...]]) -> list[object]:
    return [
        pytest.param(name, database, id=f"{name}-{database}")
        for name, (_, databases, *_rest) in odd.items()
        for database in databases.split()
    ]


def execute(db: SQLAlchemy, sql: str) -> None:
    with db.engine.begin() as connection:
        connection.exec_driver_sql(sql)


@pytest.mark.parametrize(("odd", "database_url"), cases(ODD_RUNS), indirect=["database_url"])
def test_odd_run_suffers_alone_and_is_shown_beside_the_others(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, odd: str
) -> None:
    set_, _, status = ODD_RUNS[odd]
    jobs.task(name="it", retry=Retry(max_attempts=3, base=600))(lambda: None)
    with app.app_context():
        ids = jobs.get("it").using(commit=True).enqueue_many([{}] * 20)
        execute(db, f"UPDATE job_runs SET {set_} WHERE id = {ids[4]}")
        report = jobs.tick(budget=5)
        state = state_of(app)
        assert report.succeeded == 19 + (status == "succeeded")
        rows = db.session.execute(text("SELECT id, status FROM job_runs ORDER BY id")).all()
        assert dict(rows[4:5]) == {ids[4]: status}
        assert {row.status for row in rows if row.id != ids[4]} == {"succeeded"}
        assert [row.id for row in list_runs(state).rows] == ids[::-1]
        view = find_run(state, ids[4])
        assert view is not None
        assert view.row.status == status
        if status == "failed":
            assert "cannot be read" in (view.last_error or "")
        assert read_overview(state).definitions.rows == ()
        assert examine(state)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_next_run_whose_maximum_is_a_text_can_be_looked_at(
    app: Flask, db: SQLAlchemy, jobs: CronJobs
) -> None:
    """A worker with async handlers asks which run is next, and whether it must run alone."""
    jobs.task(name="it", retry=Retry(max_attempts=3))(lambda: None)
    with app.app_context():
        jobs.get("it").using(commit=True).enqueue()
        request = ClaimRequest(1, "", ("it",), side_by_side=True)
        with state_of(app).bookkeeping() as books:
            assert next_run(books, request) == ("it", False)
            execute(db, "UPDATE job_runs SET max_attempts = 'y'")
            assert next_run(books, request) == ("it", True)


@pytest.mark.parametrize(("odd", "database_url"), cases(ODD_DEFINITIONS), indirect=["database_url"])
def test_odd_definition_suffers_alone_and_is_mended_by_its_code(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    set_, _ = ODD_DEFINITIONS[odd]
    for name in ("coded", "good"):
        jobs.task(name=name, schedule="@yearly")(lambda: None)
    with app.app_context():
        jobs.tick()
        jobs.add_definition("bad", "good", schedule="@yearly")
        execute(db, f"UPDATE job_definitions SET next_run_at = '{LONG_AGO}'")
        execute(db, f"UPDATE job_definitions SET {set_} WHERE name IN ('bad', 'coded')")
        assert jobs.tick(budget=5).succeeded == 1
        for name in ("coded", "bad"):
            assert f"The definition {name!r} is broken, and its slots wait" in caplog.text
        state = state_of(app)
        broken = {view.name for view in list_definitions(state).rows if view.broken}
        assert broken == {"bad"}
        assert "bad" in {view.name for view in read_overview(state).definitions.rows}
        assert not jobs.add_definition("bad", "good", schedule="@yearly")
        caplog.clear()
        jobs.tick(budget=5)
        assert "is broken" not in caplog.text
        mended = text(
            "SELECT DISTINCT CAST(payload AS text), schedule, timezone FROM job_definitions"
        )
        assert [tuple(row) for row in db.session.execute(mended)] == [("{}", "@yearly", "UTC")]


@on_sqlite
def test_lost_run_whose_attempts_are_odd_is_taken_back(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, rows: Rows
) -> None:
    """SQLite reads a text as a number."""
    jobs.task(name="it")(lambda: None)
    with app.app_context():
        odd, sound = (rows.run("running", job_type="it", locked_until=ago(5)) for _ in range(2))
        execute(db, f"UPDATE job_runs SET max_attempts = 'y' WHERE id = {odd}")
        assert jobs.tick().reclaimed == 2
        assert (status(db, odd), status(db, sound)) == ("dead", "failed")


def status(db: SQLAlchemy, run_id: int) -> str:
    stored: str = db.session.execute(
        text(f"SELECT status FROM job_runs WHERE id = {run_id}")
    ).scalar_one()
    return stored


def test_run_whose_attempts_were_used_up_by_hand_ends_dead_with_the_reason(
    app: Flask, jobs: CronJobs, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No claim takes it, so it would otherwise wait forever."""
    monkeypatch.setattr(leases, "TAKEN_AT_ONCE", 2)
    called: list[int] = []
    jobs.task(name="it")(lambda: called.append(1))
    values = {"job_type": "it", "attempts": 2, "last_error": "it broke", "error_type": "Oops"}
    spent = [rows.run("failed", age=-3600, max_attempts=2, **values) for _ in range(3)]
    waiting = rows.run("failed", age=-3600, max_attempts=3, **values)
    with app.app_context(), received(run_dead) as outcomes:
        jobs.tick()
    assert ([outcome.id for outcome in outcomes], called) == (spent, [])
    assert {outcome.exception for outcome in outcomes} == {None}
    row: JobRun = rows.get(spent[0])
    assert (row.status, row.attempts, row.error_type) == ("dead", 2, "Oops")
    assert row.last_error == "no attempt is left: max_attempts is 2. The last error: it broke"
    assert row.finished_at is not None
    assert rows.get(waiting).status == "failed"


@pytest.mark.parametrize(("odd", "database_url"), cases(ODD_BATCHES), indirect=["database_url"])
def test_odd_batch_suffers_alone(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    set_, _ = ODD_BATCHES[odd]
    task = jobs.task(name="it")(lambda: None)
    with app.app_context():
        for key in ("bad", "good"):
            with jobs.batch(key, then=task):
                task.using(queue=key).enqueue()
        db.session.commit()
        execute(db, f"UPDATE job_batches SET {set_} WHERE key = 'bad'")
        end = f"UPDATE job_runs SET status = 'succeeded', finished_at = '{LONG_AGO}'"
        execute(db, f"{end} WHERE queue = 'bad'")
        assert jobs.tick(budget=5).succeeded == 2
        assert "The batch bad cannot end, since its row is broken: " in caplog.text
        state = state_of(app)
        states = {view.key: view.state for view in list_batches(state).rows}
        assert states == {"good": "finished", "bad": "running"}
        prune(state)
        rest = db.session.execute(text("SELECT count(*) FROM job_runs WHERE queue = 'bad'"))
        assert rest.scalar_one() == 1


@on_sqlite
def test_lost_run_whose_token_is_a_blob_suffers_alone(
    app: Flask, db: SQLAlchemy, jobs: CronJobs
) -> None:
    jobs.task(name="it", retry=Retry(max_attempts=3, base=0))(lambda: None)
    with app.app_context():
        ids = jobs.get("it").using(commit=True).enqueue_many([{}] * 3)
        running = f"status = 'running', attempts = 1, locked_until = '{LONG_AGO}'"
        execute(db, f"UPDATE job_runs SET {running}, locked_by = 'host:1:token'")
        execute(db, f"UPDATE job_runs SET locked_by = x'ff00' WHERE id = {ids[1]}")
        jobs.tick(budget=5)
        jobs.tick(budget=5)
        statuses = {row.id: row.status for row in list_runs(state_of(app)).rows}
        assert statuses == {ids[0]: "succeeded", ids[1]: "running", ids[2]: "succeeded"}


@on_sqlite
def test_claim_behind_a_backlog_passes_a_priority_that_is_a_text(
    app: Flask, db: SQLAlchemy, jobs: CronJobs
) -> None:
    """The claim goes from group to group, to each group's next priority; a text has none."""
    it = jobs.task(name="it")(lambda: None)
    with app.app_context():
        it.using(priority=9, queue="later", delay=3600).enqueue_many([{}] * 300)
        odd = it.enqueue().id
        it.using(queue="mail").enqueue()
        db.session.commit()
        execute(db, f"UPDATE job_runs SET priority = 'high' WHERE id = {odd}")
        assert jobs.tick().succeeded == 2
