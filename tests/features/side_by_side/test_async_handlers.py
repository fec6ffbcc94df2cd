"""Async handlers run side by side, each as if it were alone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from flask import Flask, g
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text, update

from flask_cronjobs import CronJobs, Retry, TaskError, current_run, signals
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.core.worker.held_runs import HeldRuns
from flask_cronjobs.models import JobEffect, JobRun
from flask_cronjobs.text.redaction import type_name
from flask_cronjobs.types import Outcome
from tests.handlers import AGAIN, GIVEN_BACK, LATER, Enqueue, ends, holders
from tests.marks import on_sqlite

pytestmark = pytest.mark.usefixtures("context")


class Crowd:
    """Counts the handlers that run at the same time."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def visit(self, name: str, seconds: float = 0.03) -> None:
        """Stay in the handler for a while."""
        for key in (name, "all"):
            self.now[key] += 1
            self.most[key] = max(self.most[key], self.now[key])
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now.subtract((name, "all"))


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until *condition* holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def limit(app: Flask, most: int) -> None:
    """Set ``CRONJOBS_ASYNC_AT_ONCE``."""
    object.__setattr__(state_of(app).settings, "async_at_once", most)


def test_each_has_its_own_run_context_and_session(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    identities: list[tuple[int, int, int]] = []

    def look() -> tuple[int, int, int]:
        return current_run.id, id(g._get_current_object()), id(db.session())

    async def meets(number: int) -> None:
        g.number = number
        mine = look()
        identities.append(mine)
        await until(lambda: len(identities) == 5)
        assert (g.number, look()) == (number, mine)

    enqueue(meets, [{"number": number} for number in range(5)])
    assert jobs.tick().succeeded == 5
    for part in range(3):
        assert len({identity[part] for identity in identities}) == 5


def test_end_of_one_leaves_the_session_of_another_as_it_is(jobs: CronJobs, db: SQLAlchemy) -> None:
    with db.engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (label text)"))
    starts, ended = list[str](), list[str]()

    @jobs.task
    async def reads_on() -> None:
        session = db.session()
        assert db.session.scalars(text("SELECT count(*) FROM notes")).one() == 0
        transaction = session.get_transaction()
        starts.append("reads_on")
        await until(lambda: ended)
        assert db.session() is session
        assert session.get_transaction() is transaction
        db.session.execute(text("INSERT INTO notes VALUES ('mine')"))
        db.session.commit()

    @jobs.task
    async def ends_meanwhile() -> None:
        db.session.execute(text("SELECT 1"))
        await until(lambda: starts)

    def note(sender: Flask, outcome: Any) -> None:
        if outcome.job_type == "ends_meanwhile":
            ended.append(outcome.kind)

    reads_on.using(commit=True).enqueue()
    ends_meanwhile.using(commit=True).enqueue()
    with signals.run_succeeded.connected_to(note):
        assert jobs.tick().succeeded == 2
    assert db.session.scalars(text("SELECT label FROM notes")).all() == ["mine"]


@pytest.mark.parametrize(
    ("most", "options", "last_error", "at_once"),
    [
        (1, {}, None, 1),
        (100, {"concurrency": 2}, None, 2),
        (100, {"async_at_once": 2}, None, 2),
        (100, {"atomic": True}, None, 1),
        (100, {"retry": Retry(max_attempts=10)}, "WorkerLost", 1),
    ],
    ids=["limit of one", "concurrency key", "limit of the task", "atomic", "after a lost worker"],
)
def test_as_many_run_at_once_as_is_allowed(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue,
    most: int, options: dict[str, Any], last_error: str | None, at_once: int,
) -> None:  # fmt: skip
    limit(app, most)
    crowd = Crowd()

    async def works() -> None:
        await crowd.visit("works", 0.1)
        db.session.execute(text("SELECT 1"))

    enqueue(works, [{}] * 6, **options)
    if last_error:
        db.session.execute(update(JobRun).values(attempts=1, error_type=last_error))
        db.session.commit()
    assert jobs.tick().succeeded == 6
    assert crowd.most["works"] == at_once


def test_timeout_cancels_one_and_no_other(jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue) -> None:
    events: list[str] = []

    async def too_long() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    async def other() -> None:
        await until(lambda: events)
        await asyncio.sleep(0.05)

    enqueue(too_long, timeout=0.3, retry=LATER)
    enqueue(other)
    report = jobs.tick()
    assert (report.succeeded, report.failed) == (1, 1)
    assert ends(db) == [("failed", "TimedOut"), ("succeeded", None)]
    error = db.session.scalars(select(JobRun.last_error).order_by(JobRun.id)).first()
    assert error == "the handler ran longer than its timeout of 0.3 s"
    assert events == ["cancelled"]


def test_operator_s_cancel_and_a_lost_lease_end_those_that_they_mean(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    run_ids: dict[str, int] = {}
    lose = text("UPDATE job_runs SET locked_by = 'another:1:worker' WHERE id = :id")

    async def waits(name: str) -> None:
        run_ids[name] = current_run.id
        await asyncio.sleep(60)

    async def acts() -> str:
        await until(lambda: len(run_ids) == 2)
        db.session.execute(lose, {"id": run_ids["lost"]})
        db.session.commit()
        jobs.cancel(run_ids["cancelled"])
        return "acted"

    enqueue(waits, [{"name": "cancelled"}, {"name": "lost"}])
    enqueue(acts)
    began = time.monotonic()
    report = jobs.tick()
    assert time.monotonic() - began < 50
    assert (report.succeeded, report.cancelled, report.lost) == (1, 1, 1)
    assert [status for status, _ in ends(db)] == ["cancelled", "running", "succeeded"]


def test_retries_are_side_by_side_but_a_last_attempt_is_alone(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    crowds = {attempt: Crowd() for attempt in (1, 2, 3)}

    async def fails() -> None:
        await crowds[current_run.attempt].visit("it", 0.1)
        raise ValueError(current_run.attempt)

    enqueue(fails, [{}] * 4, retry=Retry(max_attempts=3, base=0, jitter=False))
    for _ in range(3):
        jobs.tick()
    assert ends(db) == [("dead", "ValueError")] * 4
    assert crowds[1].most["it"] > 1
    assert crowds[2].most["it"] > 1
    assert crowds[3].most["it"] == 1


@pytest.mark.parametrize("in_a_task", [False, True])
def test_handler_that_blocks_is_named_and_ended_at_its_timeout(
    jobs: CronJobs,
    db: SQLAlchemy,
    caplog: pytest.LogCaptureFixture,
    in_a_task: bool,
    enqueue: Enqueue,
) -> None:
    starts: list[bool] = []

    async def block() -> None:
        await until(lambda: starts)
        time.sleep(60)

    @jobs.task(timeout=2, retry=LATER)
    async def blocks() -> None:
        await (asyncio.create_task(block()) if in_a_task else block())

    async def other() -> str:
        starts.append(True)
        for _ in range(10):
            await asyncio.sleep(0.01)
        return "went on"

    blocks.using(commit=True).enqueue()
    enqueue(other)
    began = time.monotonic()
    report = jobs.tick()
    assert time.monotonic() - began < 50
    assert (report.succeeded, report.failed) == (1, 1)
    assert ends(db) == [("failed", "TimedOut"), ("succeeded", None)]
    assert caplog.text.count("task blocks, run 1: its handler has blocked the event loop") == 1


@pytest.mark.parametrize("how", ["task", "thread"])
def test_run_has_not_ended_before_its_tasks_and_threads(
    jobs: CronJobs, how: str, enqueue: Enqueue
) -> None:
    at_work: list[int] = []
    running_ids: list[list[int]] = []

    async def in_task(attempt: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)
            at_work.remove(attempt)

    def in_thread(attempt: int) -> None:
        time.sleep(0.8)
        at_work.remove(attempt)

    async def leaves() -> None:
        attempt = current_run.attempt
        running_ids.append(list(at_work))
        if attempt > 1:
            return
        at_work.append(attempt)
        if how == "task":
            remaining.append(asyncio.create_task(in_task(attempt)))
            await asyncio.sleep(60)
        await asyncio.to_thread(in_thread, attempt)

    remaining: list[asyncio.Task[None]] = []
    enqueue(leaves, timeout=0.3, retry=AGAIN)
    report = jobs.tick()
    assert (report.failed, report.succeeded) == (1, 1)
    assert running_ids == [[], []]


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_error_of_one_or_of_its_task_does_not_stop_the_others(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue, error: type[BaseException]
) -> None:
    ended: list[str] = []

    async def raises() -> None:
        raise error

    async def direct() -> None:
        ended.append("direct")
        raise error

    async def in_task() -> None:
        ended.append("in_task")
        await asyncio.create_task(raises())

    async def other() -> None:
        await until(lambda: len(ended) == 2)
        await asyncio.sleep(0.05)

    for task in (direct, in_task):
        enqueue(task, retry=LATER)
    enqueue(other)
    report = jobs.tick()
    assert (report.succeeded, report.failed) == (1, 2)
    assert ends(db) == [("failed", type_name(error()))] * 2 + [("succeeded", None)]


@on_sqlite
@pytest.mark.parametrize("pressed", [False, True], ids=["raised", "pressed"])
def test_interrupt_from_the_keyboard_gives_all_back(
    jobs: CronJobs, db: SQLAlchemy, pressed: bool, enqueue: Enqueue
) -> None:
    run_ids: list[int] = []

    async def waits() -> None:
        run_ids.append(current_run.id)
        await asyncio.sleep(60)

    async def interrupted() -> None:
        await until(lambda: len(run_ids) == 3)
        if not pressed:
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    enqueue(waits, [{}] * 3)
    enqueue(interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.tick()
    assert holders(db) == [GIVEN_BACK] * 4


def test_once_in_handlers_side_by_side(jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue) -> None:
    numbers: list[int] = []

    def do(number: int) -> int:
        numbers.append(number)
        return number

    async def mails(number: int) -> list[Any]:
        await asyncio.sleep(0)
        shared = jobs.once("shared", do, -1)
        own = await asyncio.to_thread(jobs.once, f"own-{number}", do, number)
        return [shared, own]

    enqueue(mails, [{"number": number} for number in range(6)])
    assert jobs.tick().succeeded == 6
    assert sorted(numbers) == [-1, *range(6)]
    results = db.session.scalars(select(JobRun.result).order_by(JobRun.id)).all()
    assert results == [[-1, number] for number in range(6)]
    assert set(db.session.scalars(select(JobEffect.state))) == {"done"}


def test_one_outcome_counts_of_a_run_that_its_worker_has_claimed_twice(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt has lost its lease but continues; both end at once."""
    attempts: list[int] = []
    ended: list[tuple[str, int]] = []
    collect = HeldRuns.collect

    def collect_both(self: HeldRuns, pause: float) -> list[Outcome]:
        outcomes = collect(self, pause)
        while len(outcomes) == 1:
            outcomes += collect(self, 1.0)
        return outcomes

    monkeypatch.setattr(HeldRuns, "collect", collect_both)

    async def it() -> None:
        attempts.append(current_run.attempt)
        if len(attempts) == 1:
            with db.engine.begin() as connection:  # This simulates a lease that has ended.
                connection.execute(
                    update(JobRun).values(status="failed", locked_by=None, locked_until=None)
                )
            while len(attempts) == 1:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)

    def note(sender: Flask, outcome: Outcome) -> None:
        ended.append((outcome.kind, outcome.attempt))

    enqueue(it, retry=Retry(max_attempts=3, base=0))
    with signals.run_succeeded.connected_to(note), signals.run_failed.connected_to(note):
        report = jobs.tick()
    assert attempts == [1, 2]
    assert (report.succeeded, report.failed, report.lost) == (1, 0, 1)
    assert ended == [("succeeded", 2)]
    assert ends(db) == [("succeeded", None)]


@pytest.mark.parametrize("blocks", [False, True], ids=["all places taken", "loop blocked"])
def test_runs_behind_handlers_that_take_long_are_left_to_other_workers(
    app: Flask, jobs: CronJobs, blocks: bool
) -> None:
    limit(app, 2)
    hanging, ended, failed = list[int](), list[int](), list[int]()
    hang_number = 1 if blocks else 2

    @jobs.task
    async def fetch(hangs: bool = False) -> None:
        if not hangs:
            ended.append(current_run.id)
            return
        hanging.append(current_run.id)
        end = time.monotonic() + 60
        while blocks and len(ended) < 80:
            assert time.monotonic() < end
            time.sleep(0.01)
        await until(lambda: len(ended) == 80)

    def work_first() -> None:
        with app.app_context():
            failed.append(jobs.tick().failed)

    runs: list[dict[str, Any]] = [{}] * 40
    fetch.using(commit=True).enqueue_many([*runs, *[{"hangs": True}] * hang_number])
    first = threading.Thread(target=work_first)
    first.start()
    while len(hanging) < hang_number and first.is_alive():
        time.sleep(0.01)
    fetch.using(commit=True).enqueue_many(runs)
    while len(ended) < 80 and first.is_alive():
        time.sleep(0.5)
        jobs.tick()
    first.join()
    assert failed == [0]


@on_sqlite
def test_others_get_their_turn_in_the_order_of_the_queue(app: Flask, jobs: CronJobs) -> None:
    """The async backlog takes longer than a turn; by then the plain run is first in the queue."""
    limit(app, 4)
    order: list[str] = []

    @jobs.task
    async def waits() -> None:
        order.append("waits")
        await asyncio.sleep(0.1)

    @jobs.task
    def plain() -> None:
        order.append("plain")

    waits.using(commit=True).enqueue_many([{}] * 30)
    plain.using(commit=True, priority=-1).enqueue()
    waits.using(commit=True, priority=-2).enqueue_many([{}] * 60)
    assert jobs.tick().succeeded == 91
    assert order.index("plain") < 75


def test_limit_of_a_task_whose_runs_are_alone_is_refused(jobs: CronJobs) -> None:
    with pytest.raises(TaskError, match="atomic=True"):
        jobs.task(async_at_once=2, atomic=True)(until)
