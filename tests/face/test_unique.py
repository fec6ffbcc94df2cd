"""``unique=``: the idempotency key at the task."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs, NewRun, TaskError
from flask_cronjobs import testing as helpers
from flask_cronjobs.models import JobRun
from tests.marks import on_both

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def load(jobs: CronJobs) -> Any:
    """A task of which each shop and day has one run that has not ended."""

    @jobs.task(unique="load:{shop_id}:{day}", unique_while="pending")
    def load(shop_id: int, day: date = date(2026, 1, 1)) -> None: ...

    return load


def keys(db: SQLAlchemy) -> list[str | None]:
    return list(db.session.scalars(select(JobRun.idempotency_key).order_by(JobRun.id)))


@on_both
def test_runs_of_one_key_are_one_until_it_has_ended(
    jobs: CronJobs, db: SQLAlchemy, load: Any
) -> None:
    first = load.enqueue(5)
    again = jobs.enqueue("load", {"shop_id": 5, "day": "2026-01-01"})
    other = load.enqueue(6)
    db.session.commit()
    assert (first.id, first.is_new, again.is_new, other.is_new) == (again.id, False, False, True)
    many = load.enqueue_many(
        [{"shop_id": 5}, {"shop_id": 7}, {"shop_id": 7}, NewRun({"shop_id": 8})]
    )
    db.session.commit()
    assert many.is_new == [False, True, False, True]
    assert jobs.run_now("load", {"shop_id": 8}) == many[3]
    assert jobs.tick().succeeded == 4
    assert load.enqueue(5).is_new
    assert keys(db)[:2] == ["load:5:2026-01-01", "load:6:2026-01-01"]


def test_key_of_the_call_comes_first(jobs: CronJobs, db: SQLAlchemy, load: Any) -> None:
    load.using(idempotency_key="mine").enqueue(5)
    load.enqueue_many([NewRun({"shop_id": 5}, idempotency_key="other"), {"shop_id": 5}])
    assert keys(db) == ["mine", "other", "load:5:2026-01-01"]
    whiles = db.session.scalars(select(JobRun.unique_while)).all()
    assert whiles == ["pending"] * 3
    assert load.using(unique_while="kept").enqueue(6).unique_while is None


def test_schedules_then_and_runs_again_have_no_key(
    jobs: CronJobs, db: SQLAlchemy, load: Any
) -> None:
    load.schedule("@yearly", name="nightly", payload={"shop_id": 5})
    run = load.enqueue(5)
    with jobs.batch("all", then=load, then_payload={"shop_id": 5}):
        pass
    db.session.commit()
    jobs.tick()
    jobs.run_now("nightly")
    jobs.run_again(run.id)
    assert keys(db) == ["load:5:2026-01-01", None, None, None]


def test_helper_runs_a_run_of_its_own(jobs: CronJobs, load: Any) -> None:
    assert helpers.run(load, shop_id=5).id != helpers.run(load, shop_id=5).id


def test_what_cannot_be_a_key_is_refused_at_the_call(jobs: CronJobs, load: Any) -> None:
    jobs.task(name="it", unique="{text}")(lambda text: None)
    with pytest.raises(TaskError, match=r"The unique '\{text\}' of the task it makes the key"):
        jobs.enqueue("it", {"text": "x" * 501})
    with pytest.raises(TaskError, match="replace was given with unique_while='pending'"):
        load.using(replace=True).enqueue(5)
