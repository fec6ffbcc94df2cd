"""Thousands of definitions that are due at once cost few statements and little arithmetic."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, insert

from flask_cronjobs import CronJobs
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.jobs.definitions.rows import CHUNK
from flask_cronjobs.jobs.definitions.scheduler import enqueue_slots
from flask_cronjobs.jobs.state import state_of
from flask_cronjobs.models import JobDefinition
from flask_cronjobs.schedule import Schedule
from flask_cronjobs.schedule.catchup import _plan
from flask_cronjobs.signals import unheard

NUMBER = 1_100


def test_definitions_with_one_schedule_are_planned_once_a_batch(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Schedule] = []
    statements: list[str] = []
    tail = Schedule.tail

    def count(schedule: Schedule, *args: Any) -> list[datetime]:
        calls.append(schedule)
        return tail(schedule, *args)

    def see(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement)

    monkeypatch.setattr(Schedule, "tail", count)
    _plan.cache_clear()
    jobs.task(name="it")(lambda: None)
    due = datetime(2026, 1, 1, tzinfo=timezone.utc)
    given = {"job_type": "it", "schedule": "@yearly", "origin": "database", "next_run_at": due}
    names = [given | {"name": f"definition {number}"} for number in range(NUMBER)]
    with app.app_context():
        with db.engine.begin() as connection:
            connection.execute(insert(JobDefinition), names)
        event.listen(db.engine, "before_cursor_execute", see)
        with Bookkeeping(db.engine) as books:
            counts, seen = enqueue_slots(state_of(app), books, unheard)
    assert counts["recorded"] == len({row.id for row in seen}) == NUMBER
    assert all(row.next_run_at and row.next_run_at > due for row in seen)
    batches = NUMBER // CHUNK + 1
    assert len(calls) <= 2 * batches
    assert len(statements) <= 6 * batches
