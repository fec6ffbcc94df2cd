"""FAULTS: work that a handler loses by misusing steps, signals or batches is always reported."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs, TickReport, current_run
from flask_cronjobs.features.steps.step_rows import ascends
from flask_cronjobs.models import JobRun, JobStep
from tests.handlers import Enqueue, both_kinds, labels, write
from tests.rows import the_run

Tick = Callable[[], TickReport]
Perform = Callable[..., JobRun]
pytestmark = pytest.mark.usefixtures("table")

IN_ORDER: list[Any] = [[1, 2, 3], ["a", "B"], ["10", "9"], [[1, "b"], [2, "a"]], [1, 1.5], [{}, {}]]


@pytest.mark.parametrize(
    ("chunks", "told"),
    [
        ([[6, 5]], "5 after 6"),
        ([[1, 2], [2, 3]], "2 after 2"),
        ([[1, 2], [1, 3]], "1 after 2"),
        ([["0b", "0a"]], "'0a' after '0b'"),
        ([["Zoë", "Ann"], ["Zoë", "Ann 2"]], "'Zoë' after 'Ann'"),
        ([[[1, 7], [1, 6]]], "[1, 6] after [1, 7]"),
        *(([chunk], None) for chunk in IN_ORDER),
    ],
)
def test_ids_that_do_not_ascend_are_refused(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform, chunks: list[Any], told: str | None
) -> None:
    """Other ids would be skipped. Texts have the database's order, so theirs is not guessed."""

    def find(after: Any) -> list[Any]:
        if after is None:
            return chunks[0]
        number = next(number for number, chunk in enumerate(chunks) if after in chunk)
        behind = chunks[number][::-1].index(after)
        return chunks[number][-behind:] if behind else [*chunks, []][number + 1]

    def close() -> None:
        for ids in jobs.each("invoices", find):
            write(db, str(ids))

    run = perform(close)
    if told is None:
        assert run.status == "succeeded"
    else:
        assert run.status in ("dead", "failed")
        assert f"each('invoices'): the function returned {told}" in str(run.last_error)
        assert labels(db) == [str(chunk) for chunk in chunks[:-1]]


@both_kinds
@pytest.mark.parametrize("is_ordered", [True, False])
def test_texts_in_an_order_of_the_database_s_own_are_judged_by_the_function(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform, is_ordered: bool, is_async: bool
) -> None:
    """If Python orders them differently, the function is asked what follows a chunk's first id."""
    order = "lower(name)" if is_ordered else "number"
    db.session.execute(text("CREATE TABLE people (number integer, name text)"))
    for number, name in enumerate(["Dan", "al", "Cy", "bo", "Eve", "fay"]):
        db.session.execute(text(f"INSERT INTO people VALUES ({number}, '{name}')"))
    db.session.commit()

    def find(after: Any) -> list[str]:
        behind = text(
            f"SELECT name FROM people WHERE lower(name) > lower(:after) ORDER BY {order} LIMIT 3"
        )
        return list(db.session.scalars(behind, {"after": after or ""}))

    async def find_async(after: Any) -> list[str]:
        return find(after)

    def close() -> None:
        for ids in jobs.each("people", find):
            write(db, " ".join(ids))

    async def close_async() -> None:
        async for ids in jobs.each("people", find_async):
            write(db, " ".join(ids))

    run = perform(close_async if is_async else close)
    if is_ordered:
        assert (run.status, labels(db)) == ("succeeded", ["Dan Eve fay", "al bo Cy"])
    else:
        assert labels(db) == []
        assert "the function returned 'al' after 'Dan'" in str(run.last_error)


def test_an_order_that_nobody_knows_is_not_judged() -> None:
    assert ascends(1, "a") is None
    assert ascends([1, "é"], [1, "f"]) is None


def test_a_list_in_the_place_of_the_function_is_refused(jobs: CronJobs, perform: Perform) -> None:
    run = perform(lambda: list(jobs.each("invoices", [1, 2])))  # type: ignore[call-overload]
    assert "each('invoices') was given [1, 2], which is not a function." in str(run.last_error)


@both_kinds
def test_a_loop_that_is_left_warns_of_its_chunk(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform, is_async: bool
) -> None:
    async def find(after: Any) -> list[int]:
        return [(after or 0) + 1]

    def close() -> str:
        for ids in jobs.each("invoices", lambda after: [(after or 0) + 1]):
            write(db, str(ids))
            if ids == [2]:
                break
        return "done"

    async def close_async() -> str:
        async for ids in jobs.each("invoices", find):
            write(db, str(ids))
            if ids == [2]:
                break
        return "done"

    run = perform(close_async if is_async else close)
    assert (run.status, run.result, labels(db)) == ("succeeded", "done", ["[1]"])
    assert "The loop over each('invoices') was left (by break" in str(run.last_error)
    assert "chunk 2" in str(run.last_error)


