"""A handler that raises `Snooze` runs again later, and uses up no attempt."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text, update

from flask_cronjobs import CronJobs, Snooze, current_run
from flask_cronjobs.models import JobFailure, JobRun
from tests.handlers import Enqueue, both_kinds, of_kind, raising
from tests.rows import the_run

pytestmark = pytest.mark.usefixtures("context")


def make_due(db: SQLAlchemy) -> None:
    db.session.execute(update(JobRun).values(run_at=datetime(2020, 1, 1, tzinfo=timezone.utc)))
    db.session.commit()


def test_snoozed_run_waits_with_all_its_attempts_and_commands_say_why(
    app: Flask, perform: Any, db: SQLAlchemy
) -> None:
    run = perform(raising(Snooze(3600, "the shop is closed")))  # There is one attempt in all.
    assert (run.status, run.attempts, run.snoozes) == ("queued", 0, 1)
    assert (run.error_type, run.last_error) == ("Snooze", "the shop is closed")
    assert (run.run_at - run.updated_at).total_seconds() == pytest.approx(3600, abs=5)
    assert run.finished_at is run.failed_at is run.locked_by is None
    assert db.session.scalars(select(JobFailure)).all() == []
    output = app.test_cli_runner().invoke(args=["jobs", "admin", "show", str(run.id)]).output
    assert "snoozed       1 time" in output
    assert "the shop is closed" in output


@both_kinds
def test_run_can_be_snoozed_more_often_than_it_has_attempts(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue, is_async: bool
) -> None:
    attempts: list[tuple[int, int]] = []

    def patient() -> str:
        attempts.append((current_run.attempt, current_run.snoozes))
        if current_run.snoozes < 5:
            raise Snooze(timedelta(hours=1))
        return "ready"

    enqueue(of_kind(is_async, patient), retry=2)
    for _ in range(6):
        make_due(db)
        jobs.tick()
    assert attempts == [(1, number) for number in range(6)]
    run = the_run(db)
    assert (run.status, run.attempts, run.snoozes, run.result) == ("succeeded", 1, 5, "ready")
    assert run.last_error is run.error_type is None


def test_snooze_until_a_time(perform: Any) -> None:
    noon = datetime(2090, 6, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert perform(raising(Snooze(noon))).run_at == noon


@pytest.mark.parametrize("delay", [0, 0.5, -1, 400 * 86400, datetime(2030, 1, 1), timedelta(0)])
def test_delay_that_cannot_be_is_refused(delay: Any) -> None:
    with pytest.raises(ValueError, match="Snooze: "):
        Snooze(delay)


@pytest.mark.parametrize("hours", [-12, 0, 14])
def test_time_that_is_too_far_is_as_far_as_can_be_read(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, hours: int
) -> None:
    zone = timezone(timedelta(hours=hours))

    @jobs.task
    def never() -> None:
        raise Snooze(datetime.max.replace(tzinfo=zone))

    keyed = never.using(idempotency_key="it", unique_while="pending", commit=True)
    run = keyed.enqueue()
    assert jobs.tick().snoozed == 1
    if db.engine.dialect.name == "postgresql":
        db.session.execute(text("SET TIME ZONE 'Pacific/Kiritimati'"))
    db.session.expire_all()
    assert run.run_at == datetime(9999, 12, 30, tzinfo=timezone.utc)
    assert not keyed.enqueue().is_new
    result = app.test_cli_runner().invoke(args=["jobs", "admin", "show", str(run.id)])
    assert result.exit_code == 0, result.output


def test_cancel_asked_meanwhile_comes_first(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    def cancelled() -> None:
        jobs.cancel(current_run.id)
        raise Snooze(60)

    enqueue(cancelled)
    report = jobs.tick()
    assert (the_run(db).status, report.cancelled, report.snoozed) == ("cancelled", 1, 0)
