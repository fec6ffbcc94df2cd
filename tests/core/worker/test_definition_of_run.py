"""A handler can read its run's definition: the name, the zone, and the day in that zone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import delete, select, update

from flask_cronjobs import CronJobs, current_run
from flask_cronjobs.core.app_state import State
from flask_cronjobs.models import JobDefinition, JobRun
from tests.handlers import AGAIN
from tests.rows import the_run

pytestmark = pytest.mark.usefixtures("context")

#: It is seven in the morning of the 16th in Tokyo, and still the 15th in UTC.
SLOT = datetime(2026, 1, 15, 22, 0, tzinfo=timezone.utc)


def said() -> dict[str, Any]:
    return {
        "definition": current_run.definition,
        "timezone": current_run.timezone,
        "day": current_run.scheduled_local.date().isoformat(),
    }


def tick_slot(jobs: CronJobs, db: SQLAlchemy) -> JobRun:
    """Record the definitions, make slots due, and run the latest."""
    jobs.tick()
    db.session.execute(update(JobDefinition).values(next_run_at=SLOT, considered_until=None))
    db.session.commit()
    jobs.tick()
    db.session.expire_all()
    return db.session.scalars(
        select(JobRun).where(JobRun.status != "skipped").order_by(JobRun.id.desc())
    ).first() or pytest.fail("no run")


def enqueue_at_slot(db: SQLAlchemy, task: Any, definition_id: int) -> None:
    """Enqueue a run of the definition for `SLOT`, as the tick records it."""
    run = task.using(run_at=SLOT).enqueue()
    run.definition_id = definition_id
    db.session.commit()


def definition_id(db: SQLAlchemy) -> int:
    return db.session.scalars(select(JobDefinition.id)).one()


@pytest.fixture
def daily(jobs: CronJobs, db: SQLAlchemy) -> Any:
    """A task with a definition in Tokyo, which a tick has recorded."""

    @jobs.task
    def report() -> Any:
        return said()

    report.schedule("0 7 * * *", name="daily-report", timezone="Asia/Tokyo")
    jobs.tick()
    return report


def test_day_is_that_of_the_schedule_and_not_of_utc(
    jobs: CronJobs, db: SQLAlchemy, daily: Any
) -> None:
    enqueue_at_slot(db, daily, definition_id(db))
    jobs.tick()
    expected = {"definition": "daily-report", "timezone": "Asia/Tokyo", "day": "2026-01-16"}
    assert the_run(db).result == expected


@pytest.mark.parametrize("by", ["tick", "operator"])
def test_slot_that_a_tick_records_or_an_operator_starts_has_its_definition(
    jobs: CronJobs, db: SQLAlchemy, daily: Any, by: str
) -> None:
    if by == "tick":
        run = tick_slot(jobs, db)
        assert run.scheduled_for.hour == 22
    else:
        jobs.run_now("daily-report")
        jobs.tick()
        run = the_run(db)
    result: Any = run.result
    assert (result["definition"], result["timezone"]) == ("daily-report", "Asia/Tokyo")


def test_enqueued_run_has_none_and_the_zone_of_the_app_and_asks_no_database(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, state: State
) -> None:
    settings = replace(state.settings, timezone="America/Lima")
    app.extensions["cronjobs"] = replace(state, settings=settings)

    @jobs.task
    def plain() -> Any:
        return [said(), current_run.books._connection is None]

    plain.using(run_at=datetime(2026, 1, 15, 3, tzinfo=timezone.utc), commit=True).enqueue()
    jobs.tick()
    known = {"definition": None, "timezone": "America/Lima", "day": "2026-01-14"}
    assert the_run(db).result == [known, True]


class TestRetry:
    @pytest.fixture
    def seen(self, jobs: CronJobs, db: SQLAlchemy) -> list[Any]:
        """Return what each attempt of a run read; the first attempt fails."""
        records: list[Any] = []

        @jobs.task(retry=AGAIN)
        def report() -> None:
            records.append(said())
            if current_run.attempt == 1:
                raise ValueError("once more")

        report.schedule("0 7 * * *", name="old-name", timezone="Asia/Tokyo")
        jobs.tick()
        enqueue_at_slot(db, report, definition_id(db))
        jobs.tick(max_runs=1)
        return records

    def test_after_its_definition_was_renamed_has_the_new_name(
        self, jobs: CronJobs, db: SQLAlchemy, seen: list[Any]
    ) -> None:
        db.session.execute(update(JobDefinition).values(name="new-name", origin="database"))
        db.session.commit()
        jobs.tick()
        assert [record["definition"] for record in seen] == ["old-name", "new-name"]
        assert {record["day"] for record in seen} == {"2026-01-16"}

    def test_after_its_definition_was_removed_has_none_and_says_which_zone_it_uses(
        self, jobs: CronJobs, db: SQLAlchemy, seen: list[Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        db.session.execute(delete(JobDefinition))
        db.session.commit()
        jobs.tick()
        assert seen[-1] == {"definition": None, "timezone": "UTC", "day": "2026-01-15"}
        assert caplog.text.count("its definition has been removed") == 1
