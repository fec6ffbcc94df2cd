"""FAULTS: an idempotency key never silently returns the run of other work."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs, KeyConflict, StateConflict
from flask_cronjobs.models import JobRun
from tests.marks import on_both

pytestmark = pytest.mark.usefixtures("context")
ENDED = datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc)


@pytest.fixture
def greet(jobs: CronJobs) -> Any:
    """A task whose runs all have the same key."""

    @jobs.task
    def greet(user_id: int, week: Any = "now") -> None: ...

    return greet.using(idempotency_key="key")


def end(db: SQLAlchemy, status: str) -> None:
    db.session.commit()
    db.session.execute(update(JobRun).values(status=status, finished_at=ENDED))
    db.session.commit()


@on_both
def test_key_of_another_task_is_refused(db: SQLAlchemy, jobs: CronJobs, greet: Any) -> None:
    @jobs.task
    def charge(user_id: int) -> None: ...

    first = greet.enqueue(1)
    expected = rf"key of this run is held by run {first.id} of the task greet\."
    with pytest.raises(KeyConflict, match=expected):
        charge.using(idempotency_key="key").enqueue(1)
    with pytest.raises(KeyConflict):
        jobs.enqueue("charge", {"user_id": 1}, idempotency_key="key")
    greet.using(idempotency_key="other").enqueue(2)  # The transaction is still usable.
    db.session.commit()
    assert list(db.session.scalars(select(JobRun.job_type))) == ["greet", "greet"]


def test_no_message_has_a_key_that_may_hide_a_value(
    db: SQLAlchemy, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task(unique="login:{token}", concurrency_key="at:{token}", order="strict")
    def login(token: str, n: int = 0) -> None: ...

    @jobs.task
    def other(token: str) -> None: ...

    login.enqueue("s3cret")
    login.enqueue("s3cret", 1)
    key = "login:s3cret"
    with pytest.raises(KeyConflict) as conflict:
        other.using(idempotency_key=key).enqueue("s3cret")
    with pytest.raises(StateConflict) as moved:
        login.using(idempotency_key=key, replace=True).enqueue("n3w")
    same = jobs.task(name="same", unique="login:{token}")(lambda token: None)
    with pytest.raises(KeyConflict) as second:
        same.enqueue_many([{"token": "s3cret"}])
    messages = f"{caplog.text} {conflict.value} {moved.value} {second.value}"
    assert "is held by run 1" in messages
    assert "s3cret" not in messages
    assert "n3w" not in messages


@on_both
@pytest.mark.parametrize("status", ["queued", "succeeded"])
def test_same_work_again_is_silent(
    db: SQLAlchemy, greet: Any, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    week = ["now", 2**64, 1.5, [1, (2, 3)], {"a": {"b": None}}]
    first = greet.enqueue(1, week)
    db.session.commit()
    if status != "queued":
        end(db, status)
    assert greet.enqueue(1, week).id == first.id
    assert caplog.records == []


def test_run_tells_whether_it_is_new(db: SQLAlchemy, greet: Any) -> None:
    first = greet.enqueue(1)
    assert first.is_new
    db.session.commit()
    assert first.is_new
    assert not greet.enqueue(1).is_new
    db.session.remove()
    assert not db.session.scalars(select(JobRun)).one().is_new
    assert not greet.enqueue(1).is_new
    assert greet.using(idempotency_key="other").enqueue(1).is_new
