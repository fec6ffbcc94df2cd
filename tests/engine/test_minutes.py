"""The minute work of a resident worker is done beside its runs, and once for all of a pool."""

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

from flask_cronjobs import CronJobs, DatabaseTrouble, TablesMissing, current_run, run_succeeded
from flask_cronjobs.db.notify import CHANNEL, Notifications
from flask_cronjobs.engine import resident as resident_module
from flask_cronjobs.engine import tick as tick_module
from flask_cronjobs.engine.reclaim import Reclaimed
from flask_cronjobs.engine.resident import Tally, serve
from flask_cronjobs.engine.tick import TickOptions
from flask_cronjobs.engine.worker import announcer as announcer_module
from flask_cronjobs.engine.worker import pace
from flask_cronjobs.engine.worker.keeper import Keeper
from flask_cronjobs.engine.worker.pace import Listener
from flask_cronjobs.jobs.state import state_of
from flask_cronjobs.models import JobDefinition, JobRun, JobTick
from flask_cronjobs.signals import counted, unheard
from flask_cronjobs.types import Outcome
from tests.marks import on_postgresql, on_sqlite
from tests.process.support import wait_until
from tests.rows import ago

pytestmark = pytest.mark.usefixtures("context")


class Resident:
    """``flask jobs work`` in a thread.

    :ivar error: what it ended with.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(state_of(),))
        self._thread.start()

    def _run(self, state: Any) -> None:
        try:
            serve(state, TickOptions(workers=1))
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Stop it, and wait for its end."""
        for keeper in [each for each in threading.enumerate() if isinstance(each, Keeper)]:
            keeper.stop()
        self.join()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def resident() -> Iterator[Callable[[], Resident]]:
    """Starts resident workers, which end with the test."""
    started: list[Resident] = []

    def start() -> Resident:
        started.append(Resident())
        return started[-1]

    yield start
    for each in started:
        each.stop()


def fetch(db: SQLAlchemy, *columns: Any) -> list[tuple[Any, ...]]:
    rows = db.session.execute(select(*columns)).all()
    db.session.rollback()
    return [tuple(row) for row in rows]


def set_lease(app: Flask, seconds: float) -> None:
    object.__setattr__(state_of(app).settings, "lease", seconds)


