"""``flask jobs work`` in this process: a commit on PostgreSQL wakes it; otherwise it polls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, make_url, select, update
from sqlalchemy.orm import Session

from flask_cronjobs import CronJobs
from flask_cronjobs.core import enqueue
from flask_cronjobs.core import resident as resident_module
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.worker import admission, listener
from flask_cronjobs.core.worker.keeper import Keeper
from flask_cronjobs.core.worker.work_options import Limits
from flask_cronjobs.db.notify import CHANNEL, Notifications, wake_listeners
from flask_cronjobs.models import JobDefinition, JobTick
from tests.kit import statements
from tests.marks import on_postgresql
from tests.process.support import wait_until
from tests.resident import Resident, keepers
from tests.rows import Rows, ago, statuses

pytestmark = pytest.mark.usefixtures("context")

Start = Callable[[], Resident]
LISTENERS = "FROM pg_stat_activity WHERE query LIKE 'LISTEN %' AND pid <> pg_backend_pid()"


@pytest.fixture
def note(jobs: CronJobs) -> Any:
    """A task that does nothing, whose runs are committed at once."""
    return jobs.task(name="note")(lambda: None).using(commit=True)


def listening(db: SQLAlchemy) -> list[bool]:
    """Return whether the newest row says that the worker listens; each minute may add a row."""
    db.session.rollback()
    newest = select(JobTick.listening).order_by(JobTick.id.desc()).limit(1)
    return list(db.session.scalars(newest))


def waits(db: SQLAlchemy) -> bool:
    """Return whether a worker has its row, has polled without success, and waits."""
    return bool(listening(db)) and all(keeper._pace.exhausted for keeper in keepers())


@pytest.fixture
def stranger(database_url: str) -> Iterator[psycopg.Connection]:
    """Another client's connection, which listens."""
    url = make_url(database_url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        yield connection


def heard(connection: psycopg.Connection) -> int:
    # Earlier notifications came with this answer or before it.
    connection.execute("SELECT 1")
    return len(list(connection.notifies(timeout=0)))


@pytest.fixture
def sent(db: SQLAlchemy, context: None) -> list[str]:
    """The statements that the app's engine executes."""
    return statements(db.engine)


@on_postgresql
class TestWaking:
    """Without a notification, each worker would poll only after an hour."""

    @pytest.fixture(autouse=True)
    def never_looks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "LISTENING_POLL_SECONDS", 3600.0)

    def test_a_commit_wakes_it_at_once(
        self, note: Any, db: SQLAlchemy, state: State, resident: Start
    ) -> None:
        resident()
        wait_until(lambda: waits(db))
        assert listening(db) == [True]
        note.using(commit=False).enqueue()
        assert statuses(db) == []  # It is rolled back, so no notification is sent.
        state.waking.block_for(0)
        note.enqueue()
        wait_until(lambda: statuses(db) == ["succeeded"])

    def test_a_notification_stands_for_the_runs_that_are_enqueued_just_after_it(
        self, note: Any, db: SQLAlchemy, resident: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "WAKE_SECONDS", 1.0)
        # The second run sends no notification.
        monkeypatch.setattr(enqueue, "WAKE_SECONDS", 3600.0)
        resident()
        wait_until(lambda: waits(db))
        for number in (1, 2):
            note.enqueue()
            wait_until(lambda number=number: statuses(db) == ["succeeded"] * number)  # type: ignore[misc]

    def test_one_whose_connection_was_cut_listens_again(
        self, note: Any, db: SQLAlchemy, resident: Start, stranger: psycopg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(listener, "RECONNECT_SECONDS", 0.05)
        resident()
        wait_until(lambda: waits(db))
        pids = f"SELECT pid {LISTENERS}"
        before = set(stranger.execute(pids).fetchall())
        stranger.execute(f"SELECT pg_terminate_backend(pid) {LISTENERS}")
        wait_until(lambda: set(stranger.execute(pids).fetchall()) - before)
        note.enqueue()
        wait_until(lambda: statuses(db) == ["succeeded"])

    def test_slots_wake_this_worker_and_all_others(
        self, jobs: CronJobs, db: SQLAlchemy, resident: Start, stranger: psycopg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(resident_module, "MINUTE", 0.2)
        jobs.task(name="minutely", schedule="* * * * *")(lambda: None)
        resident()
        wait_until(lambda: db.session.scalars(select(JobDefinition.id)).all())
        db.session.execute(update(JobDefinition).values(next_run_at=ago(seconds=60)))
        db.session.commit()
        wait_until(lambda: "succeeded" in statuses(db))
        assert len(list(stranger.notifies(timeout=60, stop_after=1))) == 1

    def test_its_row_says_so_when_it_listens_no_more(
        self, db: SQLAlchemy, resident: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resident_module, "CHECK_SECONDS", 0.05)
        listeners: list[listener.Listener] = []
        enter = listener.Listener.__enter__

        def note(entered: listener.Listener) -> listener.Listener:
            listeners.append(entered)
            return enter(entered)

        monkeypatch.setattr(listener.Listener, "__enter__", note)
        resident()
        wait_until(lambda: listening(db) == [True])
        for listens in (False, True):
            listeners[0].listening = listens
            wait_until(lambda listens=listens: listening(db) == [listens])  # type: ignore[misc]


def test_page_is_green_soon_after_a_start_that_ends_an_outage(
    jobs: CronJobs, rows: Rows, resident: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_module, "MINUTE", 3600.0)
    rows.tick(age=3600)
    assert not jobs.health().ok
    resident()
    wait_until(lambda: jobs.health().ok, timeout=15)


@on_postgresql
class TestNotifying:
    """The notifications of an enqueue, in an app with a worker that listens."""

    @pytest.fixture
    def listener(self, rows: Rows) -> None:
        rows.tick(listening=True, finished_at=None)

    def test_nobody_is_notified_where_nobody_listens(
        self, jobs: CronJobs, rows: Rows, db: SQLAlchemy, stranger: psycopg.Connection
    ) -> None:
        rows.tick(age=300, listening=True, finished_at=None)
        rows.tick(listening=True)
        jobs.tick()
        assert not wake_listeners(db.session(), db.session.connection())
        db.session.commit()
        assert heard(stranger) == 0

    def test_listeners_are_notified_by_the_commit_and_not_before(
        self, listener: None, db: SQLAlchemy, stranger: psycopg.Connection
    ) -> None:
        assert wake_listeners(db.session(), db.session.connection())
        assert heard(stranger) == 0
        db.session.commit()
        assert heard(stranger) == 1
        with Session(db.engine, twophase=True) as session:
            assert not wake_listeners(session, session.connection())

    def test_many_enqueues_notify_once(
        self, note: Any, listener: None, stranger: psycopg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(enqueue, "WAKE_SECONDS", 3600.0)
        note.using(delay=5).enqueue()
        assert heard(stranger) == 0
        for _ in range(5):
            note.enqueue()
            note.enqueue_many([{}, {}])
        assert heard(stranger) == 1

    def test_only_what_is_due_notifies(
        self, jobs: CronJobs, listener: None, stranger: psycopg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(enqueue, "WAKE_SECONDS", 0.0)
        greet = jobs.task(name="greet")(lambda number: None).using(commit=True)
        keyed = jobs.task(name="keyed", unique="keyed:{number}")(lambda number: None)
        keyed = keyed.using(commit=True)
        with_key = greet.using(idempotency_key="key")
        for wakes, call in (
            (True, lambda: greet.enqueue(1)),
            (False, lambda: greet.using(run_at=ago(-60)).enqueue(1)),
            (True, lambda: greet.enqueue_many([{"number": 1}])),
            (False, lambda: greet.using(delay=9).enqueue_many([{"number": 1}])),
            (True, lambda: keyed.enqueue_many([{"number": 1}])),
            (False, lambda: keyed.enqueue_many([{"number": 1}])),
            (True, lambda: keyed.enqueue_many([{"number": 1}, {"number": 2}])),
            (True, lambda: with_key.enqueue(1)),
            (False, lambda: with_key.enqueue(1)),
            (True, lambda: with_key.using(replace=True).enqueue(2)),
        ):
            call()
            assert (heard(stranger) > 0) == wakes

    def test_nobody_listens_through_a_pooler(self, pgbouncer_url: str) -> None:
        bounced = Flask("bounced")
        bounced.config["SQLALCHEMY_DATABASE_URI"] = pgbouncer_url
        db = SQLAlchemy(bounced)
        with bounced.app_context():
            notifications = Notifications(db.engine)
            assert not notifications.listen()
            notifications.close()
            db.engine.dispose()


# How often it polls


@pytest.fixture
def looks(db: SQLAlchemy, context: None) -> list[float]:
    """The times at which a keeper looked for runs."""
    times: list[float] = []

    @event.listens_for(db.engine, "before_cursor_execute")
    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if isinstance(threading.current_thread(), Keeper) and "first_window" in statement:
            times.append(time.monotonic())

    return times


def pauses(looks: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(looks)]


@on_postgresql
def test_a_worker_that_listens_polls_every_two_seconds(
    note: Any, looks: list[float], resident: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert admission.LISTENING_POLL_SECONDS == 2.0
    monkeypatch.setattr(admission, "LISTENING_POLL_SECONDS", 0.6)
    resident()
    wait_until(lambda: len(looks) >= 4)
    assert min(pauses(looks[1:])) > 0.55


def test_a_worker_that_cannot_listen_polls_and_polls_a_server_seldom(
    note: Any, db: SQLAlchemy, database_url: str, looks: list[float], resident: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Notifications, "listen", lambda self: False)
    monkeypatch.setattr(admission, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(admission, "LISTENING_POLL_SECONDS", 0.4)
    resident()
    if database_url.startswith("sqlite"):
        wait_until(lambda: len(looks) > 150)
        assert min(pauses(looks)[-20:]) < 0.3, "to look at a file asks no server"
    else:
        wait_until(lambda: len(looks) > 2 and pauses(looks)[-1] >= 0.4)
        assert min(pauses(looks)[:5]) < 0.2
    assert listening(db) == [False]
    looks_before = len(looks)
    note.enqueue()
    wait_until(lambda: statuses(db) == ["succeeded"])
    wait_until(lambda: len(looks) > looks_before + 4)
    assert min(pauses(looks)[looks_before:]) < 0.2, "it looks often again"


# When a worker ends


@pytest.mark.parametrize(
    ("limits", "runs", "reached"),
    [
        (Limits(), 9, None),
        (Limits(runs=3), 2, None),
        (Limits(runs=3), 3, "after 3 runs"),
        (Limits(memory=10**6), 9, None),
        (Limits(memory=1), 0, None),  # The worker must do some work before it ends.
    ],
)
def test_limits(limits: Limits, runs: int, reached: str | None) -> None:
    assert limits.reached(runs) == reached
