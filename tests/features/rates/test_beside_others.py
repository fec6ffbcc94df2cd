"""Rates beside a locked row, a clock that was ahead, an executor, and a run that sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs, RetryLater, TickReport
from flask_cronjobs.core.app_state import State
from flask_cronjobs.db import failpoints
from flask_cronjobs.models import JobRate
from flask_cronjobs.testing import travel
from tests.core.test_clock_ahead import repair
from tests.core.test_locked_rows import connect
from tests.features.executors.threads import Threads
from tests.handlers import Enqueue
from tests.marks import on_postgresql
from tests.rows import Rows, ago, the_run


@on_postgresql
def test_run_without_a_start_goes_back_once_its_row_is_free(
    context: None, jobs: CronJobs, database_url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt did not begin, so it does not count."""
    jobs.task(name="send", rate="1/day")(lambda: None)
    first, second = (rows.run(rate_key="send") for _ in range(2))
    opened: list[psycopg.Connection] = []

    def reach(point: str) -> None:
        is_claimed = point == "after-rate" and rows.get(second).status == "running"
        if is_claimed and not opened:
            opened.append(connect(database_url))
            opened[0].execute(f"UPDATE job_runs SET priority = 0 WHERE id = {second}")
            threading.Timer(0.5, opened[0].close).start()

    monkeypatch.setattr(failpoints, "reach", reach)
    jobs.tick(budget=1.5)
    assert opened
    assert [rows.get(run_id).status for run_id in (first, second)] == ["succeeded", "queued"]


def test_a_rate_continues_after_the_clock_was_ahead(
    context: None, jobs: CronJobs, state: State
) -> None:
    send = jobs.task(name="send", rate="1/day", burst=2)(lambda: None).using(commit=True)
    with travel(timedelta(days=30)):
        send.enqueue()
        assert jobs.tick().succeeded == 1
    assert repair(state) == ["job_ticks", "job_rates"]
    send.enqueue()
    assert jobs.tick().succeeded == 1


def test_runs_are_handed_on_at_their_rate(
    executor: Threads, context: None, jobs: CronJobs, db: SQLAlchemy
) -> None:
    """A run that an executor began can hold the whole key back."""
    starts: list[int] = []

    @jobs.task(queue="far", rate="1/minute", burst=2)
    def send(number: int) -> None:
        starts.append(number)
        raise RetryLater(300, "429", rate=True)

    send.using(commit=True).enqueue_many({"number": number} for number in range(3))
    jobs.tick()
    assert len(executor.sent) == 2
    for run in executor.sent:
        executor.deliver(run)
    executor.results()
    assert sorted(starts) == [0, 1]  # Two workers begin at once.
    tat = db.session.scalars(select(JobRate.tat)).one()
    assert 240 < (tat - ago()).total_seconds() <= 360


def test_each_attempt_of_a_run_that_sleeps_takes_a_start_of_its_rate(
    db: SQLAlchemy, jobs: CronJobs, tick: Callable[[], TickReport], enqueue: Enqueue
) -> None:
    enqueue(lambda: jobs.sleep("an hour", timedelta(hours=1)), rate="1/day")
    assert (tick().released, the_run(db).gate) == (1, "rate")
    with travel(timedelta(hours=1)):
        assert tick().attempts == 0
    with travel(timedelta(days=1)):
        assert tick().succeeded == 1
