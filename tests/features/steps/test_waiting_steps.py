"""FAULTS: a run that sleeps or waits for a signal holds no worker, and continues afterwards."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text, update

from flask_cronjobs import CronJobs, NotFound, TickReport, current_run
from flask_cronjobs.core.app_state import State
from flask_cronjobs.db import failpoints
from flask_cronjobs.models import JobRun, JobStep
from flask_cronjobs.testing import travel
from tests.handlers import AGAIN, GIVEN_BACK, LATER, Enqueue, holders
from tests.rows import now, the_run, view_of

Tick = Callable[[], TickReport]
Perform = Callable[..., JobRun]

HOUR = timedelta(hours=1)


def the_step(db: SQLAlchemy, name: str) -> JobStep:
    db.session.rollback()
    return db.session.scalars(select(JobStep).where(JobStep.name == name)).one()


def test_a_run_that_sleeps_continues_after_that_line(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    calls: list[str] = []

    def remind() -> None:
        jobs.step("first", lambda: calls.append("first"))
        jobs.sleep("an hour", HOUR)
        calls.append("last")

    enqueue(remind)
    before = now()
    assert (tick().released, tick().released, holders(db)) == (1, 0, [GIVEN_BACK])
    assert before + HOUR <= the_run(db).run_at <= now() + HOUR
    assert the_step(db, "an hour").finished_at is None
    assert the_run(db).waits_for == "sleep an hour"
    with travel(HOUR):
        assert tick().succeeded == 1
    assert calls == ["first", "last"]
    assert the_run(db).waits_for is None
    assert (the_run(db).attempts, the_step(db, "an hour").finished_at is None) == (1, False)


@pytest.mark.parametrize("by", ["retry", "cancel"])
def test_a_view_sees_what_a_run_waits_for_though_an_attempt_has_failed(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue, by: str
) -> None:
    def remind() -> None:
        if current_run.attempt == 1:
            raise RuntimeError("once")
        jobs.sleep("an hour", HOUR)

    (run_id,) = enqueue(remind, retry=AGAIN)
    tick()
    run = the_run(db)
    assert (run.status, run.attempts, run.waits_for) == ("failed", 1, "sleep an hour")
    change = jobs.retry if by == "retry" else jobs.cancel
    change(run_id)
    assert the_run(db).waits_for is None


def test_the_time_of_a_sleep_begins_once(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    enqueue(lambda: jobs.sleep("an hour", 3600))
    tick()
    due = the_run(db).run_at
    db.session.execute(update(JobRun).values(run_at=text("created_at")))  # As a retry by hand.
    db.session.commit()
    assert (tick().released, the_run(db).run_at) == (1, due)


def test_a_run_says_what_it_waits_for_after_any_earlier_attempt(
    db: SQLAlchemy, jobs: CronJobs, state: State, tick: Tick, enqueue: Enqueue
) -> None:
    """It sleeps after a failed attempt; after another failure it only waits for its retry."""
    fails = [True, False, True]

    def remind() -> None:
        if fails.pop(0):
            raise ValueError
        jobs.sleep("an hour", 3600)

    (run_id,) = enqueue(remind, retry=replace(LATER, max_attempts=3))
    for outcome, waits_for, kind in (
        ("failed", None, "later"),
        ("released", "sleep an hour", "sleep"),
        ("failed", None, "later"),
    ):
        db.session.execute(update(JobRun).values(run_at=text("created_at")))
        db.session.commit()
        assert getattr(tick(), outcome) == 1
        assert (the_run(db).status, the_run(db).waits_for) == ("failed", waits_for)
        assert [wait.kind for wait in view_of(state, run_id).waits] == [kind]


def waits(jobs: CronJobs, timeout: object = HOUR) -> Callable[[], Any]:
    def approve() -> list[Any]:
        return [jobs.wait("approved", timeout=timeout), current_run.attempt]  # type: ignore[arg-type]

    return approve


def test_a_signal_resumes_the_run_that_waits_for_it(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    (run_id,) = enqueue(waits(jobs))
    assert (tick().released, holders(db)) == (1, [GIVEN_BACK])
    assert the_run(db).run_at > now() + HOUR / 2
    assert jobs.signal(run_id, "approved", {"by": ["ann"]})
    db.session.rollback()
    assert tick().attempts == 0  # The signal was rolled back.
    assert jobs.signal(the_run(db), "approved", {"by": ["eve"]})
    db.session.commit()
    assert not jobs.signal(run_id, "approved", {"by": ["bob"]})  # The first signal wins.
    db.session.commit()
    assert tick().succeeded == 1
    assert the_run(db).result == [{"by": ["eve"]}, 1]
    assert not jobs.signal(run_id, "approved")  # The run has ended.


def test_a_signal_may_come_before(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    """A signal does not make a run due that is not waiting for it."""
    (run_id,) = enqueue(waits(jobs))
    db.session.execute(update(JobRun).values(run_at=now() + HOUR, idempotency_key="order 7"))
    assert jobs.signal("order 7", "approved")
    assert not jobs.signal(run_id, "approved", False)
    db.session.commit()
    assert tick().attempts == 0
    with travel(HOUR):
        assert tick().succeeded == 1
    assert the_run(db).result == [True, 1]


def test_a_wait_whose_signal_does_not_come_in_time_returns_none(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    def approve() -> Any:
        payload = jobs.wait("approved", timeout=60)
        if current_run.attempt == 1:
            raise RuntimeError("behind the wait")
        return [payload]

    (run_id,) = enqueue(approve, retry=LATER)
    tick()
    with travel(timedelta(seconds=60)):
        assert tick().failed == 1
        assert not jobs.signal(run_id, "approved")  # The attempt has seen that no signal came.
        db.session.commit()
    with travel(HOUR):
        tick()
    assert the_run(db).result == [None]


@pytest.mark.parametrize("moment", ["before-wait", "after-wait"])
def test_a_signal_that_comes_while_the_wait_begins_is_not_lost(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue,
    monkeypatch: pytest.MonkeyPatch, moment: str,
) -> None:  # fmt: skip
    """The attempt has read its steps, or has written that it waits, and is still running."""
    (run_id,) = enqueue(waits(jobs))

    def send(point: str) -> None:
        if point == moment:
            with app.app_context():
                assert jobs.signal(run_id, "approved", "at last")
                db.session.commit()

    monkeypatch.setattr(failpoints, "reach", send)
    report = tick()
    assert report.succeeded == 1
    assert report.released == (0 if moment == "before-wait" else 1)
    assert the_run(db).result == ["at last", 1]


def test_an_async_handler_sleeps_and_waits(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    async def approve() -> Any:
        jobs.sleep("an hour", HOUR)
        return jobs.wait("approved")

    (run_id,) = enqueue(approve)
    assert (tick().released, holders(db)) == (1, [GIVEN_BACK])
    with travel(HOUR):
        assert (tick().released, holders(db)) == (1, [GIVEN_BACK])
        jobs.signal(run_id, "approved")
        db.session.commit()
        assert tick().succeeded == 1
    assert the_run(db).result is True


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio has groups of tasks since 3.11")
@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
def test_a_run_sleeps_in_a_group_of_tasks(
    jobs: CronJobs, tick: Tick, db: SQLAlchemy, enqueue: Enqueue, is_plain: bool
) -> None:
    """A group raises what its tasks raise as a group of exceptions."""
    asyncio_: Any = asyncio

    async def sleep() -> None:
        jobs.sleep("an hour", HOUR)

    async def order() -> None:
        async with asyncio_.TaskGroup() as outer:
            outer.create_task(asyncio.sleep(0))
            async with asyncio_.TaskGroup() as inner:
                inner.create_task(sleep())

    enqueue((lambda: asyncio.run(order())) if is_plain else order)
    assert (tick().released, holders(db)) == (1, [GIVEN_BACK])
    with travel(HOUR):
        assert tick().succeeded == 1


@pytest.mark.parametrize(("order", "others"), [(None, 1), ("strict", 0)])
def test_a_run_that_sleeps_leaves_its_concurrency_key_to_others_but_not_its_turn(
    jobs: CronJobs, tick: Tick, enqueue: Enqueue, order: str | None, others: int
) -> None:
    def book(number: int) -> None:
        if number == 0:
            jobs.sleep("an hour", HOUR)

    enqueue(book, [{"number": 0}, {"number": 1}], concurrency_key="ledger", order=order)
    report = tick()
    assert (report.released, report.succeeded) == (1, others)
    with travel(HOUR):
        assert tick().succeeded == 2 - others


@pytest.mark.parametrize("run", [7, True, 2**63, "no such key", "no\0key", None])
def test_a_signal_to_no_run_is_refused(context: None, jobs: CronJobs, run: Any) -> None:
    with pytest.raises(NotFound, match=r"there is no run .* [gG]ive .*its id") as error:
        jobs.signal(run, "approved")
    assert "no such key" not in str(error.value)


def test_a_signal_that_is_not_committed_is_reported(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, enqueue: Enqueue, caplog: pytest.LogCaptureFixture
) -> None:
    (run_id,) = enqueue(waits(jobs))
    warning = f"Enqueued and never committed, so lost: the signal 'approved' to run {run_id}."
    with app.app_context():
        jobs.signal(run_id, "approved")
    assert warning in caplog.text
    caplog.clear()
    with app.app_context():
        jobs.signal(run_id, "approved")
        assert not jobs.signal(run_id, "approved")
        db.session.commit()
    assert caplog.text == ""


def test_a_signal_is_for_a_wait_alone(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    def close() -> None:
        if current_run.snoozes == 0:
            jobs.step("totals", lambda: 1)
            jobs.sleep("nap", 60)

    (run_id,) = enqueue(close)
    tick()
    assert not jobs.signal(run_id, "totals")
    assert not jobs.signal(run_id, "nap")
    db.session.commit()
    assert the_step(db, "totals").result == 1


@pytest.mark.parametrize("delay", [-1, None, "soon", timedelta(days=500)])
def test_a_delay_that_is_none_is_refused(jobs: CronJobs, perform: Perform, delay: Any) -> None:
    run = perform(lambda: jobs.sleep("nap", delay))
    assert run.error_type in ("TaskError", "TypeError")
    assert str(run.last_error).startswith("sleep: ")
