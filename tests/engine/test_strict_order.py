"""``order="strict"`` from enqueue to the last outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text

from flask_cronjobs import CronJobs, NewRun, Retry
from flask_cronjobs.engine.worker.admission import Admission, Prefetch
from flask_cronjobs.errors import StateConflict
from flask_cronjobs.jobs.runs.payloads import retry_with, run_again
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import OnDead

SOON = Retry(max_attempts=3, backoff="fixed", base=0, jitter=False)


class Ledger:
    """Tasks in strict order, and what they did."""

    def __init__(self, jobs: CronJobs, on_dead: OnDead | None = None, atomic: bool = False) -> None:
        self.done: list[tuple[str, int]] = []
        self.fail: dict[int, int] = {}

        @jobs.task(
            concurrency_key="account:{account}", order="strict", on_dead=on_dead,
            retry=SOON, atomic=atomic,
        )  # fmt: skip
        def book(account: str, number: int) -> None:
            if self.fail.get(number, 0) > 0:
                self.fail[number] -= 1
                raise RuntimeError("it failed")
            self.done.append((account, number))

        self.book = book

    def enqueue(self, account: str, numbers: Sequence[int]) -> None:
        self.book.enqueue_many([{"account": account, "number": each} for each in numbers])

    def of(self, account: str) -> list[int]:
        return [number for name, number in self.done if name == account]


def commit_and_tick(db: SQLAlchemy, jobs: CronJobs, times: int = 1) -> None:
    db.session.commit()
    for _ in range(times):
        jobs.tick()


def statuses(db: SQLAlchemy) -> list[str]:
    db.session.rollback()
    return list(db.session.scalars(select(JobRun.status).order_by(JobRun.id)))


@pytest.mark.parametrize("atomic", [False, True])
def test_one_tick_runs_all_of_a_key_in_order(
    context: None, jobs: CronJobs, db: SQLAlchemy, atomic: bool
) -> None:
    ledger = Ledger(jobs, atomic=atomic)
    ledger.enqueue("a", range(12))
    ledger.enqueue("b", range(12))
    commit_and_tick(db, jobs)
    assert ledger.of("a") == ledger.of("b") == list(range(12))


def test_dead_run_is_skipped(context: None, jobs: CronJobs, db: SQLAlchemy) -> None:
    ledger = Ledger(jobs)
    ledger.fail = {1: 3}
    ledger.enqueue("a", range(4))
    commit_and_tick(db, jobs, 5)
    assert ledger.of("a") == [0, 2, 3]


def test_dead_run_stops_its_key_and_no_other(context: None, jobs: CronJobs, db: SQLAlchemy) -> None:
    ledger = Ledger(jobs, "stop")
    ledger.fail = {1: 3}
    ledger.enqueue("a", range(4))
    ledger.enqueue("b", range(10, 14))
    commit_and_tick(db, jobs, 5)
    assert ledger.of("a") == [0]
    assert ledger.of("b") == [10, 11, 12, 13]
    assert statuses(db)[:4] == ["succeeded", "dead", "queued", "queued"]
    (dead,) = db.session.scalars(select(JobRun.id).where(JobRun.status == "dead"))
    jobs.retry(dead)
    commit_and_tick(db, jobs)
    assert ledger.of("a") == [0, 1, 2, 3]


def test_runs_enqueued_by_a_handler_of_the_key_come_after_those_that_wait(
    context: None, jobs: CronJobs, db: SQLAlchemy
) -> None:
    done: list[int] = []

    @jobs.task(concurrency_key="one", order="strict")
    def step(number: int) -> None:
        done.append(number)
        if number < 3:
            step.enqueue(number=number + 10)
            db.session.commit()

    step.enqueue_many([{"number": each} for each in range(3)])
    commit_and_tick(db, jobs)
    assert done == [0, 1, 2, 10, 11, 12]


def test_order_is_that_of_ids_also_with_priorities_and_keys(
    context: None, jobs: CronJobs, db: SQLAlchemy
) -> None:
    ledger = Ledger(jobs)
    runs = [
        NewRun({"account": "a", "number": each}, priority=each, idempotency_key=f"{9 - each}")
        for each in range(5)
    ]
    ids = ledger.book.enqueue_many(runs)
    commit_and_tick(db, jobs)
    assert list(ids) == sorted(ids)
    assert ledger.of("a") == list(range(5))


def test_slots_of_a_definition_are_in_order_too(
    context: None, jobs: CronJobs, db: SQLAlchemy, state: State
) -> None:
    done: list[datetime] = []

    @jobs.task(
        schedule="* * * * *", catchup="all", overlap="allow",
        concurrency_key="statement", order="strict", on_dead="stop",
    )  # fmt: skip
    def statement() -> None:
        from flask_cronjobs import current_run

        done.append(current_run.scheduled_for)

    jobs.tick()
    back = datetime.now(timezone.utc).replace(second=0, microsecond=0) - timedelta(minutes=5)
    moment = (
        back.isoformat()
        if db.engine.dialect.name == "postgresql"
        else f"{back:%Y-%m-%d %H:%M:%S.%f}"
    )
    db.session.execute(
        text("UPDATE job_definitions SET next_run_at = :at, considered_until = :at"), {"at": moment}
    )
    commit_and_tick(db, jobs)
    assert len(done) >= 5
    assert done == sorted(done)
    orders = db.session.execute(text("SELECT DISTINCT on_dead, order_mark FROM job_runs"))
    assert orders.all() == [("stop", None)]
    statement_run = jobs.run_now("statement")
    assert db.session.get_one(JobRun, statement_run).on_dead == "stop"


def test_new_payload_cannot_move_a_run_to_another_key(
    context: None, jobs: CronJobs, db: SQLAlchemy, state: State
) -> None:
    ledger = Ledger(jobs, "stop")
    ledger.fail = {0: 3}
    ledger.enqueue("a", range(2))
    commit_and_tick(db, jobs, 3)
    (dead,) = db.session.scalars(select(JobRun.id).where(JobRun.status == "dead"))
    with pytest.raises(StateConflict, match="strict order of 'account:a'"):
        retry_with(state, dead, {"account": "b", "number": 0})
    retry_with(state, dead, {"account": "a", "number": 7})
    commit_and_tick(db, jobs)
    assert ledger.of("a") == [7, 1]


def test_replaced_payload_keeps_its_place_and_its_key(
    context: None, jobs: CronJobs, db: SQLAlchemy
) -> None:
    ledger = Ledger(jobs)
    ledger.book.using(idempotency_key="k").enqueue(account="a", number=0)
    ledger.book.enqueue(account="a", number=1)
    db.session.commit()
    again = ledger.book.using(idempotency_key="k", replace="payload")
    with pytest.raises(StateConflict, match="keeps its place"):
        again.enqueue(account="b", number=5)
    again.enqueue(account="a", number=5)
    commit_and_tick(db, jobs)
    assert ledger.done == [("a", 5), ("a", 1)]


def test_run_again_is_a_new_run_at_the_end(
    context: None, jobs: CronJobs, db: SQLAlchemy, state: State
) -> None:
    ledger = Ledger(jobs, "stop")
    ledger.fail = {0: 3}
    ledger.enqueue("a", range(2))
    commit_and_tick(db, jobs, 3)
    (dead,) = db.session.scalars(select(JobRun.id).where(JobRun.status == "dead"))
    new = run_again(state, dead)
    assert db.session.get_one(JobRun, new).order_mark == "new"
    commit_and_tick(db, jobs)
    assert ledger.done == []


def test_app_without_the_task_gives_turns_too(app: Flask, jobs: CronJobs, db: SQLAlchemy) -> None:
    """A task that lost its order, say, while runs with one wait."""
    with app.app_context():
        Ledger(jobs).enqueue("a", range(3))
        db.session.commit()
        jobs._registry.tasks.clear()
        done: list[int] = []

        @jobs.task
        def book(account: str, number: int) -> None:
            done.append(number)

        commit_and_tick(db, jobs, 4)
        assert done == [0, 1, 2]


def test_run_that_was_claimed_ahead_gives_way_to_an_earlier_one_that_is_retried(
    context: None, jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prefetch, "wanted", lambda self, waiting, idle, recording=False: 10 * idle)
    ledger = Ledger(jobs)
    seen: list[str] = []

    @jobs.task(priority=1)
    def retries() -> None:
        seen.extend(statuses(db))
        jobs.retry(first)

    first, _ = ledger.book.enqueue_many([{"account": "a", "number": each} for each in range(2)])
    retries.enqueue()
    db.session.commit()
    jobs.cancel(first)
    jobs.tick()
    assert seen == ["cancelled", "running", "running"], "the follower was not claimed ahead"
    assert ledger.of("a") == [0, 1]
    assert [run.attempts for run in db.session.query(JobRun).order_by(JobRun.id)] == [1, 1, 1]


def test_async_run_that_was_claimed_ahead_gives_way_too(
    app: Flask, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admission, "_ahead", lambda self: 10)
    app.config["CRONJOBS_ASYNC_AT_ONCE"] = 2
    jobs = CronJobs(app)
    booked: list[int] = []

    @jobs.task(concurrency_key="ledger", order="strict")
    async def book(number: int) -> None:
        booked.append(number)

    @jobs.task(priority=1)
    async def retries() -> None:
        while statuses(db)[1] != "running":
            await asyncio.sleep(0.005)
        if statuses(db)[0] == "cancelled":
            jobs.retry(first)

    with app.app_context():
        db.create_all()
        first, _ = book.enqueue_many([{"number": each} for each in range(2)])
        retries.enqueue_many([{}] * 2)
        db.session.commit()
        jobs.cancel(first)
        jobs.tick()
        jobs.tick()
        assert statuses(db) == ["succeeded"] * 4
    assert booked == [0, 1]