def test_slow_minute_work_loses_no_run_however_short_the_lease(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, resident: Callable[[], Resident],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    set_lease(app, 3.0)
    gate, slow = threading.Event(), threading.Event()

    def slow_reclaim(*args: object) -> Reclaimed:
        slow.set()
        gate.wait(60)
        return Reclaimed([], open_batches=False)

    monkeypatch.setattr(tick_module, "reclaim", slow_reclaim)

    @jobs.task
    def long() -> None:
        """Stay until the lease was renewed past its second end."""
        until = time.monotonic() + 60
        first = fetch(db, JobRun.locked_until)[0][0]
        while time.monotonic() < until:
            (row,) = fetch(db, JobRun.locked_until)
            if (row[0] - first).total_seconds() > 2.0:
                return
            time.sleep(0.05)

    long.using(commit=True).enqueue()
    resident()
    assert slow.wait(60)
    wait_until(lambda: fetch(db, JobRun.status) == [("succeeded",)])
    gate.set()
    assert fetch(db, JobRun.attempts) == [(1,)]


def test_slow_receiver_of_an_outcome_holds_up_neither_leases_nor_outcomes(
    app: Flask, jobs: CronJobs, db: SQLAlchemy
) -> None:
    set_lease(app, 3.0)
    renewed = threading.Event()
    heard: list[str] = []

    def receive(sender: Flask, outcome: Outcome) -> None:
        assert renewed.wait(60)
        heard.append(outcome.job_type)

    @jobs.task(priority=1)
    def quick() -> None: ...

    @jobs.task
    def long() -> None:
        mine = JobRun.locked_until, JobRun.id
        first = {id_: until for until, id_ in fetch(db, *mine)}[current_run.id]
        until = time.monotonic() + 60
        while time.monotonic() < until and not renewed.is_set():
            last = {id_: at for at, id_ in fetch(db, *mine)}[current_run.id]
            if (last - first).total_seconds() > 2.0:
                renewed.set()
            time.sleep(0.05)

    quick.using(commit=True).enqueue()
    long.using(commit=True).enqueue()
    with run_succeeded.connected_to(receive, app):
        report = jobs.tick()
    assert (report.succeeded, report.lost, report.reclaimed) == (2, 0, 0)
    assert heard == ["quick", "long"]


@on_sqlite
def test_nothing_is_claimed_while_too_much_is_left_to_tell(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer_module, "MOST", 5)
    behind: list[int] = []
    begun: list[int] = []

    def receive(sender: Flask, outcome: Outcome) -> None:
        if not behind:
            wait_until(lambda: len(begun) >= 5)
            time.sleep(0.5)  # Whatever is claimed in spite of it would begin by now.
            behind.append(len(begun))

    @jobs.task
    def note() -> None:
        begun.append(1)

    note.using(commit=True).enqueue_many([{}] * 2000)
    with run_succeeded.connected_to(receive, app):
        assert jobs.tick().succeeded == 2000
    assert behind[0] < 2000


def test_minute_work_is_tried_again_soon_after_trouble_with_the_same_row(
    jobs: CronJobs, db: SQLAlchemy, resident: Callable[[], Resident],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(resident_module, "RETRY", 0.05)
    calls: list[int] = []

    def troubled(*args: object) -> Reclaimed:
        calls.append(1)
        if len(calls) == 1:
            raise DatabaseTrouble("The database is locked.", transient=True)
        outcomes = [Outcome(number, "a:1:x", "failed", 1, "it") for number in range(3)]
        return Reclaimed(outcomes, open_batches=False)

    monkeypatch.setattr(tick_module, "reclaim", troubled)
    worker = resident()
    wait_until(lambda: len(calls) == 2)
    worker.stop()
    assert worker.error is None
    ((reclaimed, finished_at),) = fetch(db, JobTick.reclaimed, JobTick.finished_at)
    assert (reclaimed, finished_at is not None) == (3, True)


def test_trouble_that_does_not_pass_ends_the_worker(
    jobs: CronJobs, db: SQLAlchemy, resident: Callable[[], Resident],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def lacking(*args: object) -> int:
        raise TablesMissing("The table job_definitions is missing.")

    monkeypatch.setattr(tick_module, "enqueue_slots", lacking)
    worker = resident()
    worker.join()
    assert isinstance(worker.error, TablesMissing)
    assert fetch(db, JobTick.finished_at) == [(None,)]


@on_sqlite
def test_a_worker_stops_soon_though_its_minute_work_hangs(
    jobs: CronJobs, db: SQLAlchemy, resident: Callable[[], Resident],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(resident_module, "END_WITHIN", 0.1)
    gate, hanging = threading.Event(), threading.Event()

    def hang(*args: object) -> Reclaimed:
        hanging.set()
        gate.wait(60)
        return Reclaimed([], open_batches=False)

    monkeypatch.setattr(tick_module, "reclaim", hang)
    worker = resident()
    assert hanging.wait(60)
    try:
        worker.stop()
    finally:
        gate.set()
    assert "did not end in time, and was left" in caplog.text
    # Let go, it takes no further step.
    wait_until(lambda: fetch(db, JobTick.finished_at) != [(None,)])


@on_postgresql
def test_a_worker_that_listens_looks_once_in_two_seconds(
    jobs: CronJobs, db: SQLAlchemy, resident: Callable[[], Resident],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert pace.POLL_LISTENING == 2.0
    monkeypatch.setattr(pace, "POLL_LISTENING", 0.6)
    looks: list[float] = []

    @event.listens_for(db.engine, "before_cursor_execute")
    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if isinstance(threading.current_thread(), Keeper):
            looks.append(time.monotonic())

    jobs.task(name="it")(lambda: None)
    resident()
    wait_until(lambda: len(looks) >= 4)
    pauses = [after - before for before, after in pairwise(looks[1:])]
    assert min(pauses) > 0.55


def test_a_worker_that_no_pooler_lets_listen_looks_seldom_while_nothing_comes(
    jobs: CronJobs, db: SQLAlchemy, database_url: str, resident: Callable[[], Resident],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Notifications, "listen", lambda self: False)
    monkeypatch.setattr(pace, "POLL", 0.02)
    monkeypatch.setattr(pace, "POLL_LISTENING", 0.4)
    looks: list[float] = []

    @event.listens_for(db.engine, "before_cursor_execute")
    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if isinstance(threading.current_thread(), Keeper) and "front" in statement:
            looks.append(time.monotonic())

    def pauses() -> list[float]:
        return [after - before for before, after in pairwise(looks)]

    jobs.task(name="it")(lambda: None)
    resident()
    if database_url.startswith("sqlite"):
        wait_until(lambda: len(looks) > 150)
        assert min(pauses()[-20:]) < 0.3, "to look at a file asks no server"
        return
    wait_until(lambda: len(looks) > 2 and pauses()[-1] >= 0.4)
    assert min(pauses()[:5]) < 0.2
    jobs.get("it").using(commit=True).enqueue()
    wait_until(lambda: fetch(db, JobRun.status) == [("succeeded",)])
    seen = len(looks)
    wait_until(lambda: len(looks) > seen + 4)
    assert min(pauses()[seen:]) < 0.2, "it looks often again"


@on_postgresql
def test_its_row_says_so_when_it_listens_no_more(
    jobs: CronJobs, db: SQLAlchemy, resident: Callable[[], Resident],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(resident_module, "LOOK_EVERY", 0.05)
    listeners: list[Listener] = []
    enter = Listener.__enter__

    def note(listener: Listener) -> Listener:
        listeners.append(listener)
        return enter(listener)

    monkeypatch.setattr(Listener, "__enter__", note)
    resident()
    wait_until(lambda: fetch(db, JobTick.listening) == [(True,)])
    listeners[0].listening = False
    wait_until(lambda: fetch(db, JobTick.listening) == [(False,)])
    listeners[0].listening = True
    wait_until(lambda: fetch(db, JobTick.listening) == [(True,)])


@on_postgresql
def test_slots_wake_this_worker_and_all_others_at_once(
    jobs: CronJobs, db: SQLAlchemy, database_url: str, resident: Callable[[], Resident],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(pace, "POLL_LISTENING", 3600.0)
    monkeypatch.setattr(resident_module, "MINUTE", 0.2)
    jobs.task(name="minutely", schedule="* * * * *")(lambda: None)
    url = make_url(database_url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(url, autocommit=True) as stranger:
        stranger.execute(f"LISTEN {CHANNEL}")
        resident()
        wait_until(lambda: fetch(db, JobDefinition.id))
        db.session.execute(update(JobDefinition).values(next_run_at=ago(seconds=60)))
        db.session.commit()
        wait_until(lambda: ("succeeded",) in fetch(db, JobRun.status))
        assert len(list(stranger.notifies(timeout=30, stop_after=1))) == 1


class TestTally:
    def test_counts_are_recorded_once(self) -> None:
        tally = Tally()
        assert tally.tick_id is None
        tally.count("succeeded")
        tally.count("lost")
        first = tally.unrecorded()
        assert +first == {"succeeded": 1, "lost": 1}
        tally.count("succeeded")
        tally.note_recorded(first)
        assert +tally.unrecorded() == {"succeeded": 1}

    def test_reclaimed_runs_are_not_counted_as_attempts_of_this_pool(self) -> None:
        tally = Tally()
        news = counted(unheard, tally.count)
        news("outcome", Outcome(1, "a:1:x", "failed", 1, "it", reclaimed=True))
        news("outcome", Outcome(1, "a:1:x", "failed", 1, "it"))
        news("lost", Outcome(2, "a:1:y", "succeeded", 1, "it"))
        assert +tally.unrecorded() == {"failed": 1, "lost": 1}


@pytest.mark.parametrize(
    ("second", "ahead", "took", "left"),
    [
        (17.0, 0.0, 0.0, 43.25),
        (17.0, 0.0, 40.0, 3.25),
        (59.9, 0.0, 0.5, -0.15),  # The slots of the next minute were not due when it looked.
        (0.25, 0.0, 0.0, 60.0),
        (17.0, 7.0, 0.0, 50.25),  # This host's clock is ahead, and it is second 10.
        (17.0, -7.0, 0.0, 36.25),
    ],
)
def test_the_work_begins_just_after_the_full_minute_of_the_database(
    jobs: CronJobs, resident: Callable[[], Resident], monkeypatch: pytest.MonkeyPatch,
    second: float, ahead: float, took: float, left: float,
) -> None:  # fmt: skip
    rests: list[float] = []
    rested = threading.Event()

    class Clock:
        """A clock that stands still while the work is done, and then goes on by *took*."""

        monotonic = staticmethod(time.monotonic)
        now = 1_800_000_000.0 + second

        def time(self) -> float:
            return self.now

    clock = Clock()
    begin, prune = tick_module.begin, tick_module.prune

    def begin_ahead(*args: Any) -> Any:
        return begin(*args)._replace(clock_offset=ahead)

    def prune_for_long(*args: Any) -> int:
        clock.now += took
        return prune(*args)

    def note(self: object, seconds: float) -> None:
        rests.append(round(seconds, 3))
        rested.set()
        stop.wait(60)

    stop = threading.Event()
    monkeypatch.setattr(resident_module, "time", clock)
    monkeypatch.setattr(resident_module, "begin", begin_ahead)
    monkeypatch.setattr(resident_module, "prune", prune_for_long)
    monkeypatch.setattr(resident_module.ResidentMinutes, "_rest", note)
    worker = resident()
    assert rested.wait(60)
    monkeypatch.undo()
    stop.set()
    worker.stop()
    assert rests == [left]
