"""``flask jobs work`` from within: a commit on PostgreSQL wakes it, else it looks by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, make_url, select
from sqlalchemy.orm import Session

from flask_cronjobs import CronJobs, DatabaseTrouble, NewRun, TickReport, tick_finished
from flask_cronjobs.db.notify import CHANNEL, Notifications, wake_listeners
from flask_cronjobs.engine import resident as resident_module
from flask_cronjobs.engine import tick as tick_module
from flask_cronjobs.engine.resident import serve
from flask_cronjobs.engine.tick import TickOptions
from flask_cronjobs.engine.worker import pace
from flask_cronjobs.engine.worker.keeper import Keeper
from flask_cronjobs.jobs.runs import enqueue
from flask_cronjobs.jobs.state import state_of
from flask_cronjobs.models import JobRun, JobTick
from tests.marks import on_postgresql, on_sqlite
from tests.rows import ago

pytestmark = pytest.mark.usefixtures("context")


CUT_LISTENERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"


@pytest.fixture
def resident(app: Flask, jobs: CronJobs) -> Iterator[Callable[[], None]]:
    """Start a resident worker in a thread; it ends with the test."""
    threads: list[threading.Thread] = []

    def start() -> None:
        state = state_of()
        thread = threading.Thread(target=serve, args=(state, TickOptions(workers=1)))
        thread.start()
        threads.append(thread)

    yield start
    stop_keepers()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def stop_keepers() -> None:
    for keeper in [each for each in threading.enumerate() if isinstance(each, Keeper)]:
        keeper.stop()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def statuses(db: SQLAlchemy) -> list[str]:
    db.session.rollback()
    return list(db.session.scalars(select(JobRun.status).order_by(JobRun.id)))


def ticks(db: SQLAlchemy) -> list[JobTick]:
    db.session.rollback()
    return list(db.session.scalars(select(JobTick).order_by(JobTick.id)))


def begun(db: SQLAlchemy) -> bool:
    """Whether the worker has looked for runs, in vain, and waits."""
    return bool(ticks(db)) and all(
        each._pace.exhausted for each in threading.enumerate() if isinstance(each, Keeper)
    )


def add_tick(db: SQLAlchemy, age: float = 0, finished: bool = False) -> None:
    """Add the row of a resident worker that listens."""
    at = ago(seconds=age)
    row = JobTick(worker="web:1", host="web", pid=1, started_at=at, seen_at=at, listening=True)
    if finished:
        row.finished_at = ago()
    db.session.add(row)
    db.session.commit()


@pytest.fixture
def stranger(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection of somebody else's that listens."""
    url = make_url(database_url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        yield connection


def heard(connection: psycopg.Connection) -> int:
    # What was sent before this answer came with it or before it.
    connection.execute("SELECT 1")
    return len(list(connection.notifies(timeout=0)))


@on_postgresql
class TestOnPostgreSQL:
    def test_a_commit_wakes_it_at_once(
        self,
        jobs: CronJobs,
        db: SQLAlchemy,
        resident: Callable[[], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(pace, "POLL_LISTENING", 3600.0)

        @jobs.task
        def note() -> None: ...

        resident()
        until(lambda: begun(db))
        assert [row.listening for row in ticks(db)] == [True]
        note.enqueue()
        assert statuses(db) == []  # Rolled back, and nobody the wiser.
        state_of().waking.block_for(0)
        note.enqueue()
        db.session.commit()
        until(lambda: statuses(db) == ["succeeded"])

    def test_a_notification_stands_for_the_runs_that_are_enqueued_just_after_it(
        self,
        jobs: CronJobs,
        db: SQLAlchemy,
        resident: Callable[[], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(pace, "POLL_LISTENING", 3600.0)
        monkeypatch.setattr(pace, "WAKE_EVERY", 1.0)
        monkeypatch.setattr(enqueue, "WAKE_EVERY", 3600.0)  # So the second run is not notified of.

        @jobs.task
        def note() -> None: ...

        resident()
        until(lambda: begun(db))
        note.using(commit=True).enqueue()
        until(lambda: statuses(db) == ["succeeded"])
        note.using(commit=True).enqueue()
        until(lambda: statuses(db) == ["succeeded"] * 2)

    def test_one_whose_connection_was_cut_listens_again(
        self,
        jobs: CronJobs,
        db: SQLAlchemy,
        resident: Callable[[], None],
        stranger: psycopg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(pace, "POLL_LISTENING", 3600.0)
        monkeypatch.setattr(pace, "RECONNECT_AFTER", 0.05)

        @jobs.task
        def note() -> None: ...

        resident()
        until(lambda: begun(db))
        listeners = f"{CUT_LISTENERS} AND pid <> pg_backend_pid()"
        pids = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
        before = set(stranger.execute(pids).fetchall())
        stranger.execute(listeners)
        until(lambda: set(stranger.execute(pids).fetchall()) - before)
        note.enqueue()
        db.session.commit()
        until(lambda: statuses(db) == ["succeeded"])

    def test_nobody_is_notified_where_nobody_listens(
        self, jobs: CronJobs, db: SQLAlchemy, stranger: psycopg.Connection
    ) -> None:
        add_tick(db, age=300)
        add_tick(db, finished=True)
        jobs.tick()
        assert not wake_listeners(db.session(), db.session.connection())
        db.session.commit()
        assert heard(stranger) == 0

    def test_listeners_are_notified_by_the_commit_and_not_before(
        self, db: SQLAlchemy, stranger: psycopg.Connection
    ) -> None:
        add_tick(db)
        assert wake_listeners(db.session(), db.session.connection())
        assert heard(stranger) == 0
        db.session.commit()
        assert heard(stranger) == 1

    def test_many_enqueues_notify_once(
        self,
        jobs: CronJobs,
        db: SQLAlchemy,
        stranger: psycopg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(enqueue, "WAKE_EVERY", 3600.0)

        @jobs.task
        def note() -> None: ...

        add_tick(db)
        note.using(delay=5, commit=True).enqueue()
        assert heard(stranger) == 0
        for _ in range(5):
            note.using(commit=True).enqueue()
            note.using(commit=True).enqueue_many([{}, {}])
        assert heard(stranger) == 1

    def test_only_what_is_due_notifies(
        self,
        jobs: CronJobs,
        db: SQLAlchemy,
        stranger: psycopg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(enqueue, "WAKE_EVERY", 0.0)

        @jobs.task
        def greet(number: int) -> None: ...

        def wakes(call: Callable[[], object]) -> bool:
            call()
            db.session.commit()
            return heard(stranger) > 0

        add_tick(db)
        assert wakes(lambda: greet.enqueue(1))
        assert not wakes(lambda: greet.using(run_at=ago(-60)).enqueue(1))
        later, now = NewRun({"number": 1}, delay=60), NewRun({"number": 1}, delay=0)
        assert wakes(lambda: greet.enqueue_many([{"number": 1}]))
        assert not wakes(lambda: greet.enqueue_many([later]))
        assert wakes(lambda: greet.enqueue_many([later, {"number": 1}]))
        assert not wakes(lambda: greet.using(delay=9).enqueue_many([{"number": 1}]))
        assert wakes(lambda: greet.using(delay=9).enqueue_many([now]))
        keyed = NewRun({"number": 1}, idempotency_key="key")
        assert wakes(lambda: greet.enqueue_many([keyed, later]))
        assert not wakes(lambda: greet.enqueue_many([keyed, later]))
        held = greet.using(idempotency_key="key")
        assert not wakes(lambda: held.enqueue(1))
        assert wakes(lambda: held.using(replace=True).enqueue(2))

    def test_an_enqueue_that_notifies_is_one_statement(
        self, jobs: CronJobs, db: SQLAlchemy
    ) -> None:
        @jobs.task
        def note() -> None: ...

        add_tick(db)
        sent: list[str] = []

        @event.listens_for(db.engine, "before_cursor_execute")
        def keep(connection: object, cursor: object, statement: str, *rest: object) -> None:
            sent.append(statement)

        note.using(commit=True).enqueue()
        assert len(sent) == 1
        assert "pg_notify" in sent[0]

    def test_whether_anybody_listens_is_not_asked_at_each_enqueue(
        self, jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(enqueue, "ASK_EVERY", 3600.0)

        @jobs.task
        def note() -> None: ...

        asked: list[str] = []

        @event.listens_for(db.engine, "before_cursor_execute")
        def count(connection: object, cursor: object, statement: str, *rest: object) -> None:
            if "pg_notify" in statement:
                asked.append(statement)

        for _ in range(5):
            note.using(commit=True).enqueue()
        assert len(asked) == 1

    def test_a_transaction_of_two_phases_is_left_alone(self, db: SQLAlchemy) -> None:
        add_tick(db)
        with Session(db.engine, twophase=True) as session:
            assert not wake_listeners(session, session.connection())

    def test_nobody_listens_through_a_pooler(self, app: Flask, pgbouncer_url: str) -> None:
        bounced = Flask("bounced")
        bounced.config["SQLALCHEMY_DATABASE_URI"] = pgbouncer_url
        db = SQLAlchemy(bounced)
        with bounced.app_context():
            notifications = Notifications(db.engine)
            assert not notifications.listen()
            notifications.close()
            db.engine.dispose()

    def test_a_worker_behind_a_pooler_looks_by_itself(
        self,
        jobs: CronJobs,
        db: SQLAlchemy,
        resident: Callable[[], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(Notifications, "listen", lambda self: False)

        @jobs.task
        def note() -> None: ...

        resident()
        until(lambda: begun(db))
        assert [row.listening for row in ticks(db)] == [False]
        note.using(commit=True).enqueue()
        until(lambda: statuses(db) == ["succeeded"])


@on_sqlite
def test_on_sqlite_it_looks_by_itself(
    jobs: CronJobs, db: SQLAlchemy, resident: Callable[[], None]
) -> None:
    @jobs.task
    def note() -> None: ...

    resident()
    until(lambda: begun(db))
    assert [row.listening for row in ticks(db)] == [False]
    note.using(commit=True).enqueue()
    until(lambda: statuses(db) == ["succeeded"])


def test_its_last_minute_is_finished_when_it_stops(
    jobs: CronJobs, db: SQLAlchemy, resident: Callable[[], None]
) -> None:
    @jobs.task
    def note() -> None: ...

    resident()
    until(lambda: begun(db))  # Else the run may end before its minute has a row.
    note.using(commit=True).enqueue()
    until(lambda: statuses(db) == ["succeeded"])
    (row,) = ticks(db)
    assert row.finished_at is None
    stop_keepers()
    until(lambda: ticks(db)[0].finished_at is not None)
    (row,) = ticks(db)
    assert row.succeeded == 1


def test_a_monitor_that_hangs_holds_up_nothing(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, resident: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(resident_module, "MINUTE", 0.05)
    gate, pinged = threading.Event(), threading.Event()

    def hang(url: str | None) -> None:
        pinged.set()
        gate.wait(120)

    monkeypatch.setattr(resident_module, "ping", hang)

    @jobs.task
    def note() -> None: ...

    resident()
    try:
        until(pinged.is_set)
        before = len(ticks(db))
        note.using(commit=True).enqueue()
        until(lambda: statuses(db) == ["succeeded"])
        until(lambda: len(ticks(db)) > before + 2)
    finally:
        gate.set()


def test_each_minute_is_told_with_its_report(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, resident: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(resident_module, "MINUTE", 0.05)
    reports: list[TickReport] = []
    threads: set[str] = set()

    def receive(sender: Flask, report: TickReport) -> None:
        reports.append(report)
        threads.add(threading.current_thread().name)

    @jobs.task
    def note() -> None: ...

    with tick_finished.connected_to(receive, app):
        resident()
        note.using(commit=True).enqueue()
        until(lambda: sum(report.succeeded for report in list(reports)) == 1)
        until(lambda: len(reports) > 2)
        stop_keepers()
        until(lambda: all(row.finished_at is not None for row in ticks(db)))
        until(lambda: len(reports) == len(ticks(db)))
    assert threads == {"cronjobs-report-sender"}


@on_sqlite
def test_minute_whose_slots_cannot_be_recorded_is_never_finished(
    jobs: CronJobs,
    db: SQLAlchemy,
    resident: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else health would take it for a tick that did its work."""
    tries: list[int] = []

    def fail(*args: object) -> None:
        tries.append(1)
        raise DatabaseTrouble("read-only", transient=True)

    monkeypatch.setattr(resident_module, "RETRY", 0.05)
    monkeypatch.setattr(resident_module, "MINUTE", 0.05)
    monkeypatch.setattr(tick_module, "enqueue_slots", fail)
    resident()
    until(lambda: len(tries) > 2)
    assert {row.finished_at for row in ticks(db)} == {None}
