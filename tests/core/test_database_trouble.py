"""FAULTS, Database: what the server, the engine's settings and other writers may do to a tick."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text

from flask_cronjobs import CronJobs, DatabaseTrouble, Retry, TickReport, current_run
from flask_cronjobs.core import features
from flask_cronjobs.core import tick as tick_module
from flask_cronjobs.core.worker.claims import UnansweredClaims
from flask_cronjobs.models import JobBatch, JobRun, JobTick
from tests.kit import lose_answer
from tests.marks import on_postgresql, on_sqlite

Tick = Callable[[], TickReport]

#: An app may have any of these; bookkeeping must work with all of them.
ENGINES: dict[str, dict[str, Any]] = {
    "autocommit": {"isolation_level": "AUTOCOMMIT"},
    "serializable": {"isolation_level": "SERIALIZABLE"},
    "by an option": {"execution_options": {"isolation_level": "SERIALIZABLE"}},
    "pool of one": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 60},
}
SET_NAME = "SET application_name TO shop"
LEARN_MORE = "To learn more: flask jobs admin doctor."
RAISE = """
CREATE SEQUENCE troubles;
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('troubles') <= 3 THEN RAISE EXCEPTION 'trouble' USING ERRCODE = '{code}'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER trouble BEFORE UPDATE ON job_runs FOR EACH ROW EXECUTE FUNCTION trouble();
"""


def enqueue_notes(app: Flask, jobs: CronJobs, number: int) -> list[int]:
    """Enqueue runs of a task that notes its calls; return the notes."""
    calls: list[int] = []

    @jobs.task(retry=Retry(max_attempts=3, base=0))
    def note(n: int) -> None:
        calls.append(n)

    with app.app_context():
        note.using(commit=True).enqueue_many([{"n": n} for n in range(number)])
    return calls


def attempts(app: Flask, db: SQLAlchemy) -> set[tuple[str, int]]:
    """Return the statuses and attempts that occur."""
    with app.app_context():
        return {(run.status, run.attempts) for run in db.session.scalars(db.select(JobRun))}


@pytest.mark.parametrize(
    "code",
    ["40001", "40P01", "55P03", "57014", "25006", "25P03", "25P04", "57P01", "53300", "08006"],
)
@on_postgresql
def test_passing_trouble_is_tried_again_and_harms_nothing(
    code: str, app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    """Serialization, deadlock, lock and statement timeout, failover and cut connections pass."""
    calls = enqueue_notes(app, jobs, 20)
    with app.app_context(), db.engine.begin() as connection:
        connection.exec_driver_sql(RAISE.format(code=code))
    report = tick()
    assert (report.succeeded, report.lost) == (20, 0)
    assert sorted(calls) == list(range(20))
    assert attempts(app, db) == {("succeeded", 1)}


@on_postgresql
def test_full_disk_of_the_server_ends_the_tick_with_one_line_and_loses_nothing(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    """Errors that do not pass by waiting are not retried."""
    calls = enqueue_notes(app, jobs, 5)
    with app.app_context(), db.engine.begin() as connection:
        connection.exec_driver_sql(RAISE.format(code="53100"))
    result = app.test_cli_runner().invoke(args=["jobs", "tick"])
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"Error: The database cannot be used: trouble. {LEARN_MORE}"
    ]
    assert calls == []
    with app.app_context(), db.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER trouble ON job_runs")
    assert tick().succeeded == 5
    assert attempts(app, db) == {("succeeded", 1)}


@pytest.mark.parametrize("number", [1, 2, 3])
@on_postgresql
def test_exchange_whose_answer_is_lost_loses_and_doubles_nothing(
    number: int, app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    """The server committed, and the connection broke before it said so."""
    calls = enqueue_notes(app, jobs, 20)
    with app.app_context():
        lose_answer(db, "candidate AS", times=[number])
    report = tick()
    assert (report.succeeded, report.lost) == (20, 0)
    assert sorted(calls) == list(range(20))
    assert attempts(app, db) == {("succeeded", 1)}


@pytest.mark.parametrize("engine_options", ENGINES.values(), ids=ENGINES, indirect=True)
def test_engine_settings_of_the_app_do_not_reach_bookkeeping(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    """The pool has one connection, for an atomic handler, effects, and three ticks at once."""

    @jobs.task(retry=Retry(max_attempts=3, base=0))
    def effect(n: int) -> int | None:
        db.session.execute(text("SELECT 1"))
        return jobs.once(f"effect:{n}", lambda: n)

    @jobs.task(atomic=True, concurrency=1)
    def atomic() -> None:
        db.session.execute(text("SELECT count(*) FROM job_runs"))

    with app.app_context():
        effect.using(commit=True).enqueue_many([{"n": n} for n in range(10)])
        atomic.using(commit=True).enqueue_many([{}] * 3)
    began = time.monotonic()
    report = tick()
    assert (report.succeeded, report.lost, report.failed) == (13, 0, 0)
    assert attempts(app, db) == {("succeeded", 1)}
    assert time.monotonic() - began < 60  # No statement waited for the pool.


@on_postgresql
def test_transaction_that_a_listener_leaves_open_fails_no_run(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    """In it, psycopg refuses to change the isolation level: ticks ended, atomic runs failed."""

    @jobs.task(retry=False, atomic=True)
    def atomic() -> str | None:
        return db.session.scalar(text("SHOW application_name"))

    @jobs.task(retry=False)
    def in_steps() -> str | None:
        return jobs.step("name", lambda: db.session.scalar(text("SHOW application_name")))

    with app.app_context():
        event.listen(db.engine, "connect", lambda driver, _: driver.execute(SET_NAME))
        db.engine.dispose()
        atomic.using(commit=True).enqueue()
        in_steps.using(commit=True).enqueue()
        db.engine.dispose()
    assert tick().succeeded == 2
    with app.app_context():
        assert set(db.session.scalars(select(JobRun.result))) == {"shop"}


@pytest.mark.parametrize(
    "engine_options",
    [
        {"connect_args": {"options": f"-c {name}=100"}}
        for name in ("lock_timeout", "statement_timeout")
    ],
    ids=["lock_timeout", "statement_timeout"],
    indirect=True,
)
@on_postgresql
def test_table_that_is_locked_for_a_while_delays_and_fails_nothing(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, database_url: str
) -> None:
    calls = enqueue_notes(app, jobs, 5)
    with psycopg.connect(database_url.replace("+psycopg", "")) as holder:
        holder.execute("LOCK TABLE job_runs IN ACCESS EXCLUSIVE MODE")
        release = threading.Timer(1.0, holder.commit)
        release.start()
        report = tick()
        release.join()
    assert (report.succeeded, sorted(calls)) == (5, list(range(5)))
    assert attempts(app, db) == {("succeeded", 1)}


def test_trouble_after_the_last_outcome_fails_no_tick(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run is recorded by then, and the next tick ends the batch."""

    def fail(*_: object) -> int:
        raise DatabaseTrouble("the database has gone", transient=True)

    jobs.task(name="it")(lambda: None)
    with app.app_context():
        with jobs.batch("b"):
            jobs.enqueue("it")
        db.session.commit()
        given_back: list[bool] = []

        def note(_: object, now: bool = False) -> None:
            given_back.append(now)

        with monkeypatch.context() as patched:
            patched.setattr(features, "ended", fail)
            patched.setattr(UnansweredClaims, "give_back", note)
            assert jobs.tick(max_runs=1).succeeded == 1
        assert given_back[-1:] == [True], "claims whose answers were lost wait for their leases"
        finished = select(JobTick.succeeded).where(JobTick.finished_at.is_not(None))
        assert db.session.scalars(finished).all() == [1]
        jobs.tick()
        assert db.session.scalars(select(JobBatch.finished_at)).one() is not None


