"""Ticks and definitions: code declares them, changes are stored, and due slots become runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import insert

from flask_cronjobs import CronJobs, ScheduleError, TaskError, UnknownTask, slot_skipped
from flask_cronjobs.core import definitions, scheduler
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.core.definitions import DEFINITIONS_READ
from flask_cronjobs.core.scheduler import enqueue_slots
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.models import JobDefinition
from flask_cronjobs.schedule import Schedule
from flask_cronjobs.schedule.catchup import plan_slots
from flask_cronjobs.signals import unheard
from tests.core.conftest import Code
from tests.kit import received, statements
from tests.rows import new_year, now

pytestmark = pytest.mark.usefixtures("context")

DAY = timedelta(days=1)


def midnight() -> datetime:
    return now().replace(hour=0, minute=0, second=0, microsecond=0)


class TestSync:
    def test_first_tick_inserts_what_code_declares_from_the_next_slot_on(self, code: Code) -> None:
        code(timezone="Asia/Tokyo", queue="mail", catchup="all").tick()
        row = code.definition()
        assert (row.schedule, row.timezone, row.queue) == ("@yearly", "Asia/Tokyo", "mail")
        assert (row.origin, row.catchup) == ("code", "all")
        assert code.next_is_ahead()
        assert code.runs() == []

    def test_second_tick_changes_nothing(self, code: Code) -> None:
        jobs = code()
        jobs.tick()
        before = code.definition().updated_at
        jobs.tick()
        assert code.definition().updated_at == before

    @pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
    def test_changed_schedule_or_zone_backfills_nothing(self, code: Code, zone: str) -> None:
        began = now()
        code().tick()
        for schedule, most in (("* * * * *", timedelta(minutes=1)), ("0 7 * * *", DAY)):
            code(schedule=schedule, timezone=zone).tick()
            row = code.definition()
            assert (row.schedule, row.timezone) == (schedule, zone)
            assert row.next_run_at is not None
            assert now() - timedelta(minutes=1) < row.next_run_at <= now() + most
            hour = row.next_run_at.astimezone(ZoneInfo(zone)).hour
            assert hour == 7 or schedule == "* * * * *"
        # A minute may pass between two ticks, and is a slot of the schedule then.
        assert [run for run in code.runs() if run.scheduled_for < began] == []

    def test_changed_option_is_in_the_row_after_one_tick(self, code: Code) -> None:
        code().tick()
        watermark = code.definition().next_run_at
        code(priority=7, queue="mail", retry=2, overlap="allow").tick()
        row = code.definition()
        assert (row.priority, row.queue, row.max_attempts, row.overlap) == (7, "mail", 2, "allow")
        assert row.next_run_at == watermark

    def test_slot_that_was_due_under_the_old_schedule_is_owed(self, code: Code) -> None:
        code(schedule="0 0 * * *").tick()
        due = midnight()
        code.set(next_run_at=due)
        code().tick()
        assert [run.scheduled_for for run in code.runs()] == [due]
        row = code.definition()
        assert row.schedule == "@yearly"
        assert row.next_run_at is not None
        assert row.next_run_at.month == 1

    @pytest.mark.parametrize("first", ["0 0 * * *", "0 0,12 * * *"])
    def test_old_and_new_code_side_by_side_run_a_slot_of_both_once(
        self, code: Code, first: str
    ) -> None:
        """In a rolling deploy, ticks of both versions alternate; both have the slot at midnight."""
        changed = "0 0,12 * * *" if first == "0 0 * * *" else "0 0 * * *"
        code(schedule=first).tick()
        expected = midnight()
        code.set(next_run_at=expected)
        for schedule in (changed, first, changed, first):
            code(schedule=schedule).tick()
        slots = [run.scheduled_for for run in code.runs()]
        assert slots.count(expected) == 1
        assert {slot.hour for slot in slots} <= {0, 12}

    def test_definition_of_removed_code_is_left_as_it_is(self, code: Code) -> None:
        code("gone", schedule="* * * * *").tick()
        code.set(next_run_at=now() - timedelta(minutes=5))
        before = code.definition("gone").updated_at
        code("other").tick()
        assert code.definition("gone").updated_at == before
        assert code.runs() == []

    def test_run_of_removed_code_waits_for_the_code_that_knows_it(self, code: Code) -> None:
        code("gone").enqueue("gone", commit=True)
        code("other").tick()
        assert [run.status for run in code.runs()] == ["queued"]
        code("gone").tick()
        assert [run.status for run in code.runs()] == ["succeeded"]


class TestSlots:
    def test_due_slot_runs_in_the_same_tick(self, code: Code) -> None:
        jobs = code()
        jobs.tick()
        code.set(next_run_at=new_year())
        report = jobs.tick()
        assert (report.recorded, report.succeeded, report.skipped) == (1, 1, 0)
        assert code.ran() == [new_year()]

    def test_year_of_missed_minutes_is_one_run_and_one_gap(self, app: Flask, code: Code) -> None:
        jobs = code(schedule="* * * * *")
        jobs.tick()
        code.set(next_run_at=now().replace(second=0, microsecond=0) - timedelta(days=365))
        with received(slot_skipped, sender=app) as skipped:
            report = jobs.tick()
        assert (report.recorded, report.succeeded) == (1, 1)
        ((kind, missed),) = code.skipped()
        assert kind == "Missed"
        assert 365 * 24 * 60 - 1 <= missed <= 365 * 24 * 60 + 5
        gap, run = code.runs()
        assert run.scheduled_for > gap.scheduled_for
        assert [slot.skipped for slot in skipped] == [missed]

    def test_row_that_the_database_refuses_to_make_a_run_of_stops_no_other(
        self, code: Code, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
    ) -> None:
        jobs = code("it", "fine")
        jobs.add_definition("broken", "it", schedule="@yearly")
        jobs.tick()
        code.set(next_run_at=new_year())
        # Tables that were made before job_definitions had the constraint are like this.
        if db.engine.dialect.name == "postgresql":
            constraint = "ck_job_definitions_concurrency_limit"
            code.sql(f"ALTER TABLE job_definitions DROP CONSTRAINT {constraint}")
        else:
            code.sql("PRAGMA ignore_check_constraints = ON")
        code.set("broken", concurrency_key="x", overlap="allow")
        assert jobs.tick().succeeded == 2
        assert "The definition 'broken' is broken" in caplog.text
        assert code.definition("broken").next_run_at == new_year()


class TestOfTheDatabase:
    def test_definition_is_added_changed_and_removed(self, code: Code) -> None:
        jobs = code()
        assert jobs.add_definition("own", "it", schedule="@daily", timezone="Asia/Tokyo")
        row = code.definition("own")
        assert (row.origin, row.schedule, row.timezone) == ("database", "@daily", "Asia/Tokyo")
        assert code.next_is_ahead("own")
        assert not jobs.add_definition("own", jobs.get("it"), schedule="@weekly")
        assert code.definition("own").schedule == "@weekly"
        assert jobs.remove_definition("own")
        assert not jobs.remove_definition("own")

    def test_its_slots_run_by_ticks_of_code_that_knows_its_task(self, code: Code) -> None:
        code().add_definition("own", "it", schedule="@yearly")
        code.set(next_run_at=new_year())
        code("other").tick()
        assert code.runs() == []
        assert code.definition("own").next_run_at == new_year()
        assert code().tick().succeeded == 1

    def test_wrong_ones_are_refused(self, code: Code) -> None:
        jobs = code()
        with pytest.raises(ScheduleError):
            jobs.add_definition("a", "it", schedule="nonsense")
        with pytest.raises(UnknownTask, match="Did you mean 'it'"):
            jobs.add_definition("a", "its", schedule="@daily")
        with pytest.raises(TypeError):
            jobs.add_definition("a", "it", schedule="@daily", payload={"unknown": 1})
        for _ in range(2):  # This includes the time before the first tick.
            with pytest.raises(TaskError, match="is declared in code"):
                jobs.add_definition("it", "it", schedule="@daily")
            jobs.tick()
        with pytest.raises(TaskError, match="came from code"):
            code("other").add_definition("it", "other", schedule="@daily")

    def test_code_that_declares_its_name_later_waits_until_the_row_is_removed(
        self, code: Code, caplog: pytest.LogCaptureFixture
    ) -> None:
        code("send").add_definition("it", "send", schedule="@daily")
        jobs = code()
        jobs.tick()
        assert "remove the other one: flask jobs admin remove it" in caplog.messages[-1]
        assert (code.definition().origin, code.definition().schedule) == ("database", "@daily")
        assert jobs.remove_definition("it")
        jobs.tick()
        assert (code.definition().origin, code.definition().schedule) == ("code", "@yearly")
        with pytest.raises(TaskError, match="is declared in code"):
            jobs.remove_definition("it")

    def test_slot_that_was_due_is_recorded_before_its_definition_is_changed(
        self, code: Code
    ) -> None:
        jobs = code(schedule=None)
        jobs.add_definition("own", "it", schedule="* * * * *")
        due = now().replace(second=0, microsecond=0) - timedelta(minutes=1)
        code.set(next_run_at=due)
        assert not jobs.add_definition("own", "it", schedule="*/1 * * * *")
        run = code.runs()[-1]
        assert (run.status, run.scheduled_for >= due) == ("queued", True)
        row = code.definition("own")
        assert row.schedule == "*/1 * * * *"
        assert row.next_run_at is not None
        assert row.next_run_at > run.scheduled_for

    def test_watermark_set_by_hand_without_microseconds_is_a_watermark(
        self, code: Code, db: SQLAlchemy
    ) -> None:
        jobs = code(schedule="* * * * *")
        jobs.add_definition("own", "it", schedule="* * * * *")
        jobs.tick()
        by_hand = "CURRENT_TIMESTAMP" if db.engine.dialect.name != "sqlite" else "datetime('now')"
        code.sql(f"UPDATE job_definitions SET next_run_at = {by_hand}")
        assert not jobs.add_definition("own", "it", schedule="@yearly")
        jobs.tick()
        for mark in (code.definition(name).next_run_at for name in ("it", "own")):
            assert mark is not None
            assert mark > now() - timedelta(minutes=1)
            assert (mark.second, mark.microsecond) == (0, 0)


# Thousands of definitions that are due at once cost few statements and little arithmetic


NUMBER = 1_100


def test_definitions_with_one_schedule_are_planned_once_a_batch(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Schedule] = []
    tail = Schedule.tail

    def count(schedule: Schedule, *args: Any) -> list[datetime]:
        calls.append(schedule)
        return tail(schedule, *args)

    monkeypatch.setattr(Schedule, "tail", count)
    plan_slots.cache_clear()
    jobs.task(name="it")(lambda: None)
    due = datetime(2026, 1, 1, tzinfo=timezone.utc)
    columns = {"job_type": "it", "schedule": "@yearly", "origin": "database", "next_run_at": due}
    names = [columns | {"name": f"definition {number}"} for number in range(NUMBER)]
    with app.app_context():
        with db.engine.begin() as connection:
            connection.execute(insert(JobDefinition), names)
        sent_statements = statements(db.engine)
        with Bookkeeping(db.engine) as books:
            counts, notified = enqueue_slots(state_of(app), books, unheard)
    assert counts["recorded"] == len({row.id for row in notified}) == NUMBER
    assert all(row.next_run_at and row.next_run_at > due for row in notified)
    batches = NUMBER // DEFINITIONS_READ + 1
    assert len(calls) <= 2 * batches
    assert len(sent_statements) <= 6 * batches


@pytest.mark.parametrize("before", [0, 2, 4])
def test_broken_definition_keeps_no_due_ones_waiting(
    code: Code, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, before: int
) -> None:
    """The first read returns it as well, perhaps before due definitions with lower ids."""
    monkeypatch.setattr(definitions, "DEFINITIONS_READ", 2)
    monkeypatch.setattr(scheduler, "DEFINITIONS_READ", 2)
    names = [f"task {number}" for number in range(1, 6)]
    code(*names).tick()
    code.set(next_run_at=datetime(2026, 1, 1, tzinfo=timezone.utc))
    broken = f"SELECT id FROM job_definitions ORDER BY id LIMIT 1 OFFSET {before}"
    code.sql(f"UPDATE job_definitions SET next_run_at = 'infinity' WHERE id = ({broken})")
    assert code(*names).tick().recorded == 4
    assert caplog.text.count("is broken, and its slots wait") == 1


def test_definition_whose_slots_the_database_refuses_is_mended_by_its_code(
    code: Code, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    """The app may have a constraint of its own. The log says to correct the code."""
    code(queue="old").tick()
    if db.engine.dialect.name == "postgresql":
        code.sql("ALTER TABLE job_runs ADD CONSTRAINT app CHECK (queue <> 'old')")
    else:
        code.sql(
            "CREATE TRIGGER app BEFORE INSERT ON job_runs WHEN NEW.queue = 'old' "
            "BEGIN SELECT RAISE(ABORT, 'no such queue'); END"
        )
    code.set(next_run_at=new_year())
    code(queue="old").tick()
    assert "Correct it in the code" in caplog.text
    for _ in range(2):
        code(queue="new").tick()
    assert code.definition().queue == "new"
    assert [run.status for run in code.runs()] == ["succeeded"]
