"""``@task.upgrade`` changes payloads that older code stored for today's handler."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, TaskError
from flask_cronjobs.models import JobRun
from tests.marks import on_both
from tests.rows import the_run

pytestmark = pytest.mark.usefixtures("context")
OLD = {"date": "2026-11-24"}


@pytest.fixture
def seen() -> list[Any]:
    """The calls of the handler, with their arguments."""
    return []


@pytest.fixture(params=[False, True], ids=["plain", "async"])
def report(jobs: CronJobs, seen: list[Any], request: pytest.FixtureRequest) -> Any:
    """A task whose argument was called ``date`` earlier, and whose ``copies`` was a text."""

    def plain(day: date, copies: int = 1) -> None:
        seen.append((day, copies))

    async def coroutine(day: date, copies: int = 1) -> None:
        seen.append((day, copies))

    report = jobs.task(name="report", retry=False)(coroutine if request.param else plain)

    @report.upgrade
    def _upgrade(payload: dict[str, Any]) -> dict[str, Any]:
        seen.append("upgraded")
        return {
            "day": payload.get("day") or payload["date"],
            "copies": int(payload.get("copies", 1)),
        }

    return report


def stored(db: SQLAlchemy, report: Any, payload: dict[str, Any]) -> int:
    """Store a run as older code did; return its id."""
    run = report.enqueue(date(2026, 1, 1))
    run.payload = payload
    db.session.commit()
    return int(run.id)


@on_both
@pytest.mark.parametrize(
    ("payload", "calls"),
    [
        (OLD, ["upgraded", (date(2026, 11, 24), 1)]),
        ({"day": "2026-11-24", "copies": "3"}, ["upgraded", (date(2026, 11, 24), 3)]),
        ({"day": "2026-11-24"}, [(date(2026, 11, 24), 1)]),
    ],
    ids=["another name", "another type", "today's"],
)
def test_payload_is_upgraded_only_if_it_does_not_fit(
    jobs: CronJobs, db: SQLAlchemy, seen: list[Any], report: Any, payload: Any, calls: list[Any]
) -> None:
    stored(db, report, payload)
    assert jobs.tick().succeeded == 1
    assert seen == calls
    assert the_run(db).payload == payload


def test_run_again_stores_what_the_upgrade_makes_of_it(
    jobs: CronJobs, db: SQLAlchemy, report: Any
) -> None:
    first = stored(db, report, OLD)
    again = jobs.run_again(first)
    assert db.session.get_one(JobRun, again).payload == {"day": "2026-11-24", "copies": 1}


@pytest.mark.parametrize(
    ("made", "error", "says"),
    [
        (None, "PayloadError", "The payload of run 1 does not fit it: The payload is of type None"),
        ({}, "TypeError", "it() missing a required argument: 'day'"),
        ({"day": 5}, "PayloadError", "The payload of run 1 does not fit it: day: expected a date"),
    ],
)
def test_upgrade_that_makes_none_that_fits_fails_the_attempt(
    jobs: CronJobs, db: SQLAlchemy, made: Any, error: str, says: str
) -> None:
    @jobs.task(retry=False)
    def it(day: date) -> None: ...

    it.upgrade(lambda payload: made)
    stored(db, it, OLD)
    jobs.tick()
    run = the_run(db)
    assert (run.status, run.error_type) == ("dead", error)
    assert str(run.last_error).startswith(says)


def test_one_function_is_the_upgrade_and_takes_the_payload(jobs: CronJobs) -> None:
    async def wrong(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    task: Any = jobs.task(name="it")(lambda: None)
    for function in (None, lambda: None, wrong):
        with pytest.raises(TaskError, match=r"The upgrade of it is .* Give a plain function"):
            task.upgrade(function)
    task.using(priority=1).upgrade(lambda payload: {})
    with pytest.raises(TaskError, match=r"it has an upgrade already: .* in one function"):
        task.upgrade(lambda payload: {})
