"""What interrupts a handler reaches the handler, all of it, and nothing beside it."""

from __future__ import annotations

import asyncio
import gc
import signal
import sqlite3
import time
import weakref
from contextlib import closing
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from flask import Flask, g
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text

from flask_cronjobs import CronJobs, Retry, TimedOut, current_run, in_run, signals
from flask_cronjobs.engine.worker.interrupts import HandlerInterrupter
from flask_cronjobs.jobs import effects
from flask_cronjobs.models import JobEffect, JobFailure, JobRun
from flask_cronjobs.types import Claim
from tests.leases import EndlessLeases
from tests.marks import on_sqlite
from tests.rows import the_run

pytestmark = pytest.mark.usefixtures("context")

AGAIN = Retry(max_attempts=2, base=0, jitter=False)
CLAIM = cast("Claim", SimpleNamespace(id=1, identity=(1, "host:1:t")))
#: Where a signal is heard that comes just after the handler has ended.
DISARMING = cast("FrameType", SimpleNamespace(f_code=HandlerInterrupter.disarm.__code__))


@on_sqlite
def test_async_handler_is_ended_by_its_timeout_before_its_retry_begins(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    at_work: list[int] = []
    seen: list[list[int]] = []

    @jobs.task(timeout=0.3, retry=AGAIN)
    async def slow() -> None:
        attempt = current_run.attempt
        seen.append(list(at_work))
        at_work.append(attempt)
        try:
            for _ in range(300 if attempt == 1 else 0):
                await asyncio.sleep(0.02)
        finally:
            at_work.remove(attempt)

    slow.using(commit=True).enqueue()
    report = jobs.tick()
    assert (report.failed, report.succeeded) == (1, 1)
    assert seen == [[], []]
    assert the_run(db).attempts == 2


def test_teardown_that_raises_leaks_no_session_into_the_next_run(
    app: Flask, jobs: CronJobs, db: SQLAlchemy
) -> None:
    with db.engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (label text)"))

    def write(label: str) -> None:
        db.session.execute(text("INSERT INTO notes VALUES (:label)"), {"label": label})

    @app.teardown_appcontext
    def broken(error: BaseException | None) -> None:
        if g.get("break_teardown"):
            raise ValueError("teardown")

    @jobs.task(retry=False)
    def leaves_a_write() -> None:
        write("never committed")
        g.break_teardown = True

    @jobs.task
    def commits() -> None:
        write("committed")
        db.session.commit()

    leaves_a_write.using(commit=True).enqueue()
    commits.using(commit=True).enqueue()
    before = set(registry(db))
    report = jobs.tick()
    assert (report.dead, report.succeeded) == (1, 1)
    assert set(registry(db)) == before, "a session is left for who gets the context's id next"
    assert db.session.scalars(text("SELECT label FROM notes")).all() == ["committed"]


def registry(db: SQLAlchemy) -> dict[int, Any]:
    sessions: Any = db.session.registry
    return cast("dict[int, Any]", sessions.registry)


@on_sqlite
def test_timeout_does_not_ring_in_the_teardown(app: Flask, jobs: CronJobs, db: SQLAlchemy) -> None:
    @app.teardown_appcontext
    def slow(error: BaseException | None) -> None:
        if in_run():
            time.sleep(1.2)

    @jobs.task(timeout=1, retry=False)
    def quick() -> None: ...

    quick.using(commit=True).enqueue()
    assert jobs.tick().succeeded == 1
    assert (the_run(db).status, the_run(db).last_error) == ("succeeded", None)


@on_sqlite
def test_alarm_heard_on_entering_disarm_comes_too_late(jobs: CronJobs) -> None:
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(CLAIM, 600)
        interrupter._deadline = 0.0
        interrupter._on_signal(signal.SIGALRM, DISARMING)
        with pytest.raises(TimedOut):
            interrupter._on_signal(signal.SIGALRM, None)
        interrupter.disarm()


@on_sqlite
def test_ctrl_c_heard_on_entering_disarm_does_not_undo_the_run(jobs: CronJobs) -> None:
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(CLAIM, 600)
        interrupter.raise_in_handler(KeyboardInterrupt(), DISARMING)
        with pytest.raises(KeyboardInterrupt):
            interrupter.raise_in_handler(KeyboardInterrupt(), None)
        interrupter.disarm()


def test_effect_whose_mark_was_interrupted_is_done_by_the_retry(
    jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is committed, and the timeout rings before the worker hears of it."""
    begin = effects.begin
    done: list[int] = []

    def interrupted(*args: Any) -> Any:
        mark = begin(*args)
        if current_run.attempt == 1:
            raise TimedOut("while the mark was made")
        return mark

    monkeypatch.setattr(effects, "begin", interrupted)

    @jobs.task(retry=AGAIN)
    def mails() -> None:
        jobs.once("mail", lambda: done.append(current_run.attempt))

    mails.using(commit=True).enqueue()
    jobs.tick()
    assert done == [2]
    assert the_run(db).status == "succeeded"
    assert db.session.scalars(select(JobEffect.state)).all() == ["done"]


@on_sqlite
@pytest.mark.receiver_raises
def test_receiver_of_a_start_that_exits_harms_no_run(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task
    def fine() -> None: ...

    def exits(sender: Flask, **details: Any) -> None:
        raise SystemExit(3)

    fine.using(commit=True).enqueue()
    with signals.run_started.connected_to(exits, app):
        assert jobs.tick().succeeded == 1
    assert "A receiver of the signal 'run-started' raised" in caplog.text
    assert the_run(db).attempts == 1


def test_receiver_of_a_start_that_hangs_is_ended_by_the_timeout(
    app: Flask, jobs: CronJobs, db: SQLAlchemy
) -> None:
    called: list[int] = []

    def hangs(sender: Flask, claim: Claim) -> None:
        if claim.attempt == 1:
            time.sleep(600)

    @jobs.task(timeout=0.3, retry=AGAIN)
    def fine() -> None:
        called.append(current_run.attempt)

    fine.using(commit=True).enqueue()
    with signals.run_started.connected_to(hangs, app):
        report = jobs.tick()
    assert (report.failed, report.succeeded) == (1, 1)
    assert called == [2]
    assert db.session.scalars(select(JobFailure.error_type)).all() == ["TimedOut"]


@on_sqlite
def test_keyboard_interrupt_of_the_handler_s_own_fails_like_any_other(
    app: Flask, jobs: CronJobs, db: SQLAlchemy
) -> None:
    """``flask jobs tick`` handles SIGINT: what is raised then is no key that was pressed."""

    @jobs.task(retry=False, priority=1)
    def poison() -> None:
        raise KeyboardInterrupt

    @jobs.task
    def good() -> None: ...

    poison.using(commit=True).enqueue()
    good.using(commit=True).enqueue()
    done = app.test_cli_runner().invoke(args=["jobs", "tick"])
    assert done.exit_code == 0
    assert "1 succeeded, 1 dead" in done.output
    rows = db.session.execute(select(JobRun.status, JobRun.error_type).order_by(JobRun.id)).all()
    assert [tuple(row) for row in rows] == [("dead", "KeyboardInterrupt"), ("succeeded", None)]


@on_sqlite
def test_what_an_interrupted_handler_left_in_a_cycle_is_freed(jobs: CronJobs) -> None:
    """As SQLAlchemy does with a connection, for a moment while it hands it out."""

    class Record:
        itself: Record | None = None

    left: list[weakref.ref[Record]] = []

    @jobs.task(timeout=0.05, retry=False)
    def opens() -> None:
        record = Record()
        record.itself = record
        left.append(weakref.ref(record))
        time.sleep(60)

    opens.using(commit=True).enqueue()
    gc.disable()
    try:
        assert jobs.tick().dead == 1
        assert [each() for each in left] == [None]
    finally:
        gc.enable()


def test_ctrl_c_waits_while_a_connection_returns_to_its_pool(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    pressed: list[float] = []

    def press(_driver: object, _record: object) -> None:
        if not pressed and in_run():
            pressed.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

    @jobs.task(name="it")
    def it() -> None:
        db.session.execute(text("SELECT 1"))
        db.session.commit()
        time.sleep(60)

    it.using(commit=True).enqueue()
    db.session.remove()
    event.listen(db.engine, "checkin", press)
    with pytest.raises(KeyboardInterrupt):
        jobs.tick()
    assert time.monotonic() - pressed[0] < 30
    assert cast(Any, db.engine.pool).checkedout() == 0


#: A query whose rows never end.
COUNTING = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@on_sqlite
@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_lock_is_free_after_an_interrupted_query_whoever_has_its_cursor(
    jobs: CronJobs, db: SQLAlchemy, atomic: bool
) -> None:
    """As SQLAlchemy's own closures have it, which live on in the exception's traceback."""
    kept: list[object] = []
    locked: list[bool] = []
    with db.engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (label text)"))

    @jobs.task(timeout=0.2, retry=False, atomic=atomic)
    def reads() -> None:
        db.session.execute(text("INSERT INTO notes VALUES ('a')"))
        rows = db.session.execute(text(COUNTING))
        kept.append(cast(Any, rows).cursor)
        for _ in rows:
            pass

    @jobs.task(priority=-1)
    def writes() -> None:
        with closing(sqlite3.connect(str(db.engine.url.database), timeout=0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
                locked.append(False)
            except sqlite3.OperationalError:
                locked.append(True)

    reads.enqueue()
    writes.using(commit=True).enqueue()
    jobs.tick()
    assert locked == [False]
    told = select(JobRun.status, JobRun.error_type).order_by(JobRun.id)
    assert db.session.execute(told).all() == [("dead", "TimedOut"), ("succeeded", None)]
    kept.clear()
