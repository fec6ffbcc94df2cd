"""What an operator does to batches, and to runs that belong to one."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs, NotFound, Retry, StateConflict, Task, current_run
from flask_cronjobs.jobs.batches.actions import cancel_batch, close_batch, retry_batch
from flask_cronjobs.jobs.batches.views import BatchView, find_batch
from flask_cronjobs.jobs.runs.actions import DISCARD
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobRun

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
        """Fill a batch with such runs; their ids."""
        with self.jobs.batch(key, then=self.then, **options):
            ids = self.work.enqueue_many([{}] * good + [{"bad": True}] * bad)
        self.db.session.commit()
        return ids

    def view(self, key: str = "b") -> BatchView:
        found = find_batch(self.state, key)
        assert found is not None
        return found

    def counts(self, key: str = "b") -> tuple[int, ...]:
        """Total, succeeded, dead, cancelled."""
        counts = self.view(key).counts
        return counts.total, counts.succeeded, counts.dead, counts.cancelled

    def thens(self) -> int:
        """How many runs of `then` there are."""
        self.db.session.rollback()
        runs = select(JobRun.id).where(JobRun.job_type == "then")
        return len(self.db.session.scalars(runs).all())


@pytest.fixture
def shop(jobs: CronJobs, db: SQLAlchemy, state: State) -> Shop:
    return Shop(jobs, db, state)


def test_counts_are_right_at_any_time(shop: Shop) -> None:
    shop.fill(3, bad=1)
    view = shop.view()
    assert (view.state, view.waiting, view.counts.ended, view.fraction) == ("running", 4, 0, 0.0)
    shop.jobs.tick(max_runs=2)
    assert (shop.view().waiting, shop.view().fraction) == (2, 0.5)
    shop.jobs.tick()
    assert shop.view().state == "finished"
    assert shop.counts() == (4, 3, 1, 0)


def test_retry_of_the_dead_runs_with_then_again(shop: Shop) -> None:
    shop.fill(1, bad=2)
    shop.jobs.tick()
    shop.mended = True
    assert retry_batch(shop.state, "b", again=True).changed == 2
    shop.jobs.tick()
    assert shop.thens() == 2
    assert [counts.dead for counts in shop.told] == [2, 0]


def test_retry_and_cancel_of_an_outer_batch_are_of_what_is_inside_too(shop: Shop) -> None:
    with shop.jobs.batch("outer", then=shop.then):
        shop.fill(0, 1, "inner")
        shop.work.using(delay=3600).enqueue()
    shop.db.session.commit()
    shop.jobs.tick()
    assert shop.counts("outer")[2] == 1
    shop.mended = True
    assert retry_batch(shop.state, "outer").changed == 1
    shop.jobs.tick()
    assert (shop.counts("inner"), shop.counts("outer")[2]) == ((1, 1, 0, 0), 0)
    assert cancel_batch(shop.state, "outer").changed == 1
    shop.jobs.tick()
    assert (shop.view("outer").state, shop.view("outer").whole["dead"]) == ("finished", 0)


def test_counts_of_an_ended_batch_follow_a_discard(shop: Shop) -> None:
    with shop.jobs.batch("outer"):
        _, dead = shop.fill(1, bad=1, key="inner")
    shop.db.session.commit()
    shop.jobs.tick()
    assert (shop.counts("inner"), shop.counts("outer")[2]) == ((2, 1, 1, 0), 1)
    DISCARD.one(shop.state, dead)
    assert shop.counts("inner") == (2, 1, 0, 1)
    assert shop.counts("outer")[2] == 0  # The inner batch is not dead any more.
    assert shop.thens() == 1


def test_close_by_an_operator(shop: Shop) -> None:
    with shop.jobs.batch("b", then=shop.then, close=False):
        pass
    shop.db.session.commit()
    assert shop.view().state == "open"
    assert close_batch(shop.state, "b")
    assert not close_batch(shop.state, "b")
    assert (shop.view().state, shop.thens()) == ("finished", 1)
    with pytest.raises(NotFound, match="no batch 'c'"):
        close_batch(shop.state, "c")


def test_batch_that_is_being_filled_cannot_be_closed(shop: Shop, app: Flask) -> None:
    if shop.state.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    with shop.jobs.batch("b", close=False):
        pass
    shop.db.session.commit()
    with shop.jobs.batch("b", close=False):
        shop.work.enqueue()
        with pytest.raises(StateConflict, match="being filled"):
            close_batch(shop.state, "b")
        with app.app_context():
            shop.jobs.tick()  # Nor does it hold up a tick.
    shop.db.session.commit()
    assert close_batch(shop.state, "b")
    assert shop.counts()[0] == 1