@on_sqlite
def test_writer_that_holds_the_lock_for_three_seconds_delays_and_fails_nothing(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, database_url: str
) -> None:
    calls = enqueue_notes(app, jobs, 5)
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        connection = sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        entered.set()
        time.sleep(3)
        connection.execute("COMMIT")
        connection.close()
        release.set()

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(60)
    report = tick()
    assert release.is_set()
    thread.join()
    assert (report.succeeded, sorted(calls)) == (5, list(range(5)))
    assert attempts(app, db) == {("succeeded", 1)}


@on_sqlite
def test_full_disk_ends_the_tick_with_one_line_and_loses_nothing(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    full = True
    ended: list[int] = []

    @jobs.task(retry=Retry(max_attempts=5, base=0))
    def noisy(n: int) -> None:
        if full or current_run.attempt == 1:
            raise RuntimeError("a failure needs room for its message" * 50)
        ended.append(n)

    with app.app_context():
        noisy.using(commit=True).enqueue_many([{"n": n} for n in range(20)])
        engine = db.engine
    with engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()

    def limit(raw: sqlite3.Connection, record: object) -> None:
        raw.execute(f"PRAGMA max_page_count = {pages if full else 1 << 30}")

    event.listen(engine, "connect", limit)
    engine.dispose()
    result = app.test_cli_runner().invoke(args=["jobs", "tick"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        f"Error: The database cannot be used: database or disk is full. {LEARN_MORE}"
    )
    assert "Traceback" not in result.output
    assert ended == []
    full = False
    engine.dispose()
    with engine.begin() as connection:
        sql = "UPDATE job_runs SET locked_until = '2020-01-01' WHERE status = 'running'"
        connection.exec_driver_sql(sql)
    tick()
    assert {status for status, _ in attempts(app, db)} == {"succeeded"}
    assert sorted(ended) == list(range(20))


# Behind a pooler, each transaction may have another connection, so none may need its own. Session
# locks, SET, LISTEN, temporary tables, cursors and prepared statements fail there silently.

AGAIN = Retry(max_attempts=2, base=0)
NEEDS_A_SESSION = re.compile(
    r"^\s*(SET|RESET|DISCARD|LISTEN|PREPARE|EXECUTE|DECLARE|LOAD)\b"
    r"|advisory_lock|set_config|\bTEMP(ORARY)?\b|\bWITH HOLD\b",
    re.IGNORECASE,
)


@on_postgresql
def test_no_statement_of_a_tick_needs_a_session(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick records slots, reclaims runs, runs every kind of run, has effects, and prunes."""
    monkeypatch.setattr(tick_module, "PRUNE_EVERY", 1)
    statements: list[str] = []

    @jobs.task(retry=AGAIN, schedule="@yearly", atomic=True)
    def atomic() -> None:
        db.session.execute(text("SELECT count(*) FROM job_runs"))
        if current_run.attempt == 1:
            raise RuntimeError("once")

    @jobs.task(retry=AGAIN, concurrency=1)
    def mails() -> None:
        jobs.once(f"mail:{current_run.id}", lambda: None)
        current_run.progress(0.5)

    with app.app_context():
        tick()
        db.session.execute(text("UPDATE job_definitions SET next_run_at = '2026-01-01'"))
        mails.using(commit=True).enqueue_many([{}] * 2)
        lost_id = mails.using(idempotency_key="mail").enqueue().id
        db.session.commit()
        db.session.execute(
            text(
                "UPDATE job_runs SET status = 'running', attempts = 1, locked_by = 'gone:1:token',"
                " locked_until = '2026-01-01', concurrency_share = 1 WHERE id = :id"
            ),
            {"id": lost_id},
        )
        db.session.commit()
        event.listen(db.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
        report = tick()
        assert (report.reclaimed, report.failed, report.succeeded) == (1, 1, 4)
        assert set(db.session.scalars(select(JobRun.status))) <= {"succeeded", "skipped"}
    assert len(statements) > 10
    assert [statement for statement in statements if NEEDS_A_SESSION.search(statement)] == []
