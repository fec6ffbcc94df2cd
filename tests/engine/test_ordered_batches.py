"""Batches whose members, or whose `then`, keep a strict order."""

from __future__ import annotations

import pytest
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, Retry
from flask_cronjobs.models import JobBatch, JobRun

pytestmark = pytest.mark.usefixtures("context")


def test_then_takes_its_place_in_a_strict_order(jobs: CronJobs, db: SQLAlchemy) -> None:
    booked: list[int] = []

    @jobs.task(concurrency_key="ledger", order="strict")
    def book(number: int) -> None:
        booked.append(number)

    @jobs.task
    def work() -> None: ...

    with jobs.batch("b", then=book, then_payload={"number": 2}):
        work.enqueue()
        book.enqueue(1)
    db.session.commit()
    jobs.tick()
    book.enqueue(3)
    db.session.commit()
    jobs.tick()
    assert booked == [1, 2, 3]
    turns = db.session.query(JobRun.on_dead, JobRun.order_mark).filter_by(job_type="book").all()
    assert {tuple(row) for row in turns} <= {("skip", "over"), ("skip", None)}


def test_a_stopped_batch_lets_the_order_of_a_key_go_on(jobs: CronJobs, db: SQLAlchemy) -> None:
    booked: list[int] = []

    @jobs.task(concurrency_key="ledger", order="strict", retry=Retry(max_attempts=1))
    def book(number: int) -> None:
        if number == 1:
            raise ValueError("no such account")
        booked.append(number)

    with jobs.batch("b", on_dead="stop"):
        for number in (1, 2, 3):
            book.enqueue(number)
    book.enqueue(4)
    db.session.commit()
    jobs.tick(max_runs=1)
    jobs.tick()
    assert booked == [4]
    batch = db.session.query(JobBatch).one()
    assert (batch.total, batch.dead, batch.cancelled) == (3, 1, 2)
