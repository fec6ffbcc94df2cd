"""What deploys, restarts and rollbacks do to definitions and their runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs, Schedule
from flask_cronjobs.jobs.definitions.views import definitions_by_name
from flask_cronjobs.jobs.overview import list_orphans
from flask_cronjobs.jobs.state import State, state_of
from flask_cronjobs.models import JobDefinition, JobRun
from tests.rows import now

pytestmark = pytest.mark.usefixtures("context")

Code = Callable[..., CronJobs]


@pytest.fixture
def code(app: Flask, jobs: CronJobs) -> Code:
    """Put other code in the place of the app's, as a process does that begins: nothing is known."""

    def code(name: str = "it", schedule: str = "0 7 * * 1", zone: str = "UTC") -> CronJobs:
        made = CronJobs()
        made.task(name=name, schedule=schedule, timezone=zone)(lambda: None)
        old: State = app.extensions["cronjobs"]
        app.extensions["cronjobs"] = replace(old, registry=made._registry)
        return made

    return code


def watermarks(db: SQLAlchemy) -> dict[str, datetime | None]:
    """The next slot of each definition."""
    db.session.rollback()
    rows = db.session.scalars(select(JobDefinition))
    return {row.name: row.next_run_at for row in rows}


def set_watermark(db: SQLAlchemy, at: datetime) -> None:
    db.session.execute(update(JobDefinition).values(next_run_at=at))
    db.session.commit()


def statuses(db: SQLAlchemy) -> list[tuple[str, str]]:
    """The task and the status of each run, by id."""
    db.session.rollback()
    rows = db.session.execute(select(JobRun.job_type, JobRun.status).order_by(JobRun.id))
    return [(task, status) for task, status in rows]


def test_weekly_slot_comes_though_no_process_lives_for_a_week(code: Code, db: SQLAlchemy) -> None:
    """What is to come stands in the database, not in a timer that begins anew at each restart."""
    code().tick()
    monday = watermarks(db)["it"]
    assert monday is not None
    assert now() < monday <= now() + timedelta(days=7)
    for _ in range(3):
        code().tick()
        assert watermarks(db) == {"it": monday}
    assert statuses(db) == []
    set_watermark(db, monday - timedelta(days=7))
    assert code().tick().succeeded == 1
    assert code().tick().succeeded == 0
    assert statuses(db) == [("it", "succeeded")]
    assert watermarks(db) == {"it": monday}


def test_changed_zone_backfills_nothing_and_goes_on_in_the_new_one(
    code: Code, db: SQLAlchemy
) -> None:
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12", "Pacific/Kiritimati"):
        before = now()
        code(schedule="0 7 * * *", zone=zone).tick()
        following = watermarks(db)["it"]
        assert following is not None
        assert before < following <= now() + timedelta(days=1)
        assert following.astimezone(ZoneInfo(zone)).time() == time(7)
        assert statuses(db) == []


def test_rollback_to_an_older_schedule_backfills_nothing(code: Code, db: SQLAlchemy) -> None:
    for schedule in ("@yearly", "0 0 1 * *", "@yearly"):
        before = now()
        code(schedule=schedule).tick()
        following = watermarks(db)["it"]
        assert following is not None
        assert following in (Schedule(schedule).next_after(moment) for moment in (before, now()))
    assert statuses(db) == []


def test_renamed_task_begins_anew_and_what_it_left_waits_and_is_shown(
    code: Code, db: SQLAlchemy
) -> None:
    code("old").enqueue("old", commit=True)
    code("old").tick()
    assert statuses(db) == [("old", "succeeded")]
    code("old").enqueue("old", commit=True)
    due = now() - timedelta(days=7)
    set_watermark(db, due)

    code("new").tick()
    assert statuses(db) == [("old", "succeeded"), ("old", "queued")]
    marks = watermarks(db)
    assert marks.keys() == {"old", "new"}
    assert marks["new"] is not None
    assert marks["new"] > now()
    assert marks["old"] == due
    assert [(orphan.task, orphan.count.value) for orphan in list_orphans(state_of())[0]] == [
        ("old", 1)
    ]
    shown = {view.name: view.orphaned for view in definitions_by_name(state_of()).rows}
    assert shown == {"old": True, "new": False}


def test_rollback_finds_all_that_the_newer_code_could_not_know(code: Code, db: SQLAlchemy) -> None:
    code("old").tick()
    code("old").enqueue("old", commit=True)
    code("new").tick()
    code("new").enqueue("new", commit=True)
    assert code("old").tick().succeeded == 1
    assert watermarks(db).keys() == {"old", "new"}
    assert statuses(db) == [("old", "succeeded"), ("new", "queued")]
    assert code("new").tick().succeeded == 1
    assert statuses(db) == [("old", "succeeded"), ("new", "succeeded")]
