"""An operator's actions on batches, and on runs that belong to one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text

from flask_cronjobs import CronJobs, NotFound, Retry, StateConflict, Task, current_run
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.batch_actions import cancel_batch, close_batch, retry_batch
from flask_cronjobs.insights.batch_views import BatchView, find_batch
from flask_cronjobs.insights.run_actions import DISCARD
from flask_cronjobs.models import JobRun
from tests.marks import on_postgresql

pytestmark = pytest.mark.usefixtures("context")


class Shop:
    """A batch, and a task whose runs die until the fault is mended."""

    def __init__(self, jobs: CronJobs, db: SQLAlchemy, state: State) -> None:
        self.jobs, self.db, self.state = jobs, db, state
        self.mended = False
        self.told: list[Any] = []

        @jobs.task(retry=Retry(max_attempts=1))
        def work(bad: bool = False) -> None:
            if bad and not self.mended:
                raise ValueError("bad")

        @jobs.task
        def then() -> None:
            self.told.append(current_run.batch)

        self.work: Task[..., Any] = work
        self.then: Task[..., Any] = then

    def fill(self, good: int, bad: int = 0, key: str = "b", **options: Any) -> list[int]:
        """Fill a batch with such runs; return their ids."""
        with self.jobs.batch(key, then=self.then, **options):
            ids = self.work.enqueue_many([{}] * good + [{"bad": True}] * bad)
        self.db.session.commit()
        return ids

    def view(self, key: str = "b") -> BatchView:
        batch = find_batch(self.state, key)
        assert batch is not None
        return batch

    def counts(self, key: str = "b") -> tuple[int, ...]:
        """Return the counts total, succeeded, dead and cancelled."""
        counts = self.view(key).counts
        return counts.total, counts.succeeded, counts.dead, counts.cancelled

    def thens(self) -> int:
        """Return how many runs of `then` there are."""
        self.db.session.rollback()
        runs = select(JobRun.id).where(JobRun.job_type == "then")
        return len(self.db.session.scalars(runs).all())


@pytest.fixture
def shop(jobs: CronJobs, db: SQLAlchemy, state: State) -> Shop:
    return Shop(jobs, db, state)


def test_counts_are_right_at_any_time(shop: Shop) -> None:
    shop.fill(3, bad=1)
    view = shop.view()
    assert (view.state, view.waiting, view.progress) == ("running", 4, "0 of 4")
    shop.jobs.tick(max_runs=2)
    assert (shop.view().waiting, shop.view().progress) == (2, "2 of 4")
    shop.jobs.tick()
    assert shop.view().state == "finished"
    assert shop.counts() == (4, 3, 1, 0)


def test_ended_batch_stays_as_it_ended(shop: Shop) -> None:
    *_, first, _ = shop.fill(1, bad=2)
    shop.jobs.tick()
    DISCARD.one(shop.state, first)
    shop.mended = True
    assert retry_batch(shop.state, "b").changed == 1
    assert shop.view().state == "finished"
    shop.jobs.tick()
    assert (shop.counts(), shop.thens()) == ((3, 1, 2, 0), 1)


def test_run_that_is_retried_before_the_end_counts_as_it_ended_then(shop: Shop) -> None:
    with shop.jobs.batch("b", then=shop.then):
        shop.work.enqueue(bad=True)
        shop.work.using(delay=3600).enqueue()
    shop.db.session.commit()
    shop.jobs.tick()
    shop.mended = True
    assert retry_batch(shop.state, "b").changed == 1
    shop.jobs.tick()
    assert cancel_batch(shop.state, "b").changed == 1
    assert (shop.view().state, shop.counts(), shop.thens()) == ("finished", (2, 1, 0, 1), 1)


@on_postgresql
def test_runs_of_a_batch_that_somebody_holds_are_not_retried(shop: Shop) -> None:
    with shop.jobs.batch("b"):
        shop.work.enqueue(bad=True)
        shop.work.using(delay=3600).enqueue()
    shop.db.session.commit()
    shop.jobs.tick()
    with shop.state.engine.begin() as holding:
        holding.execute(text("SELECT 1 FROM job_batches FOR UPDATE"))
        assert retry_batch(shop.state, "b").left == 1
    assert retry_batch(shop.state, "b").changed == 1


def break_off(shop: Shop) -> None:
    """Leave a batch open with one run."""
    with suppress(ZeroDivisionError), shop.jobs.batch("b", then=shop.then):
        shop.work.using(commit=True).enqueue()
        raise ZeroDivisionError


def test_close_by_an_operator(shop: Shop) -> None:
    break_off(shop)
    shop.jobs.tick()
    assert shop.view().state == "open"
    assert close_batch(shop.state, "b")
    assert not close_batch(shop.state, "b")
    assert (shop.view().state, shop.thens()) == ("finished", 1)
    with pytest.raises(NotFound, match="no batch 'c'"):
        close_batch(shop.state, "c")


@on_postgresql
def test_batch_that_is_being_filled_cannot_be_closed(shop: Shop, app: Flask) -> None:
    break_off(shop)
    with shop.jobs.batch("b"):
        shop.work.enqueue()
        with pytest.raises(StateConflict, match="being filled"):
            close_batch(shop.state, "b")
        with app.app_context():
            shop.jobs.tick()  # It does not delay a tick either.
    shop.db.session.commit()
    assert not close_batch(shop.state, "b")
    assert shop.counts()[0] == 2
