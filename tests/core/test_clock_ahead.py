"""If the database's clock was ahead for a while, a check finds it and gives the SQL that helps."""

from __future__ import annotations

from datetime import timedelta

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.health_checks import findings
from flask_cronjobs.models import JobDefinition, JobRun, JobTick
from flask_cronjobs.testing import travel
from tests.rows import Rows, now

pytestmark = pytest.mark.usefixtures("context")

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HOUR, MONTH = timedelta(hours=1), timedelta(days=30)


@pytest.fixture
def ran(jobs: CronJobs) -> list[str]:
    """Return the runs of a definition in code and of one in the database, in order."""
    places: list[str] = []

    @jobs.task(schedule="* * * * *", catchup="latest")
    def in_code() -> None:
        places.append("in code")

    @jobs.task
    def by_hand() -> None:
        places.append("by hand")

    jobs.add_definition("kept", by_hand, schedule="* * * * *")
    jobs.tick()
    return places


def definitions(db: SQLAlchemy) -> list[JobDefinition]:
    db.session.rollback()
    return list(db.session.scalars(select(JobDefinition)))


def pass_time(db: SQLAlchemy, by: timedelta) -> None:
    """Make the ticks and their considered slots older; all slots so far have their rows."""
    for tick in db.session.scalars(select(JobTick)):
        tick.started_at -= by
        tick.seen_at -= by
    for row in db.session.scalars(select(JobDefinition)):
        assert row.next_run_at is not None
        assert row.considered_until is not None
        row.next_run_at -= by
        row.considered_until -= by
    db.session.commit()


def repair(state: State) -> list[str]:
    """Run the SQL that the check gives, as a person would; return the tables that it changes."""
    ahead = [finding for finding in findings(state, only_errors=True) if finding.id == "ahead"]
    with state.engine.begin() as connection:
        for finding in ahead:
            connection.exec_driver_sql(finding.todo.partition("run this SQL: ")[2])
    return [finding.what.partition(".")[0] for finding in ahead]


def test_definitions_continue_after_a_person_has_run_the_sql(
    jobs: CronJobs, db: SQLAlchemy, state: State, ran: list[str]
) -> None:
    assert repair(state) == []
    with travel(MONTH):
        jobs.tick()
    assert min(row.next_run_at or now() for row in definitions(db)) > now() + HOUR
    assert repair(state) == ["job_definitions", "job_ticks"]
    began = now()
    jobs.tick()
    for row in definitions(db):
        assert row.next_run_at is not None
        assert row.considered_until is not None
        assert row.considered_until <= now()
        assert began < row.next_run_at <= now() + MINUTE
    assert repair(state) == []


def test_slots_since_the_last_tick_with_the_right_clock_are_not_lost(
    jobs: CronJobs, db: SQLAlchemy, state: State, ran: list[str]
) -> None:
    pass_time(db, 10 * MINUTE)
    with travel(MONTH):
        jobs.tick()
    repair(state)
    ran.clear()
    jobs.tick()
    assert sorted(ran) == ["by hand", "in code"]
    slots = list(
        db.session.scalars(select(JobRun.scheduled_for).where(JobRun.job_type == "in_code"))
    )
    assert len(slots) == len(set(slots))
    assert any(now() - 2 * MINUTE < slot <= now() for slot in slots)


def test_verdict_is_late_if_the_clock_is_right_again_and_no_tick_comes(
    jobs: CronJobs, db: SQLAlchemy, ran: list[str]
) -> None:
    pass_time(db, HOUR)
    with travel(MONTH):
        jobs.tick()
    assert jobs.health().word == "late"


def test_clock_that_goes_back_by_seconds_records_no_slot_twice(
    jobs: CronJobs, db: SQLAlchemy, state: State, ran: list[str]
) -> None:
    with travel(timedelta(seconds=45)):
        jobs.tick()
    before = [row.next_run_at for row in definitions(db)]
    jobs.tick()
    assert [row.next_run_at for row in definitions(db)] == before
    assert repair(state) == []


def test_a_lost_run_goes_on(jobs: CronJobs, state: State, rows: Rows) -> None:
    with travel(MONTH):
        jobs.tick()
    lost_run = rows.run("running", locked_until=now() + MONTH)
    handed = rows.run("running", locked_until=now() + 5 * 120 * SECOND)
    assert repair(state) == ["job_ticks", "job_runs"]
    for run, leases in ((lost_run, 1), (handed, 5)):
        until = rows.get(run).locked_until
        assert until is not None
        assert until - now() == pytest.approx(leases * 120 * SECOND, abs=30 * SECOND)