@pytest.mark.filterwarnings("error")
def test_a_step_that_is_not_awaited_is_reported(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform
) -> None:
    async def charge() -> None:
        write(db, "charged")

    async def order() -> str:
        jobs.step("charge", charge)  # type: ignore[unused-coroutine]
        jobs.each("rows", charge)  # type: ignore[arg-type]
        await jobs.step("last", charge)
        return "done"

    run = perform(order)
    gc.collect()
    assert (run.result, labels(db)) == ("done", ["charged"])
    assert "step('charge') was not awaited, so it was not done." in str(run.last_error)
    assert "each('rows') was called, but nothing iterated over it" in str(run.last_error)
    assert "last" not in str(run.last_error)


def test_chunks_of_an_async_function_are_not_for_a_plain_loop(
    jobs: CronJobs, perform: Perform
) -> None:
    async def find(after: Any) -> list[int]:
        return []

    async def close() -> None:
        for _ in jobs.each("rows", find):  # type: ignore[attr-defined]
            pass

    assert "Loop over its chunks with `async for`" in str(perform(close).last_error)


def swallow(call: Callable[[], object]) -> None:
    try:  # noqa: SIM105
        call()
    except:  # noqa: E722
        pass


@both_kinds
@pytest.mark.parametrize("behind", ["nothing", "a step", "progress", "once"])
def test_a_sleep_whose_interruption_was_swallowed_still_ends_the_attempt(
    jobs: CronJobs, tick: Tick, db: SQLAlchemy, enqueue: Enqueue, behind: str, is_async: bool
) -> None:
    called: list[str] = []
    calls = {
        "a step": lambda: jobs.step("early", write, db, "too early"),
        "progress": lambda: current_run.progress(0.5),
        "once": lambda: jobs.once("early", called.append, "too early"),
    }

    def order() -> str:
        swallow(lambda: jobs.sleep("a day", 86400))
        calls.get(behind, str)()
        return "a day too early"

    async def order_async() -> str:
        return order()

    enqueue(order_async if is_async else order)
    assert tick().released == 1
    assert (the_run(db).status, labels(db), called) == ("queued", [], [])


def test_a_timeout_that_was_swallowed_is_raised_again_by_the_next_step(
    jobs: CronJobs, perform: Perform
) -> None:
    def forever() -> None:
        while True:
            ...

    def order() -> str:
        swallow(forever)
        jobs.step("behind", lambda: None)
        return "went on"

    assert perform(order, timeout=1).error_type == "TimedOut"


def test_interruption_that_was_raised_is_not_raised_again_by_a_finally(
    jobs: CronJobs, tick: Tick, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    events: list[str] = []

    def order() -> None:
        try:
            jobs.sleep("a day", 86400)
        finally:
            current_run.progress(1.0)
            events.append("closed")

    enqueue(order)
    assert (tick().released, events) == (1, ["closed"])


def test_a_batch_that_is_never_entered_is_reported(
    context: None, jobs: CronJobs, perform: Perform, caplog: pytest.LogCaptureFixture
) -> None:
    warning = "The batch 'b' was made and never entered, so it does not exist"
    jobs.batch("b")
    assert warning in caplog.text

    def forgets() -> None:
        jobs.batch("b")

    assert warning in str(perform(forgets).last_error)
    caplog.clear()
    with jobs.batch("c"):
        pass
    assert "never entered" not in caplog.text


def test_a_signal_by_another_name_than_the_run_waits_for_is_not_sent(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue, caplog: pytest.LogCaptureFixture
) -> None:
    def order() -> Any:
        jobs.wait("approved", timeout=3600)
        return jobs.wait("paid", timeout=3600)

    (run_id,) = enqueue(order)
    assert jobs.signal(run_id, "paid")  # The run does not wait yet.
    db.session.rollback()
    tick()
    assert not jobs.signal(run_id, "approved2")
    assert f"signal('approved2') was not sent: run {run_id} waits for the signal 'approved'" in (
        caplog.text
    )
    assert jobs.signal(run_id, "approved")
    db.session.commit()
    assert [step.name for step in db.session.query(JobStep)] == ["approved"]
    tick()
    assert not jobs.signal(run_id, "approved")
    assert jobs.signal(run_id, "paid")
    assert caplog.text.count("was not sent") == 2


def test_a_signal_in_an_old_snapshot_does_not_claim_to_reach_a_run_that_has_ended(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    if db.engine.name == "sqlite":
        pytest.skip("There, a transaction with an old snapshot cannot write.")
    (run_id,) = enqueue(lambda: None)
    db.session.rollback()
    db.session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    db.session.execute(text("SELECT 1 FROM job_runs")).all()
    with app.app_context():
        jobs.cancel(run_id)
    assert not jobs.signal(run_id, "approved")
