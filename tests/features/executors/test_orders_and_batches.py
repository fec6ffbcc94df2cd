"""Strict order and batches hold for runs that an executor executes."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import update

from flask_cronjobs import CronJobs, current_run
from flask_cronjobs.core.claim import Answer, record_and_claim
from flask_cronjobs.core.worker import claims
from flask_cronjobs.models import JobBatch, JobRun
from tests.features.executors.threads import Threads
from tests.marks import on_postgresql
from tests.rows import ago

pytestmark = pytest.mark.usefixtures("executor", "context")


class Ledger:
    """A task of the executor in strict order, and the runs that have begun."""

    def __init__(self, jobs: CronJobs) -> None:
        self.begun: list[int] = []

        @jobs.task(queue="far", concurrency_key="ledger", order="strict")
        def book() -> None:
            self.begun.append(current_run.id)

        self.book = book


def assert_it_gives_way(
    first: int, second: int, ledger: Ledger, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    """Check that a second run in the broker lets the first one begin, which has come back."""
    assert [run.id for run in executor.sent] == [second]
    executor.deliver(executor.sent[0])
    assert executor.results() == [None]
    given_back = db.session.get_one(JobRun, second)
    assert (given_back.status, given_back.attempts) == ("queued", 0)
    for _ in range(2):
        jobs.tick()
        executor.deliver(executor.sent[-1])
        executor.results()
    assert ledger.begun == [first, second]


@pytest.mark.parametrize("ticks_before_it_begins", [0, 1])
def test_a_handed_run_gives_way_to_an_earlier_one_that_is_retried(
    ticks_before_it_begins: int, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    ledger = Ledger(jobs)
    first, second = ledger.book.enqueue_many([{}, {}])
    db.session.commit()
    jobs.cancel(first)
    jobs.tick()
    jobs.retry(first)
    for _ in range(ticks_before_it_begins):
        jobs.tick()
    assert_it_gives_way(first, second, ledger, executor, jobs, db)


@on_postgresql
def test_a_handed_run_gives_way_to_an_earlier_one_that_is_committed_late(
    app: Flask, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    ledger = Ledger(jobs)
    first = ledger.book.enqueue().id
    with app.app_context():  # This is another session.
        second = ledger.book.using(commit=True).enqueue().id
    jobs.tick()
    db.session.commit()
    assert_it_gives_way(first, second, ledger, executor, jobs, db)


def test_a_run_that_is_parked_while_the_one_before_it_ends_is_handed_on_at_once(
    executor: Threads, jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker of the earlier run checked before the claim's commit, and found nothing."""
    ledger = Ledger(jobs)
    first, second = ledger.book.using(commit=True).enqueue_many([{}, {}])
    jobs.tick()
    assert [run.id for run in executor.sent] == [first]
    db.session.execute(update(JobRun).values(gate=None))
    db.session.commit()
    engine, ends = db.engine, update(JobRun).where(JobRun.id == first).values(
        status="succeeded", finished_at=ago(0), locked_by=None, locked_until=None,
        concurrency_share=None,
    )  # fmt: skip

    def claim(*arguments: Any, **options: Any) -> Answer:
        answer = record_and_claim(*arguments, **options)
        if answer.parked:
            with engine.begin() as connection:
                connection.execute(ends)
        return answer

    monkeypatch.setattr(claims, "record_and_claim", claim)
    # An idle worker would open it, too.
    monkeypatch.setattr(claims.Openings, "open_left_parked", lambda openings: False)
    jobs.tick()
    assert [run.id for run in executor.sent] == [first, second]


def test_a_batch_ends_when_the_executor_has_executed_its_last_run(
    executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    counts: list[int] = []

    @jobs.task(queue="far")
    def work() -> None: ...

    @jobs.task
    def then() -> None:
        assert current_run.batch is not None
        counts.append(current_run.batch.succeeded)

    with jobs.batch("b", then=then):
        work.enqueue_many([{}] * 3)
    db.session.commit()
    jobs.tick()
    assert db.session.query(JobBatch).one().finished_at is None
    for run in executor.sent:
        executor.deliver(run)
    executor.results()
    db.session.rollback()
    assert db.session.query(JobRun).filter_by(job_type="then").count() == 1, "it waited for a tick"
    jobs.tick()
    assert counts == [3]
