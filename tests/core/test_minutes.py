"""A resident worker does the minute work beside its runs, and once for the whole pool."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import (
    CronJobs,
    DatabaseTrouble,
    TablesMissing,
    TickReport,
    __version__,
    current_run,
    run_succeeded,
    tick_finished,
)
from flask_cronjobs.core import resident as resident_module
from flask_cronjobs.core import tick as tick_module
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.resident import ResidentMinutes
from flask_cronjobs.core.worker import announcer as announcer_module
from flask_cronjobs.core.worker.work_options import WorkOptions
from flask_cronjobs.models import JobRun, JobTick
from flask_cronjobs.types import Outcome
from tests.marks import on_sqlite
from tests.process.support import wait_until
from tests.resident import Resident

pytestmark = pytest.mark.usefixtures("context")

Start = Callable[..., Resident]


def fetch(db: SQLAlchemy, *columns: Any) -> list[tuple[Any, ...]]:
    rows = db.session.execute(select(*columns)).all()
    db.session.rollback()
    return [tuple(row) for row in rows]


@pytest.fixture
def short_lease(state: State) -> None:
    object.__setattr__(state.settings, "lease", 3.0)


@pytest.fixture
def short_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident_module, "MINUTE", 0.05)


@pytest.fixture
def note(jobs: CronJobs) -> Any:
    """A task that does nothing, whose runs are committed at once."""
    return jobs.task(name="note")(lambda: None).using(commit=True)


def renewed(db: SQLAlchemy) -> None:
    """Wait in a handler until its lease has been renewed by more than two seconds."""
    mine = select(JobRun.locked_until).where(JobRun.id == current_run.id)

    def until() -> Any:
        tick = db.session.scalars(mine).one()
        db.session.rollback()
        return tick

    first = until()
    wait_until(lambda: (until() - first).total_seconds() > 2.0)


def test_slow_minute_work_loses_no_run_however_short_the_lease(
    jobs: CronJobs, db: SQLAlchemy, short_lease: None, resident: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    gate, slow = threading.Event(), threading.Event()

    def slow_look(*args: object) -> None:
        slow.set()
        gate.wait(120)

    monkeypatch.setattr(tick_module, "sync_definitions", slow_look)
    jobs.task(name="long")(lambda: renewed(db)).using(commit=True).enqueue()
    resident()
    assert slow.wait(60)
    wait_until(lambda: fetch(db, JobRun.status, JobRun.attempts) == [("succeeded", 1)])
    gate.set()


def test_slow_receiver_of_an_outcome_holds_up_neither_leases_nor_outcomes(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, short_lease: None
) -> None:
    ended = threading.Event()
    job_types: list[str] = []

    def receive(sender: Flask, outcome: Outcome) -> None:
        assert ended.wait(120)
        job_types.append(outcome.job_type)

    def long() -> None:
        renewed(db)
        ended.set()

    for name, handler, priority in (("quick", lambda: None, 1), ("long", long, 0)):
        jobs.task(name=name, priority=priority)(handler).using(commit=True).enqueue()
    with run_succeeded.connected_to(receive, app):
        report = jobs.tick()
    assert (report.succeeded, report.lost, report.reclaimed) == (2, 0, 0)
    assert job_types == ["quick", "long"]


@on_sqlite
def test_nothing_is_claimed_while_too_many_signals_are_unsent(
    app: Flask, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer_module, "MAX_UNREPORTED", 5)
    behind: list[int] = []
    starts: list[int] = []

    def receive(sender: Flask, outcome: Outcome) -> None:
        if not behind:
            wait_until(lambda: len(starts) >= 5)
            time.sleep(0.5)  # Anything that was wrongly claimed would begin by now.
            behind.append(len(starts))

    note = jobs.task(name="note")(lambda: starts.append(1))
    note.using(commit=True).enqueue_many([{}] * 2000)
    with run_succeeded.connected_to(receive, app):
        assert jobs.tick().succeeded == 2000
    assert behind[0] < 2000


def test_minute_work_is_tried_again_soon_after_trouble_with_the_same_row(
    jobs: CronJobs, db: SQLAlchemy, resident: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_module, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(resident_module, "MINUTE", 3600.0)
    calls: list[int] = []

    def troubled(*args: object) -> tuple[Counter[str], list[object]]:
        calls.append(1)
        if len(calls) == 1:
            raise DatabaseTrouble("The database is locked.", transient=True)
        return Counter(recorded=3), []

    monkeypatch.setattr(tick_module, "enqueue_slots", troubled)
    worker = resident()
    wait_until(lambda: len(calls) == 2)
    worker.stop()
    assert worker.error is None
    ((recorded, finished_at),) = fetch(db, JobTick.recorded, JobTick.finished_at)
    assert (recorded, finished_at is not None) == (3, True)


@pytest.mark.parametrize("passes", [True, False])
def test_minute_whose_slots_cannot_be_recorded_is_never_finished(
    jobs: CronJobs, db: SQLAlchemy, resident: Start, short_minutes: None, passes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Otherwise it would count as a tick that did its work. Lasting trouble ends the worker."""
    tries: list[int] = []

    def fail(*args: object) -> None:
        tries.append(1)
        if passes:
            raise DatabaseTrouble("read-only", transient=True)
        raise TablesMissing("The table job_definitions is missing.")

    monkeypatch.setattr(resident_module, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(tick_module, "enqueue_slots", fail)
    worker = resident()
    if passes:
        wait_until(lambda: len(tries) > 2)
        worker.stop()
        assert worker.error is None
    else:
        worker.join()
        assert isinstance(worker.error, TablesMissing)
    assert fetch(db, JobTick.finished_at) == [(None,)]


@on_sqlite
def test_a_worker_stops_soon_though_its_minute_work_hangs(
    jobs: CronJobs, db: SQLAlchemy, resident: Start,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(resident_module, "END_SECONDS", 0.1)
    gate, hanging = threading.Event(), threading.Event()

    def hang(*args: object) -> None:
        hanging.set()
        gate.wait(120)

    monkeypatch.setattr(tick_module, "sync_definitions", hang)
    worker = resident()
    assert hanging.wait(60)
    try:
        worker.stop()
    finally:
        gate.set()
    assert "did not end in time, and was abandoned" in caplog.text
    # Once released, it takes no further step.
    wait_until(lambda: fetch(db, JobTick.finished_at) != [(None,)])


def test_its_last_minute_is_finished_when_it_stops(
    note: Any, db: SQLAlchemy, resident: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_module, "MINUTE", 3600.0)
    worker = resident(("default", "mail"))
    wait_until(lambda: fetch(db, JobTick.id))  # Otherwise the run could end before this row exists.
    workers = fetch(db, JobTick.resident, JobTick.queues, JobTick.version)
    assert workers == [(True, ["default", "mail"], __version__)]
    note.enqueue()
    wait_until(lambda: fetch(db, JobRun.status) == [("succeeded",)])
    assert fetch(db, JobTick.finished_at) == [(None,)]
    worker.stop()
    ((succeeded, finished_at),) = fetch(db, JobTick.succeeded, JobTick.finished_at)
    assert (succeeded, finished_at is not None) == (1, True)


def test_each_minute_sends_a_signal_with_its_report(
    app: Flask, db: SQLAlchemy, note: Any, resident: Start, short_minutes: None
) -> None:
    reports: list[TickReport] = []
    threads: set[str] = set()

    def receive(sender: Flask, report: TickReport) -> None:
        reports.append(report)
        threads.add(threading.current_thread().name)

    with tick_finished.connected_to(receive, app):
        worker = resident()
        note.enqueue()
        wait_until(lambda: sum(report.succeeded for report in list(reports)) == 1)
        wait_until(lambda: len(reports) > 2)
        worker.stop()
        finished = [at for (at,) in fetch(db, JobTick.finished_at)]
        assert None not in finished
        wait_until(lambda: len(reports) == len(finished))
    assert threads == {"cronjobs-report-sender"}


def test_minute_is_finished_though_an_attempt_ends_in_a_new_way_meanwhile(
    db: SQLAlchemy, state: State
) -> None:
    keeper: Any = SimpleNamespace(counts=Counter(succeeded=1), listens=False)

    class Recorded(Counter[str]):
        def __missing__(self, kind: str) -> int:
            keeper.counts["dead"] += 1  # The keeper's thread counts while this one subtracts.
            return 0

    minutes = ResidentMinutes(state, WorkOptions("host:1"), keeper)
    minutes._recorded = Recorded()
    with minutes._books:
        minutes._work()
        minutes._finish()
    minutes._sender.close(1.0)
    assert fetch(db, JobTick.succeeded, JobTick.dead) == [(1, 0)]


@pytest.mark.parametrize(
    ("second", "ahead", "took", "left"),
    [
        (17.0, 0.0, 0.0, 43.25),
        (17.0, 0.0, 40.0, 3.25),
        (59.9, 0.0, 0.5, -0.15),  # The slots of the next minute were not due when it checked.
        (0.25, 0.0, 0.0, 60.0),
        (17.0, 7.0, 0.0, 50.25),  # This host's clock is ahead, and it is second 10.
        (17.0, -7.0, 0.0, 36.25),
    ],
)
def test_the_work_begins_just_after_the_full_minute_of_the_database(
    monkeypatch: pytest.MonkeyPatch, second: float, ahead: float, took: float, left: float
) -> None:
    """The work began at *second* of the host's clock, and lasted *took* seconds."""
    began = 1_800_000_000.0 + second
    monkeypatch.setattr(resident_module, "time", SimpleNamespace(time=lambda: began + took))
    minutes: Any = SimpleNamespace(_opened=SimpleNamespace(clock_offset=ahead))
    assert ResidentMinutes._left(minutes, began) == pytest.approx(left)
