"""``order="strict"`` from enqueue to the last outcome, and in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs, Retry, current_run
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.worker.admission import Prefetch, Wanted
from flask_cronjobs.features.side_by_side.kinds import AsyncKinds
from flask_cronjobs.insights.run_payloads import run_again
from flask_cronjobs.models import JobDefinition, JobRun
from tests.rows import now, statuses

pytestmark = pytest.mark.usefixtures("context")

SOON = Retry(max_attempts=3, backoff="fixed", base=0, jitter=False)


class Ledger:
    """A task in strict order, and what it did.

    :ivar fail: how often each number still fails.
    """

    def __init__(self, jobs: CronJobs, db: SQLAlchemy, **options: Any) -> None:
        self._jobs, self._db = jobs, db
        self.done: list[tuple[str, int]] = []
        self.fail: dict[int, int] = {}

        @jobs.task(
            **{"concurrency_key": "account:{account}", "order": "strict", "retry": SOON, **options}
        )
        def book(number: int, account: str = "a") -> None:
            if self.fail.get(number, 0) > 0:
                self.fail[number] -= 1
                raise RuntimeError("it failed")
            self.done.append((account, number))

        self.book = book

    def enqueue(self, numbers: Sequence[int], account: str = "a") -> list[int]:
        return self.book.enqueue_many([{"number": n, "account": account} for n in numbers])

    def tick(self, times: int = 1) -> None:
        self._db.session.commit()
        for _ in range(times):
            self._jobs.tick()

    def of(self, account: str) -> list[int]:
        return [number for name, number in self.done if name == account]


MakeLedger = Callable[..., Ledger]


@pytest.fixture
def ledger(jobs: CronJobs, db: SQLAlchemy) -> MakeLedger:
    """Return a function that declares the task with options."""
    return lambda **options: Ledger(jobs, db, **options)


@pytest.fixture
def dead(db: SQLAlchemy) -> Callable[[], int]:
    """Return the id of the one dead run."""
    return lambda: db.session.scalars(select(JobRun.id).where(JobRun.status == "dead")).one()


def test_order_continues_after_a_dead_run(
    jobs: CronJobs, db: SQLAlchemy, ledger: MakeLedger, dead: Callable[[], int]
) -> None:
    books = ledger()
    books.fail = {1: 3}
    books.enqueue(range(4))
    books.tick(5)
    assert books.of("a") == [0, 2, 3]
    assert statuses(db) == ["succeeded", "dead", "succeeded", "succeeded"]
    jobs.retry(dead())
    books.tick()
    assert books.of("a") == [0, 2, 3, 1]


def test_run_that_is_open_behind_one_that_is_parked_is_parked_too(
    jobs: CronJobs, db: SQLAlchemy, ledger: MakeLedger
) -> None:
    """Rows were changed by hand. The tick opens the first run, which is not due."""
    books = ledger()
    first, behind = books.enqueue(range(2))
    later = now() + timedelta(hours=1)
    values = {"run_at": later, "gate": "order"}
    db.session.execute(update(JobRun).where(JobRun.id == first).values(**values))
    books.enqueue([10], "b")
    db.session.commit()
    jobs.tick(budget=2)
    assert (books.of("a"), books.of("b")) == ([], [10])
    rows = select(JobRun.status, JobRun.attempts, JobRun.gate).where(JobRun.id <= behind)
    stored = db.session.execute(rows.order_by(JobRun.id)).all()
    assert [tuple(row) for row in stored] == [("queued", 0, None), ("queued", 0, "order")]


@pytest.mark.parametrize("atomic", [False, True])
def test_order_is_that_of_ids_also_with_priorities_and_keys(
    ledger: MakeLedger, atomic: bool
) -> None:
    books = ledger(atomic=atomic, unique="{number}")
    ids: list[int] = []
    for priority, numbers in enumerate(((4, 3), (2, 1, 0))):
        book = books.book.using(priority=priority)
        ids += book.enqueue_many([{"number": number} for number in numbers])
    books.tick()
    assert ids == sorted(ids)
    assert books.of("a") == [4, 3, 2, 1, 0]


def test_slots_of_a_definition_are_in_order_too(jobs: CronJobs, db: SQLAlchemy) -> None:
    times: list[datetime] = []

    @jobs.task(
        schedule="* * * * *", catchup="all", overlap="allow",
        concurrency_key="statement", order="strict",
    )  # fmt: skip
    def statement() -> None:
        times.append(current_run.scheduled_for)

    jobs.tick()
    row = db.session.scalars(select(JobDefinition)).one()
    back = now().replace(second=0, microsecond=0) - timedelta(minutes=5)
    row.next_run_at = row.considered_until = back
    db.session.commit()
    jobs.tick()
    assert len(times) >= 5
    assert times == sorted(times)
    orders = db.session.execute(select(JobRun.strict, JobRun.gate).distinct())
    assert orders.all() == [(True, None)]
    assert db.session.get_one(JobRun, jobs.run_now("statement")).strict


def test_run_again_is_a_new_run_at_the_end(
    db: SQLAlchemy, state: State, ledger: MakeLedger, dead: Callable[[], int]
) -> None:
    books = ledger()
    books.fail = {0: 3}
    books.enqueue(range(2))
    books.tick(3)
    new = run_again(state, dead())
    assert db.session.get_one(JobRun, new).strict
    books.enqueue([2])
    books.tick()
    assert books.of("a") == [1, 0, 2]


def test_run_that_was_claimed_ahead_gives_way_to_an_earlier_one_that_is_retried(
    jobs: CronJobs, db: SQLAlchemy, ledger: MakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prefetch, "wanted", lambda self, held, idle, busy: Wanted(10 * idle))
    books = ledger()
    seen: list[str] = []

    @jobs.task(priority=1)
    def retries() -> None:
        seen.extend(statuses(db))
        jobs.retry(first)

    first, _ = books.enqueue(range(2))
    retries.using(commit=True).enqueue()
    jobs.cancel(first)
    books.tick()
    assert seen == ["cancelled", "running", "running"], "the follower was not claimed ahead"
    assert books.of("a") == [0, 1]
    assert set(db.session.scalars(select(JobRun.attempts))) == {1}


def test_async_run_that_was_claimed_ahead_gives_way_too(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AsyncKinds, "_ahead", lambda self: 10)
    two = replace(state, settings=replace(state.settings, async_at_once=2))
    monkeypatch.setitem(app.extensions, "cronjobs", two)
    booked: list[int] = []

    @jobs.task(concurrency_key="ledger", order="strict")
    async def book(number: int) -> None:
        booked.append(number)

    @jobs.task(priority=1)
    async def retries() -> None:
        while statuses(db)[1] == "queued":
            await asyncio.sleep(0.005)
        if statuses(db)[0] == "cancelled":
            jobs.retry(first)

    first, _ = book.enqueue_many([{"number": number} for number in range(2)])
    retries.using(commit=True).enqueue_many([{}] * 2)
    jobs.cancel(first)
    jobs.tick()
    jobs.tick()
    assert statuses(db) == ["succeeded"] * 4
    assert booked == [0, 1]


def test_then_of_a_batch_takes_its_place_in_the_order(
    jobs: CronJobs, db: SQLAlchemy, ledger: MakeLedger
) -> None:
    books = ledger()
    work = jobs.task(name="work")(lambda: None)
    with jobs.batch("b", then=books.book, then_payload={"number": 2}):
        work.enqueue()
        books.enqueue([1])
    books.tick()
    books.enqueue([3])
    books.tick()
    assert books.of("a") == [1, 2, 3]
    gates = select(JobRun.strict, JobRun.gate).where(JobRun.job_type == "book")
    assert {tuple(row) for row in db.session.execute(gates)} == {(True, None)}
