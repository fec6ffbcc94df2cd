"""SQLite: the ways in which an app's driver begins transactions, and what must hold in each."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, event, select, text

from flask_cronjobs import CronJobs, Retry, TickReport, current_run
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.models import JobEffect, JobRun
from tests.marks import on_sqlite

Tick = Callable[[], TickReport]
AGAIN = Retry(max_attempts=3, base=0)


def listen_and_send_begin(engine: Engine) -> None:
    """SQLAlchemy's recipe for pysqlite, with which savepoints work."""

    def connect(driver: sqlite3.Connection, record: object) -> None:
        driver.isolation_level = None

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


def send_begin_immediate(engine: Engine) -> None:
    """The same, for apps that would rather wait at the start."""
    event.listen(engine, "connect", lambda driver, record: setattr(driver, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))


def use_no_autocommit(engine: Engine) -> None:
    """SQLAlchemy's recipe for Python 3.12 and later."""
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
pytestmark = [on_sqlite, pytest.mark.usefixtures("context")]


@pytest.fixture
def app(database_url: str, db: SQLAlchemy, way: Callable[[Engine], None]) -> Iterator[Flask]:
    """An app with a table of its own, whose driver begins transactions in some *way*."""
    app = Flask("tests")
    app.config.update(SQLALCHEMY_DATABASE_URI=database_url)
    db.init_app(app)
    with app.app_context():
        way(db.engine)
        with db.engine.begin() as connection:
            connection.execute(text("CREATE TABLE work (label text)"))
    yield app
    with app.app_context():
        db.session.remove()
        db.engine.dispose()


@pytest.fixture
def jobs(app: Flask, db: SQLAlchemy) -> CronJobs:
    """The extension, its tables made as `flask jobs admin init` makes them."""
    jobs = CronJobs(app)
    with app.app_context():
        create_tables(db.engine)
    return jobs


def work(db: SQLAlchemy, label: str) -> None:
    db.session.execute(text("INSERT INTO work VALUES (:label)"), {"label": label})


def labels(db: SQLAlchemy) -> list[str]:
    db.session.rollback()
    return list(db.session.scalars(text("SELECT label FROM work ORDER BY label")))


def statuses(db: SQLAlchemy) -> list[str]:
    db.session.rollback()
    return list(db.session.scalars(select(JobRun.status).order_by(JobRun.id)))


@any_way
def test_runs_are_performed_and_recorded(db: SQLAlchemy, jobs: CronJobs, tick: Tick) -> None:
    @jobs.task(retry=AGAIN, schedule="@yearly")
    def book(label: str = "slot") -> None:
        work(db, label)
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
    db.session.execute(text("SELECT * FROM job_runs"))  # Only now the old connection looks.
    assert db.session.scalar(text("PRAGMA journal_mode")) == "wal"


@any_way
def test_atomic_work_in_a_savepoint_first_is_rolled_back_with_its_attempt(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task(atomic=True, retry=AGAIN)
    def book() -> None:
        with db.session.begin_nested():
            work(db, f"attempt {current_run.attempt}")
        if current_run.attempt < 3:
            raise ValueError("the second step failed")

    book.using(commit=True).enqueue()
    assert tick().succeeded == 1
    assert labels(db) == ["attempt 3"]


@any_way
def test_atomic_work_in_a_savepoint_after_a_rollback_is_rolled_back_too(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task(atomic=True, retry=False)
    def book() -> None:
        work(db, "taken back")
        db.session.rollback()
        with db.session.begin_nested():
            work(db, "in the savepoint")
        raise ValueError("the second step failed")

    book.using(commit=True).enqueue()
    assert tick().dead == 1
    assert labels(db) == []


@any_way
def test_run_enqueued_in_a_savepoint_goes_with_the_transaction(
    db: SQLAlchemy, jobs: CronJobs
) -> None:
    task = jobs.task(name="it")(lambda: None)
    with db.session.begin_nested():
        task.enqueue()
    db.session.rollback()
    assert statuses(db) == []


@any_way
def test_run_enqueued_in_a_savepoint_is_there_after_the_commit(
    db: SQLAlchemy, jobs: CronJobs
) -> None:
    task = jobs.task(name="it")(lambda: None)
    with db.session.begin_nested():
        task.enqueue()
    taken_back = db.session.begin_nested()
    task.enqueue()
    taken_back.rollback()
    db.session.commit()
    assert statuses(db) == ["queued"]


@any_way
def test_effect_whose_call_writes_in_the_session_keeps_its_value(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    charged: list[int] = []

    def charge() -> str:
        charged.append(current_run.attempt)
        work(db, "payment")
        return "ch_1"

    @jobs.task(retry=AGAIN)
    def pay() -> str | None:
        value = jobs.once("charge:1", charge)
        db.session.commit()
        if current_run.attempt == 1:
            raise RuntimeError("after the commit")
        return value

    pay.using(commit=True).enqueue()
    report = tick()
    assert (report.failed, report.succeeded, charged) == (1, 1, [1])
    assert labels(db) == ["payment"]
    (effect,) = db.session.scalars(select(JobEffect))
    assert (effect.state, effect.result) == ("done", "ch_1")
    assert db.session.scalar(select(JobRun.result)) == "ch_1"


@any_way
def test_effect_whose_session_is_rolled_back_is_in_doubt(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    """Its payment's row is gone, though the charge was made: somebody has to look."""
    charged: list[int] = []

    def charge() -> str:
        charged.append(current_run.attempt)
        work(db, "payment")
        return "ch_1"

    @jobs.task(retry=AGAIN)
    def pay() -> str | None:
        value = jobs.once("charge:1", charge)
        if current_run.attempt == 1:
            raise RuntimeError("before the commit")
        db.session.commit()
        return value

    pay.using(commit=True).enqueue()
    report = tick()
    assert (report.failed, report.succeeded, charged) == (1, 1, [1])
    assert labels(db) == []
    assert db.session.scalar(select(JobEffect.state)) == "in_doubt"
