"""FAULTS: a step's work and row are one commit, done once whichever attempt continues."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text, update

from flask_cronjobs import CronJobs, Discard, Retry, TickReport, current_run, in_run
from flask_cronjobs.models import JobFailure, JobRun, JobStep
from tests.handlers import AGAIN, LATER, Enqueue, both_kinds, labels, of_kind, write
from tests.rows import the_run

Tick = Callable[[], TickReport]
Perform = Callable[..., JobRun]
pytestmark = pytest.mark.usefixtures("table")


def steps(db: SQLAlchemy, *columns: Any) -> list[tuple[Any, ...]]:
    db.session.rollback()
    return [tuple(row) for row in db.session.execute(select(*columns).order_by(JobStep.id))]


def booking(db: SQLAlchemy, *labels: str) -> Callable[[], list[str]]:
    """Return the work of a step."""

    def book() -> list[str]:
        for label in labels:
            write(db, label)
        return list(labels)

    return book


def test_a_step_that_has_ended_is_not_called_again(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    results: list[object] = []

    def close() -> object:
        results.append(jobs.step("totals", booking(db, "a"), step_timeout=60))
        results.append(jobs.step("empty", lambda: None))
        if current_run.attempt == 1:
            raise RuntimeError("after the steps")
        return jobs.step("sum", lambda by, more: [by, more], 1, more=(2,))

    enqueue(close, retry=AGAIN)
    assert (tick().failed, the_run(db).status) == (1, "succeeded")
    assert (results, the_run(db).result) == ([["a"], None] * 2, [1, [2]])
    assert labels(db) == ["a"]
    recorded = steps(db, JobStep.name, JobStep.kind, JobStep.attempt)
    assert recorded == [("totals", "step", 1), ("empty", "step", 1), ("sum", "step", 2)]
    (first, *_), run = db.session.scalars(select(JobStep).order_by(JobStep.id)).all(), the_run(db)
    times = [first.started_at, first.finished_at, run.finished_at]
    assert times == sorted(filter(None, times))
    assert first.worker


def test_a_step_sends_its_statements_after_its_work_and_none_before(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform
) -> None:
    """All is in one transaction with the work; earlier attempts' steps were read once before."""
    ops: list[object] = []

    def see(_: object, __: object, statement: str, *rest: object) -> None:
        ops.extend(re.findall(r"(INSERT INTO|UPDATE|DELETE FROM|SELECT)\s+(\w+)", statement)[:1])

    def work(label: str) -> None:
        ops.append("works")
        write(db, label)

    def close() -> None:
        jobs.step("first", work, "a")
        ops.clear()
        event.listen(db.engine, "before_cursor_execute", see)
        jobs.step("second", work, "b")
        list(jobs.each("chunks", lambda after: [] if after else [1]))
        event.remove(db.engine, "before_cursor_execute", see)

    assert perform(close).status == "succeeded"
    by_end = [("INSERT INTO", "job_steps"), ("UPDATE", "job_runs")]
    ops = [op for op in ops if op != ("SELECT", "current_setting")]  # How to wait for locks.
    assert ops == ["works", ("INSERT INTO", "work"), *by_end, *by_end, *by_end]


def test_a_handler_s_own_progress_is_not_replaced_by_its_steps(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform
) -> None:
    def close() -> None:
        list(jobs.each("invoices", chunks_of(2, 3, [])))
        messages.append(the_run(db).progress_message)
        current_run.progress(0.5, "half")
        jobs.step("totals", lambda: None)

    messages: list[str | None] = []
    assert perform(close).progress_message == "half"
    assert messages == ["invoices, chunk 2"]


def test_the_work_of_a_step_that_fails_is_rolled_back(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform
) -> None:
    def fail() -> None:
        write(db, "half")
        raise KeyError("no such month")

    def close() -> list[str]:
        try:
            jobs.step("first", fail)
        except KeyError:
            return jobs.step("second", booking(db, "whole"))
        return []

    assert perform(close).result == ["whole"]
    assert labels(db) == ["whole"]
    assert steps(db, JobStep.name) == [("second",)]


def commit(db: SQLAlchemy) -> None:
    db.session.commit()


def remove_the_session(db: SQLAlchemy) -> None:
    db.session.remove()


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (commit, "A step called db.session.commit()"),
        (remove_the_session, "A step called db.session.remove()"),
    ],
)
def test_a_step_does_not_end_the_transaction(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform, end: Any, says: str
) -> None:
    def work() -> None:
        write(db, "early")
        end(db)

    run = perform(lambda: jobs.step("totals", work), retry=LATER)
    assert (run.error_type, labels(db), steps(db, JobStep.name)) == ("AtomicCommit", [], [])
    assert str(run.last_error).startswith(says)
    assert run.status == "failed"


