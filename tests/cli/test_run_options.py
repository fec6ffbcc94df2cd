"""``admin run`` with a time, a queue or an idempotency key."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun
from tests.rows import now

Run = Callable[..., Result]


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Run:
    jobs.task(name="export")(lambda: None)
    jobs.task(name="other")(lambda: None)
    jobs.task(name="nightly", schedule="0 7 1 1 *", queue="slow")(lambda: None)
    return lambda *args: app.test_cli_runner().invoke(args=["jobs", "admin", "run", *args])


@pytest.fixture
def stored(app: Flask, db: SQLAlchemy) -> Callable[[], list[JobRun]]:
    """Read all runs."""

    def read() -> list[JobRun]:
        with app.app_context():
            return list(db.session.scalars(select(JobRun).order_by(JobRun.id)))

    return read


Stored = Callable[[], list[Any]]


def test_run_is_due_at_the_time(run: Run, stored: Stored) -> None:
    result = run("export", "--at", "2030-01-01T07:00+01:00")
    assert result.output == "Queued run 1 of export, due 2030-01-01 06:00:00 UTC.\n"
    (made,) = stored()
    assert made.run_at == datetime(2030, 1, 1, 6, tzinfo=timezone.utc)
    assert made.status == "queued"


def test_run_is_due_after_the_delay(run: Run, stored: Stored) -> None:
    assert run("export", "--delay", "10m").output == "Queued run 1 of export, due in 10 min.\n"
    (made,) = stored()
    assert timedelta(minutes=9) < made.run_at - now() < timedelta(minutes=11)


def test_later_run_of_a_definition_takes_no_slot(
    app: Flask, jobs: CronJobs, run: Run, stored: Stored
) -> None:
    with app.app_context():
        jobs.tick()
    assert run("nightly", "--at", "2090-01-01T07:00Z", "--queue", "fast").exit_code == 0
    (made,) = stored()
    assert (made.queue, made.definition_id) == ("fast", 1)
    assert made.run_at.year == 2090
    assert abs(made.scheduled_for - now()) < timedelta(minutes=1), "the slot stays free"


def test_time_that_is_over_means_now(app: Flask, jobs: CronJobs, run: Run, stored: Stored) -> None:
    assert run("export", "--at", "2020-01-01T00:00Z").exit_code == 0
    with app.app_context():
        assert jobs.tick().succeeded == 1


def test_key_that_a_run_has_queues_nothing(run: Run, stored: Stored) -> None:
    assert run("export", "--key", "k").output == "Queued run 1 of export. The next tick runs it.\n"
    again = run("export", "--key", "k")
    assert (again.exit_code, again.output) == (
        0,
        "Queued nothing: run 1 of export has the key already.\n",
    )
    assert json.loads(run("export", "--key", "k", "--json").output) == {"id": 1, "is_new": False}
    (made,) = stored()
    assert made.idempotency_key == "k"


def test_key_of_another_task_is_refused(run: Run, stored: Stored) -> None:
    run("export", "--key", "k")
    result = run("other", "--key", "k")
    assert result.exit_code == 1
    assert result.output == (
        "Error: The idempotency key 'k' is held by run 1 of the task export. Nothing was queued. "
        "Give another key.\n"
    )
    assert len(stored()) == 1


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--at", "2030-01-01T07:00"], 2, "has no time zone. Write 2026-11-20T06:00Z"),
        (["--at", "tomorrow"], 2, "'tomorrow' is not a time. Write"),
        (["--at", ""], 2, "is not a time"),
        (["--at", "0001-01-01T00:00+23:59"], 2, "is beyond the years 1 to 9999 in UTC"),
        (["--at", "9999-12-31T23:59-23:59"], 2, "is beyond the years 1 to 9999 in UTC"),
        (["--at", "2030-01-01T07:00Z", "--delay", "1m"], 2, "Give --at or --delay, not both."),
        (["--delay", "soon"], 2, "is not an age"),
        (["--delay", "9999d"], 1, "(a year)"),
        (["--queue", ""], 1, "queue is ''"),
        (["--key", ""], 1, "idempotency_key is ''"),
    ],
)
def test_wrong_options_are_refused(
    run: Run, stored: Stored, args: list[str], code: int, said: str
) -> None:
    result = run("export", *args)
    assert result.exit_code == code
    assert said in result.output
    assert stored() == []
