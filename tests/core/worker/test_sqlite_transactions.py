"""SQLite: an app's driver may begin transactions in several ways; jobs work with each."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, event, select, text

from flask_cronjobs import CronJobs, Retry, TickReport, current_run
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.models import JobEffect, JobRun
from tests.handlers import labels, write
from tests.marks import on_sqlite
from tests.rows import statuses

Tick = Callable[[], TickReport]
AGAIN = Retry(max_attempts=3, base=0)


def listen_and_send_begin(engine: Engine) -> None:
    """Apply SQLAlchemy's recipe for pysqlite, with which savepoints work."""

    def connect(driver: sqlite3.Connection, record: object) -> None:
        driver.isolation_level = None

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


def send_begin_immediate(engine: Engine) -> None:
    """Apply the recipe of apps that prefer to wait at the start of a transaction."""
    event.listen(engine, "connect", lambda driver, record: setattr(driver, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))


def use_no_autocommit(engine: Engine) -> None:
    """Apply SQLAlchemy's recipe for Python 3.12 and later."""
    event.listen(engine, "connect", lambda driver, record: setattr(driver, "autocommit", False))


WAYS: list[Any] = [
    pytest.param(lambda engine: None, id="default"),
    pytest.param(listen_and_send_begin, id="BEGIN"),
    pytest.param(send_begin_immediate, id="BEGIN IMMEDIATE"),
    pytest.param(
        use_no_autocommit,
        id="autocommit=False",
        marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has it since 3.12"),
    ),
]
any_way = pytest.mark.parametrize("way", WAYS)
pytestmark = [on_sqlite, pytest.mark.usefixtures("table")]


@pytest.fixture
def jobs(app: Flask, db: SQLAlchemy, way: Callable[[Engine], None]) -> CronJobs:
    """The extension, with tables as `flask jobs admin init` makes them.

    The parameter decides how the driver of its app begins transactions.
    """
    with app.app_context():
        way(db.engine)
        jobs = CronJobs(app)
        create_tables(db.engine)
    return jobs


@any_way
def test_runs_are_performed_and_recorded(db: SQLAlchemy, jobs: CronJobs, tick: Tick) -> None:
    @jobs.task(retry=AGAIN, schedule="@yearly")
    def book(label: str = "slot") -> None:
        write(db, label)
        db.session.commit()
        if current_run.attempt == 1:
            raise RuntimeError("after the commit")

    book.using(commit=True).enqueue("it")
    report = tick()
    assert (report.failed, report.succeeded) == (1, 1)
    assert tick().succeeded == 0
    assert statuses(db) == ["succeeded"]
    assert labels(db) == ["it", "it"]


@any_way
def test_tables_are_created_in_wal_mode(db: SQLAlchemy, jobs: CronJobs) -> None:
    db.session.execute(text("SELECT * FROM job_runs"))  # The old connection reads only now.
    assert db.session.scalar(text("PRAGMA journal_mode")) == "wal"


@any_way
@pytest.mark.parametrize("rolls_back", [False, True], ids=["first", "after a rollback"])
def test_atomic_work_in_a_savepoint_is_rolled_back_with_its_attempt(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, rolls_back: bool
) -> None:
    @jobs.task(atomic=True, retry=AGAIN)
    def book() -> None:
        if rolls_back:
            write(db, "taken back")
            db.session.rollback()
        with db.session.begin_nested():
            write(db, f"attempt {current_run.attempt}")
        if current_run.attempt < 3:
            raise ValueError("the second step failed")

    book.using(commit=True).enqueue()
    assert tick().succeeded == 1
    assert labels(db) == ["attempt 3"]


@any_way
def test_run_enqueued_in_a_savepoint_goes_or_stays_with_the_transaction(
    db: SQLAlchemy, jobs: CronJobs
) -> None:
    task = jobs.task(name="it")(lambda: None)
    for _ in range(2):
        db.session.rollback()
        with db.session.begin_nested():
            task.enqueue()
    taken_back = db.session.begin_nested()
    task.enqueue()
    taken_back.rollback()
    db.session.commit()
    assert statuses(db) == ["queued"]


@any_way
@pytest.mark.parametrize("committed", [True, False])
def test_effect_whose_call_writes_in_the_session_is_in_doubt_unless_that_is_committed(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, committed: bool
) -> None:
    """The payment's row is gone, though the charge was made: a person must check."""
    charged: list[int] = []

    def charge() -> str:
        charged.append(current_run.attempt)
        write(db, "payment")
        return "ch_1"

    @jobs.task(retry=AGAIN)
    def pay() -> str | None:
        value = jobs.once("charge:1", charge)
        if committed:
            db.session.commit()
        if current_run.attempt == 1:
            raise RuntimeError("after the effect")
        return value

    pay.using(commit=True).enqueue()
    report = tick()
    assert (report.failed, report.succeeded, charged) == (1, 1, [1])
    assert labels(db) == (["payment"] if committed else [])
    (effect,) = db.session.scalars(select(JobEffect))
    finished = ("done", "ch_1", "ch_1")
    effect_and_result = (effect.state, effect.result, db.session.scalar(select(JobRun.result)))
    assert effect_and_result == (finished if committed else ("in_doubt", None, None))