def chunks_of(size: int, last: int, seen: list[object]) -> Callable[[Any], list[int]]:
    """Yield the ids 1 to *last* in chunks."""

    def next_ids(after: int | None) -> list[int]:
        seen.append(after)
        first = 1 if after is None else after + 1
        return list(range(first, min(first + size, last + 1)))

    return next_ids


def test_chunks_continue_after_the_last_that_has_ended(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    offsets: list[object] = []

    def close() -> None:
        for ids in jobs.each("invoices", chunks_of(2, 5, offsets)):
            for number in ids:
                write(db, str(number))
                if number == 4 and current_run.attempt == 1:
                    raise RuntimeError("in the second chunk")
        assert list(jobs.each("none", lambda after: ())) == []

    enqueue(close, retry=AGAIN)
    assert (tick().succeeded, labels(db)) == (1, ["1", "2", "3", "4", "5"])
    assert offsets == [None, 2, 2, 4, 5]
    columns = (JobStep.name, JobStep.kind, JobStep.result, JobStep.chunks, JobStep.attempt)
    assert steps(db, *columns) == [("invoices", "each", 5, 3, 2), ("none", "each", None, 0, 2)]
    assert steps(db, JobStep.finished_at.is_(None)) == [(False,)] * 2
    assert the_run(db).progress_message == "none"


@both_kinds
@pytest.mark.parametrize("how", ["the loop breaks", "its body raises", "the next ids fail"])
def test_a_chunk_that_is_left_is_rolled_back_and_not_finished(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform, how: str, is_async: bool
) -> None:
    """It happens at once, so that the next step can begin, also in an async handler."""
    find = chunks_of(2, 5, [])

    def next_ids(after: int | None) -> list[int]:
        if after and how == "the next ids fail":
            write(db, "[3, 4]")
            raise KeyError
        return find(after)

    def leaves(ids: list[int]) -> bool:
        write(db, str(ids))
        if ids == [3, 4] and how == "its body raises":
            raise KeyError
        return ids == [3, 4]

    def close() -> object:
        with suppress(KeyError):
            for ids in jobs.each("invoices", next_ids):
                if leaves(ids):
                    break
        return jobs.step("behind", lambda: "goes on")

    async def close_async() -> object:
        with suppress(KeyError):
            async for ids in jobs.each("invoices", of_kind(True, next_ids)):
                if leaves(ids):
                    break
        return jobs.step("behind", lambda: "goes on")

    assert perform(close_async if is_async else close).result == "goes on"
    assert labels(db) == ["[1, 2]"]
    recorded = steps(db, JobStep.name, JobStep.result, JobStep.finished_at.is_(None))
    assert recorded == [("invoices", 2, True), ("behind", "goes on", False)]


def test_async_handlers_have_the_same_by_await(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    async def compute(month: int) -> int:
        write(db, f"totals {month}")
        await asyncio.sleep(0)
        return month

    async def next_ids(after: int | None) -> list[int]:
        await asyncio.sleep(0)
        return [after + 1 if after else 1] if after != 3 else []

    async def close(month: int) -> int:
        total = await jobs.step("totals", compute, month)
        async for ids in jobs.each("invoices", next_ids):
            write(db, str(ids))
        if current_run.attempt == 1:
            raise RuntimeError("after the steps")
        return total

    enqueue(close, [{"month": 7}, {"month": 8}], retry=AGAIN)
    tick()
    assert labels(db) == sorted(["[1]", "[2]", "[3]"] * 2 + ["totals 7", "totals 8"])
    results = list(db.session.scalars(select(JobRun.result).order_by(JobRun.id)))
    assert results == [7, 8]


@both_kinds
def test_a_step_has_a_timeout_of_its_own(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform, is_async: bool
) -> None:
    def last() -> None:
        write(db, "half")
        until = time.monotonic() + 30
        while time.monotonic() < until:
            time.sleep(0.01)

    async def last_async() -> None:
        write(db, "half")
        await asyncio.sleep(30)

    def close() -> None:
        jobs.step("long", last, step_timeout=timedelta(seconds=0.1))

    async def close_async() -> None:
        await jobs.step("long", last_async, step_timeout=0.1)

    run = perform(close_async if is_async else close)
    assert (run.status, run.error_type, labels(db)) == ("dead", "TimedOut", [])


def test_a_timeout_error_of_the_function_is_its_own(jobs: CronJobs, perform: Perform) -> None:
    async def fetch() -> None:
        raise asyncio.TimeoutError("the server did not answer")

    async def close() -> str:
        try:
            await jobs.step("rates", fetch, step_timeout=60)
        except asyncio.TimeoutError:
            return "caught"
        return ""

    assert perform(close).result == "caught"


def nested(db: SQLAlchemy, jobs: CronJobs) -> None:
    jobs.step("outer", lambda: jobs.step("inner", lambda: None))


def nested_in_chunk(db: SQLAlchemy, jobs: CronJobs) -> None:
    for _ in jobs.each("outer", lambda after: [1]):
        jobs.step("inner", lambda: None)


def twice(db: SQLAlchemy, jobs: CronJobs) -> None:
    jobs.step("same", lambda: None)
    jobs.step("same", lambda: None)


def uncommitted(db: SQLAlchemy, jobs: CronJobs) -> None:
    write(db, "before")
    jobs.step("totals", lambda: None)


def no_function(db: SQLAlchemy, jobs: CronJobs) -> None:
    jobs.step("totals", None)  # type: ignore[arg-type]


def no_arguments(db: SQLAlchemy, jobs: CronJobs) -> None:
    jobs.step("totals")  # type: ignore[call-arg]


def no_json(db: SQLAlchemy, jobs: CronJobs) -> None:
    jobs.step("totals", object)


def unawaited(db: SQLAlchemy, jobs: CronJobs) -> None:
    jobs.step("totals", asyncio.sleep, 0)  # type: ignore[unused-coroutine]


def the_same_ids(db: SQLAlchemy, jobs: CronJobs) -> None:
    for _ in jobs.each("invoices", lambda after: [1]):
        pass


def no_ids(db: SQLAlchemy, jobs: CronJobs) -> None:
    forgets_to_return: Any = lambda after: None  # noqa: E731
    for _ in jobs.each("invoices", forgets_to_return):
        pass


def no_name(db: SQLAlchemy, jobs: CronJobs) -> None:
    jobs.step("", lambda: None)


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (nested, "step('inner') is called while the step 'outer' is running."),
        (nested_in_chunk, "step('inner') is called while the step 'outer' is running."),
        (twice, "The step 'same' occurs twice in this attempt: "),
        (uncommitted, "step('totals') begins with uncommitted work in db.session: 1 INSERT"),
        (no_function, "step('totals'): the function is None."),
        (no_arguments, "step() takes a string and the function by position: step('mail:5', send"),
        (
            no_json,
            "step('totals') cannot keep its result, which must be small JSON: result is of type",
        ),
        (unawaited, "step('totals') was given an async function in a plain handler."),
        (the_same_ids, "each('invoices'): the function was given 1 and returned ids up to it"),
        (no_ids, "each('invoices'): the function returned None. Return the next ids in a list"),
        (no_name, "step: the name is ''"),
    ],
)
def test_misuse_is_refused_with_a_sentence(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform, misuse: Any, says: str
) -> None:
    run = perform(lambda: misuse(db, jobs))
    assert str(run.last_error).startswith(says)
    if misuse is twice:
        first = misuse.__code__.co_firstlineno
        for line in (first + 1, first + 2):
            assert f"{__file__}, line {line}" in str(run.last_error)
    assert labels(db) == []


