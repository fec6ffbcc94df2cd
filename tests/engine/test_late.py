"""The signal ``definition_late``: once for each slot that does not come, by one worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text, update

from flask_cronjobs import CronJobs, definition_late
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.jobs.definitions.scheduler import tell_late
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobDefinition
from flask_cronjobs.types import LateSlot
from tests.kit import heard, in_threads
from tests.marks import on_postgresql, on_sqlite
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("context")

#: Longer than ``CRONJOBS_HEALTH_OVERDUE``, which is 600 seconds.
LATE = 1200


@pytest.fixture
def told(app: Flask) -> Iterator[list[LateSlot]]:
    """What a receiver was told."""
    with heard(definition_late, sender=app) as told:
        yield told


def move(db: SQLAlchemy, at: datetime) -> None:
    """Let the slot *at* be the next one."""
    db.session.execute(update(JobDefinition).values(next_run_at=at))
    db.session.commit()


class TestSlotThatNobodyRecords:
    """The code that ticks does not declare it."""

    def test_is_told_once(
        self,
        jobs: CronJobs,
        rows: Rows,
        told: list[LateSlot],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        at = ago(LATE)
        id_ = rows.definition("nightly", job_type="backup", next_run_at=at)
        jobs.tick()
        jobs.tick()
        (late,) = told
        assert (late.definition_id, late.definition, late.job_type) == (id_, "nightly", "backup")
        assert (late.at, late.run_id) == (at, None)
        assert LATE <= late.seconds < LATE + 60
        assert caplog.text.count("'nightly' is late: its slot of") == 1

    def test_is_told_again_at_its_next_slot(
        self, jobs: CronJobs, db: SQLAlchemy, rows: Rows, told: list[LateSlot]
    ) -> None:
        slots = [ago(3 * LATE), ago(LATE)]
        rows.definition("nightly", next_run_at=slots[0])
        jobs.tick()
        move(db, slots[1])
        jobs.tick()
        assert [late.at for late in told] == slots

    @pytest.mark.parametrize(
        "ages",
        [{"next_run_at": 60}, {"next_run_at": LATE, "paused_at": 5000}],
        ids=["due for a minute", "paused"],
    )
    def test_is_not_late(
        self, jobs: CronJobs, rows: Rows, told: list[LateSlot], ages: dict[str, float]
    ) -> None:
        rows.definition("nightly", **{name: ago(age) for name, age in ages.items()})
        jobs.tick()
        assert told == []

    def test_without_a_receiver_is_left_to_a_process_that_has_one(
        self, jobs: CronJobs, db: SQLAlchemy, rows: Rows, request: pytest.FixtureRequest
    ) -> None:
        rows.definition("nightly", next_run_at=ago(LATE))

        def of_another_app(sender: Flask, late: LateSlot) -> None:
            raise AssertionError

        definition_late.connect(of_another_app, Flask("other"))
        jobs.tick()
        definition_late.disconnect(of_another_app)
        assert db.session.scalars(select(JobDefinition.late_slot)).all() == [None]
        told = request.getfixturevalue("told")
        jobs.tick()
        assert len(told) == 1

    def test_is_told_once_by_many_that_look_at_once(
        self, rows: Rows, state: State, told: list[LateSlot]
    ) -> None:
        names = [f"job {number}" for number in range(8)]
        for name in names:
            rows.definition(name, next_run_at=ago(LATE))

        def look() -> None:
            with Bookkeeping(state.engine) as books:
                tell_late(state, books)

        in_threads(*[look] * 4)
        assert len(told) == len({late.definition for late in told})
        look()  # On PostgreSQL a row that another one has locked may be left to the next look.
        assert sorted(late.definition for late in told) == names

    @on_postgresql
    def test_whose_row_is_locked_holds_up_nobody_and_is_told_later(
        self, jobs: CronJobs, db: SQLAlchemy, rows: Rows, told: list[LateSlot]
    ) -> None:
        rows.definition("nightly", next_run_at=ago(LATE))
        with db.engine.begin() as connection:
            connection.execute(text("SELECT 1 FROM job_definitions FOR UPDATE"))
            began = time.monotonic()
            jobs.tick()
            assert time.monotonic() - began < 20
            assert told == []
        jobs.tick()
        assert len(told) == 1

    @on_sqlite
    def test_that_cannot_be_read_stops_no_other(
        self, jobs: CronJobs, db: SQLAlchemy, rows: Rows, told: list[LateSlot]
    ) -> None:
        rows.definition("broken")
        db.session.execute(text("UPDATE job_definitions SET next_run_at = '0000-00-00'"))
        db.session.commit()
        rows.definition("nightly", next_run_at=ago(LATE))
        jobs.tick()
        assert [late.definition for late in told] == ["nightly"]


class TestRunThatDoesNotBegin:
    def test_is_told_once_and_so_is_a_later_slot(
        self, jobs: CronJobs, rows: Rows, told: list[LateSlot]
    ) -> None:
        """No worker takes its queue."""
        id_ = rows.definition("nightly", next_run_at=ago(-3600))
        slots = [ago(2 * LATE), ago(LATE)]
        given: dict[str, Any] = {"definition_id": id_, "queue": "slow"}
        runs = [rows.run(scheduled_for=at, run_at=at, **given) for at in slots]
        for _ in range(3):
            jobs.tick(queues=["default"])
        assert [(late.at, late.run_id) for late in told] == list(zip(slots, runs, strict=True))
        assert {late.definition for late in told} == {"nightly"}

    @pytest.mark.parametrize(
        "paused", [{"task": "backup"}, {"queue": "slow"}], ids=["task", "queue"]
    )
    def test_waiting_for_a_pause_it_is_not_late(
        self, jobs: CronJobs, rows: Rows, told: list[LateSlot], paused: dict[str, str]
    ) -> None:
        jobs.task(name="backup", queue="slow")(lambda: None)
        id_ = rows.definition("nightly", job_type="backup", next_run_at=ago(-3600))
        rows.run(age=LATE, definition_id=id_, job_type="backup", queue="slow")
        jobs.pause(queue="another")
        jobs.pause(**paused)
        jobs.tick(queues=["default"])
        assert told == []
        jobs.resume(**paused)
        jobs.tick(queues=["default"])
        assert [late.definition for late in told] == ["nightly"]

    def test_waiting_for_its_rate_it_is_late_only_without_code(
        self, jobs: CronJobs, rows: Rows, told: list[LateSlot]
    ) -> None:
        jobs.task(name="backup", rate="1/day")(lambda: None)
        for task in ("backup", "gone"):
            id_ = rows.definition(task, next_run_at=ago(-3600))
            rate: dict[str, Any] = {"rate_key": task, "rate_mark": "waits"}
            rows.run(age=LATE, definition_id=id_, job_type=task, **rate)
        jobs.tick(queues=["another"])
        assert [late.definition for late in told] == ["gone"]

    def test_since_its_handler_sleeps_or_waits_it_is_not_late(
        self, jobs: CronJobs, rows: Rows, told: list[LateSlot]
    ) -> None:
        """It has begun, though that attempt does not count."""
        id_ = rows.definition("nightly", next_run_at=ago(-3600))
        rows.run(definition_id=id_, scheduled_for=ago(LATE), started_at=ago(LATE))
        jobs.tick(queues=["another"])
        assert told == []

    @pytest.mark.parametrize("status", ["failed", "running", "succeeded", "dead", "cancelled"])
    def test_begun_or_ended_it_is_not_late(
        self, jobs: CronJobs, rows: Rows, told: list[LateSlot], status: str
    ) -> None:
        id_ = rows.definition("nightly", next_run_at=ago(-3600))
        rows.run(status, definition_id=id_, scheduled_for=ago(LATE), run_at=ago(-60))
        rows.run(scheduled_for=ago(LATE))  # Of no definition.
        jobs.tick()
        assert told == []


def test_slot_that_comes_after_an_outage_was_late_and_is_told_once(
    jobs: CronJobs, db: SQLAlchemy, told: list[LateSlot]
) -> None:
    jobs.task(name="hourly", schedule="0 * * * *")(lambda: None)
    jobs.tick()
    slot = ago(7200).replace(minute=0, second=0, microsecond=0)
    move(db, slot)
    db.session.execute(update(JobDefinition).values(considered_until=slot - timedelta(minutes=1)))
    db.session.commit()
    assert jobs.tick().succeeded == 1
    jobs.tick()
    assert [late.at for late in told] == [slot]