def test_a_changed_step_needs_a_new_name(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    def close() -> None:
        if current_run.attempt == 1:
            jobs.step("same", lambda: None)
            raise RuntimeError
        list(jobs.each("same", lambda after: []))

    enqueue(close, retry=AGAIN)
    tick()
    assert "has the name of step('same'), which this run has recorded already" in str(
        the_run(db).last_error
    )


def test_steps_are_for_runs_alone(jobs: CronJobs, perform: Perform) -> None:
    assert not in_run()
    with pytest.raises(RuntimeError, match="outside a run"):
        jobs.step("totals", lambda: None)
    run = perform(lambda: jobs.step("totals", lambda: None), atomic=True)
    assert "in a task with atomic=True" in str(run.last_error)


def three_steps(jobs: CronJobs, db: SQLAlchemy, between: Callable[[], object]) -> Any:
    """A handler with one step and two chunks."""

    def close() -> str:
        jobs.step("totals", booking(db, "totals"))
        for ids in jobs.each("invoices", chunks_of(1, 2, [])):
            write(db, str(ids))
            between()
        return "done"

    return close


def test_a_tick_past_its_budget_gives_the_run_back_at_the_end_of_a_step(
    db: SQLAlchemy, jobs: CronJobs, enqueue: Enqueue
) -> None:
    """The run continues from tick to tick, and no attempt counts."""
    enqueue(three_steps(jobs, db, lambda: None))
    for expected in (["totals"], ["[1]", "totals"], ["[1]", "[2]", "totals"]):
        report = jobs.tick(budget=0)
        assert (report.released, labels(db)) == (1, expected)
        run = the_run(db)
        assert (run.status, run.attempts, run.locked_by) == ("queued", 0, None)
    assert jobs.tick(budget=0).released == 1  # The chunks have ended.
    assert jobs.tick(budget=0).succeeded == 1
    assert the_run(db).attempts == 1


def test_a_pause_takes_effect_at_the_end_of_a_step(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    paused: list[int] = []

    def pause() -> None:
        # On SQLite, the session holds the lock.
        db.session.execute(
            text("INSERT INTO job_pauses (kind, name) VALUES ('queue', 'default')")
        ) if not paused else None
        paused.append(1)

    enqueue(three_steps(jobs, db, pause))
    assert (tick().released, labels(db)) == (1, ["[1]", "totals"])
    jobs.resume(queue="default")
    assert (tick().succeeded, labels(db)) == (1, ["[1]", "[2]", "totals"])


def test_a_cancel_takes_effect_at_the_end_of_a_step(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    def cancel() -> None:
        db.session.execute(update(JobRun).values(cancel_requested_at=JobRun.run_at))

    enqueue(three_steps(jobs, db, cancel))
    assert (tick().cancelled, labels(db)) == (1, ["[1]", "totals"])
    assert the_run(db).error_type == "Cancelled"


def test_an_attempt_that_has_finished_a_step_does_not_count(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    """Earlier attempts do not count either, and the delay starts again."""
    fails, attempts = iter([True, False, True, True, False]), list[int]()

    def delay(attempt: int, error: BaseException) -> float:
        attempts.append(attempt)
        return 0

    def close() -> None:
        if next(fails, True):
            raise RuntimeError("before any step")
        jobs.step(f"step {current_run.attempt}", lambda: None)
        raise RuntimeError("after a step")

    enqueue(close, retry=delay)
    db.session.execute(update(JobRun).values(max_attempts=3))
    db.session.commit()
    tick()
    run = the_run(db)
    # 1 fails, 2 ends a step, 3 and 4 fail, 5 ends a step, 6 and 7 fail, and 8 is the last.
    assert (run.status, run.attempts, run.max_attempts, run.forgiven) == ("dead", 8, 8, 5)
    assert attempts == [1, 1, 1, 2, 1, 1, 2, 3]
    assert db.session.query(JobFailure).count() == 8


def test_the_steps_of_a_lost_worker_are_progress(
    db: SQLAlchemy, tick: Tick, enqueue: Enqueue
) -> None:
    enqueue(lambda: None, retry=Retry(max_attempts=2, base=600, jitter=False))
    values = {"attempts": 5, "max_attempts": 7, "forgiven": 5, "status": "running"}
    running = {"locked_by": "a:1:b", "locked_until": JobRun.run_at, "started_at": JobRun.run_at}
    db.session.execute(update(JobRun).values(values | running))
    db.session.commit()
    tick()
    run = the_run(db)
    assert (run.status, run.attempts) == ("failed", 5)
    assert run.failed_at is not None
    assert run.run_at - run.failed_at < timedelta(seconds=601)


def test_a_run_is_not_forgiven_for_ever(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    def close() -> None:
        jobs.step(f"step {current_run.attempt}", lambda: None)
        raise RuntimeError("after a step")

    enqueue(close, retry=Retry(max_attempts=2, base=0))
    values = {"attempts": 999, "max_attempts": 1000, "forgiven": 998}
    db.session.execute(update(JobRun).values(values))
    db.session.commit()
    tick()
    run = the_run(db)
    assert (run.status, run.attempts, run.forgiven) == ("dead", 1002, 1000)


def test_a_step_is_done_once_though_a_hook_of_the_commit_raises(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    def fail_once(session: object) -> None:
        event.remove(db.session(), "after_commit", fail_once)
        raise RuntimeError("in a hook")

    def close() -> object:
        if current_run.attempt == 1:
            event.listen(db.session(), "after_commit", fail_once)
        jobs.step("totals", booking(db, "a"))
        raise Discard("enough")

    enqueue(close, retry=AGAIN)
    tick()
    assert (labels(db), the_run(db).status) == (["a"], "cancelled")
