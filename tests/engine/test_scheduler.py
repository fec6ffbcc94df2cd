"""Definitions under ticks: declared by code, kept in step, and due slots made runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text, update

from flask_cronjobs import CronJobs, ScheduleError, TaskError, UnknownTask, slot_skipped
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobDefinition, JobRun
from tests.marks import on_sqlite
from tests.rows import now

pytestmark = pytest.mark.usefixtures("context")

Deploy = Callable[..., CronJobs]


@pytest.fixture
def deploy(app: Flask, jobs: CronJobs) -> Deploy:
    """Put other code in the place of the app's: an instance with one task and definition."""

    def deploy(name: str | None = "it", **options: Any) -> CronJobs:
        code = CronJobs()
        if name is not None:
            code.task(name=name, **{"schedule": "@yearly", **options})(lambda: None)
        old: State = app.extensions["cronjobs"]
        app.extensions["cronjobs"] = replace(old, registry=code._registry)
        return code

    return deploy


def definition(db: SQLAlchemy, name: str = "it") -> JobDefinition:
    db.session.rollback()
    return db.session.scalars(select(JobDefinition).where(JobDefinition.name == name)).one()


def set_watermark(db: SQLAlchemy, at: datetime, name: str = "it") -> None:
    db.session.execute(
        update(JobDefinition).where(JobDefinition.name == name).values(next_run_at=at)
    )
    db.session.commit()


def drop_check(db: SQLAlchemy, table: str, name: str) -> None:
    """Take one CHECK away from a table."""
    if db.engine.dialect.name == "postgresql":
        db.session.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {name}"))
        return
    db.session.execute(text("PRAGMA ignore_check_constraints = ON"))


def runs(db: SQLAlchemy) -> list[JobRun]:
    db.session.rollback()
    return list(db.session.scalars(select(JobRun).order_by(JobRun.scheduled_for)))


class TestSync:
    def test_first_tick_inserts_what_code_declares_from_the_next_slot_on(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        deploy(timezone="Asia/Tokyo", queue="mail", catchup="all").tick()
        row = definition(db)
        assert (row.schedule, row.timezone, row.queue) == ("@yearly", "Asia/Tokyo", "mail")
        assert (row.origin, row.catchup) == ("code", "all")
        assert row.next_run_at is not None
        assert row.next_run_at > now()
        assert runs(db) == []

    def test_zone_of_the_app_holds_where_none_is_given(
        self, app: Flask, db: SQLAlchemy, database_url: str
    ) -> None:
        other = Flask("other")
        other.config.update(SQLALCHEMY_DATABASE_URI=database_url, CRONJOBS_TIMEZONE="Europe/Berlin")
        other_db = SQLAlchemy()
        other_db.init_app(other)
        code = CronJobs(other)
        code.task(name="it", schedule="@daily")(lambda: None)
        with other.app_context():
            code.tick()
            for engine in other_db.engines.values():
                engine.dispose()
        assert definition(db).timezone == "Europe/Berlin"

    def test_second_tick_changes_nothing(self, deploy: Deploy, db: SQLAlchemy) -> None:
        code = deploy()
        code.tick()
        before = definition(db).updated_at
        code.tick()
        assert definition(db).updated_at == before

    def test_changed_schedule_backfills_nothing(self, deploy: Deploy, db: SQLAlchemy) -> None:
        deploy(schedule="@yearly").tick()
        deploy(schedule="* * * * *").tick()
        row = definition(db)
        assert row.schedule == "* * * * *"
        assert row.next_run_at is not None
        assert now() - timedelta(minutes=1) < row.next_run_at <= now() + timedelta(minutes=1)
        assert runs(db) == []

    def test_changed_option_is_in_the_row_after_one_tick(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        deploy().tick()
        watermark = definition(db).next_run_at
        deploy(priority=7, queue="mail", retry=2, overlap="allow").tick()
        row = definition(db)
        assert (row.priority, row.queue, row.max_attempts, row.overlap) == (7, "mail", 2, "allow")
        assert row.next_run_at == watermark

    def test_slot_that_was_due_under_the_old_schedule_is_owed(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        deploy(schedule="0 0 * * *").tick()
        due = now().replace(hour=0, minute=0, second=0, microsecond=0)
        set_watermark(db, due)
        deploy(schedule="@yearly").tick()
        assert [run.scheduled_for for run in runs(db)] == [due]
        row = definition(db)
        assert row.schedule == "@yearly"
        assert row.next_run_at is not None
        assert row.next_run_at.month == 1

    @pytest.mark.parametrize("first", ["0 0 * * *", "0 0,12 * * *"])
    def test_old_and_new_code_side_by_side_run_a_slot_of_both_once(
        self, deploy: Deploy, db: SQLAlchemy, first: str
    ) -> None:
        """A rolling deploy: ticks of both take turns, and both know the slot at midnight."""
        other = "0 0,12 * * *" if first == "0 0 * * *" else "0 0 * * *"
        deploy(schedule=first).tick()
        midnight = now().replace(hour=0, minute=0, second=0, microsecond=0)
        set_watermark(db, midnight)
        for schedule in (other, first, other, first):
            deploy(schedule=schedule).tick()
        assert [run.scheduled_for for run in runs(db)].count(midnight) == 1
        assert all(run.scheduled_for.hour in (0, 12) for run in runs(db))

    def test_old_and_new_code_side_by_side_lose_no_slot_of_both(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        for schedule in ("0 0 * * *", "0 0,12 * * *") * 3:
            before = now()
            deploy(schedule=schedule).tick()
            midnight = before.replace(hour=0, minute=0, second=0, microsecond=0)
            row = definition(db)
            assert row.next_run_at is not None
            assert row.next_run_at <= midnight + timedelta(days=1) or before.day != now().day
        assert runs(db) == []

    def test_definition_of_removed_code_is_left_as_it_is(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        deploy("gone", schedule="* * * * *").tick()
        set_watermark(db, now() - timedelta(minutes=5), "gone")
        before = definition(db, "gone").updated_at
        deploy("other").tick()
        row = definition(db, "gone")
        assert row.updated_at == before
        assert runs(db) == []

    def test_definition_of_removed_code_can_be_removed_but_not_one_that_code_declares(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        code = deploy("gone")
        code.tick()
        with pytest.raises(TaskError, match="is declared in code"):
            code.remove_definition("gone")
        assert deploy("other").remove_definition("gone")
        assert db.session.scalars(select(JobDefinition.name)).all() == []

    def test_run_of_removed_code_waits_for_the_code_that_knows_it(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        code = deploy("gone")
        code.enqueue("gone", commit=True)
        deploy("other").tick()
        assert [run.status for run in runs(db)] == ["queued"]
        deploy("gone").tick()
        assert [run.status for run in runs(db)] == ["succeeded"]


class TestSlots:
    def test_due_slot_runs_in_the_same_tick(self, deploy: Deploy, db: SQLAlchemy) -> None:
        code = deploy()
        code.tick()
        due = datetime(now().year, 1, 1, tzinfo=timezone.utc)
        set_watermark(db, due)
        report = code.tick()
        assert (report.recorded, report.succeeded, report.skipped) == (1, 1, 0)
        (run,) = runs(db)
        assert (run.scheduled_for, run.status) == (due, "succeeded")

    def test_year_of_missed_minutes_is_one_run_and_one_gap(
        self, app: Flask, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        code = deploy(schedule="* * * * *")
        code.tick()
        first = now().replace(second=0, microsecond=0) - timedelta(days=365)
        set_watermark(db, first)
        told: list[Any] = []

        def receive(sender: Flask, slot: Any) -> None:
            told.append(slot)

        with slot_skipped.connected_to(receive, app):
            report = code.tick()
        assert (report.recorded, report.succeeded) == (1, 1)
        gap, run = runs(db)
        assert (gap.status, gap.error_type) == ("skipped", "Missed")
        assert isinstance(gap.result, dict)
        missed = gap.result["skipped"]
        assert isinstance(missed, int)
        assert 365 * 24 * 60 - 1 <= missed <= 365 * 24 * 60 + 5
        assert run.scheduled_for > gap.scheduled_for
        assert [slot.skipped for slot in told] == [missed]

    def test_paused_definition_makes_no_run_and_makes_none_up(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        code = deploy()
        code.tick()
        code.pause("it")
        set_watermark(db, now() - timedelta(days=400))
        assert code.tick().recorded == 0
        assert code.resume("it")
        assert code.tick().recorded == 0
        row = definition(db)
        assert row.next_run_at is not None
        assert row.next_run_at > now()
        assert not code.resume("it")

    @pytest.mark.parametrize(
        "broken", [{"schedule": "nonsense"}, {"timezone": "Mars/Olympus"}], ids=["cron", "zone"]
    )
    def test_one_broken_definition_stops_no_other(
        self, deploy: Deploy, db: SQLAlchemy, caplog: pytest.LogCaptureFixture, broken: Any
    ) -> None:
        code = deploy()
        code.task(name="fine", schedule="@yearly")(lambda: None)
        code.add_definition("broken", "it", schedule="@yearly")
        code.tick()
        due = datetime(now().year, 1, 1, tzinfo=timezone.utc)
        for name in ("it", "fine", "broken"):
            set_watermark(db, due, name)
        db.session.execute(
            update(JobDefinition).where(JobDefinition.name == "broken").values(broken)
        )
        db.session.commit()
        assert code.tick().succeeded == 2
        assert "The definition 'broken' is broken" in caplog.text
        assert definition(db, "broken").next_run_at == due

    def test_row_that_the_database_refuses_to_make_a_run_of_stops_no_other(
        self, deploy: Deploy, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
    ) -> None:
        code = deploy()
        code.task(name="fine", schedule="@yearly")(lambda: None)
        code.add_definition("broken", "it", schedule="@yearly")
        code.tick()
        due = datetime(now().year, 1, 1, tzinfo=timezone.utc)
        for name in ("it", "fine", "broken"):
            set_watermark(db, due, name)
        # As in tables that were made before job_definitions had the constraint.
        drop_check(db, "job_definitions", "ck_job_definitions_concurrency_limit")
        db.session.execute(
            text(
                "UPDATE job_definitions SET concurrency_key = 'x', overlap = 'allow' "
                "WHERE name = 'broken'"
            )
        )
        db.session.commit()
        assert code.tick().succeeded == 2
        assert "The definition 'broken' is broken" in caplog.text
        assert definition(db, "broken").next_run_at == due

    @on_sqlite
    @pytest.mark.parametrize(
        "broken", ["payload = '{'", "payload = '[1]'", "next_run_at = 'soon'", "next_run_at = ''"]
    )
    def test_row_that_cannot_be_read_stops_no_other(
        self, deploy: Deploy, db: SQLAlchemy, caplog: pytest.LogCaptureFixture, broken: str
    ) -> None:
        code = deploy()
        code.task(name="fine", schedule="@yearly")(lambda: None)
        code.add_definition("broken", "it", schedule="@yearly")
        code.tick()
        for name in ("it", "fine", "broken"):
            set_watermark(db, datetime(now().year, 1, 1, tzinfo=timezone.utc), name)
        db.session.execute(text(f"UPDATE job_definitions SET {broken} WHERE name <> 'fine'"))
        db.session.commit()
        code.tick()
        assert [run.job_type for run in runs(db) if run.status == "succeeded"] == ["fine"]
        assert "The definition 'it' is broken" in caplog.text
        assert not code.add_definition("broken", "it", schedule="@yearly")
        caplog.clear()
        code.tick()
        assert "is broken" not in caplog.text
        for name in ("it", "broken"):
            row = definition(db, name)
            assert row.payload == {}
            assert row.next_run_at is not None
            assert row.next_run_at > now()

    def test_broken_row_of_code_is_mended_by_the_code(self, deploy: Deploy, db: SQLAlchemy) -> None:
        code = deploy()
        code.tick()
        db.session.execute(
            update(JobDefinition).values(
                schedule="nonsense", next_run_at=now() - timedelta(minutes=5)
            )
        )
        db.session.commit()
        code.tick()
        code.tick()
        row = definition(db)
        assert row.schedule == "@yearly"
        assert row.next_run_at is not None
        assert row.next_run_at > now()


class TestOfTheDatabase:
    def test_definition_is_added_changed_and_removed(self, deploy: Deploy, db: SQLAlchemy) -> None:
        code = deploy(schedule="@yearly")
        assert code.add_definition("customer 1", "it", schedule="@daily", timezone="Asia/Tokyo")
        row = definition(db, "customer 1")
        assert (row.origin, row.schedule, row.timezone) == ("database", "@daily", "Asia/Tokyo")
        assert row.next_run_at is not None
        assert row.next_run_at > now()
        assert not code.add_definition("customer 1", code.get("it"), schedule="@weekly")
        assert definition(db, "customer 1").schedule == "@weekly"
        assert code.remove_definition("customer 1")
        assert not code.remove_definition("customer 1")

    def test_its_slots_run(self, deploy: Deploy, db: SQLAlchemy) -> None:
        code = deploy()
        code.tick()
        code.add_definition("customer 1", "it", schedule="@yearly")
        set_watermark(db, datetime(now().year, 1, 1, tzinfo=timezone.utc), "customer 1")
        assert code.tick().succeeded == 1

    def test_tick_of_other_code_leaves_it_alone(self, deploy: Deploy, db: SQLAlchemy) -> None:
        deploy().add_definition("customer 1", "it", schedule="@yearly")
        set_watermark(db, datetime(now().year, 1, 1, tzinfo=timezone.utc), "customer 1")
        deploy("other").tick()
        assert runs(db) == []
        assert definition(db, "customer 1").next_run_at == datetime(
            now().year, 1, 1, tzinfo=timezone.utc
        )

    def test_wrong_ones_are_refused(self, deploy: Deploy) -> None:
        code = deploy()
        with pytest.raises(ScheduleError):
            code.add_definition("a", "it", schedule="nonsense")
        with pytest.raises(UnknownTask, match="Did you mean 'it'"):
            code.add_definition("a", "its", schedule="@daily")
        with pytest.raises(TypeError):
            code.add_definition("a", "it", schedule="@daily", payload={"unknown": 1})
        code.tick()
        with pytest.raises(TaskError, match="is declared in code"):
            code.add_definition("it", "it", schedule="@daily")

    def test_name_that_code_declares_is_refused_before_the_first_tick_too(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        code = deploy()
        with pytest.raises(TaskError, match="is declared in code"):
            code.add_definition("it", "it", schedule="@daily")
        code.tick()
        assert definition(db).origin == "code"

    def test_code_that_declares_its_name_later_is_told_and_the_row_can_be_removed(
        self, deploy: Deploy, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
    ) -> None:
        deploy("send").add_definition("it", "send", schedule="@daily")
        code = deploy()
        code.tick()
        assert "'it' is declared in code, but add_definition() made one" in caplog.text
        assert (definition(db).origin, definition(db).schedule) == ("database", "@daily")
        assert code.remove_definition("it")
        caplog.clear()
        code.tick()
        assert (definition(db).origin, definition(db).schedule) == ("code", "@yearly")
        assert caplog.text == ""
        with pytest.raises(TaskError, match="is declared in code"):
            code.remove_definition("it")

    def test_slot_that_was_due_is_recorded_before_its_definition_is_changed(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        code = deploy(schedule=None)
        code.add_definition("customer 1", "it", schedule="* * * * *")
        due = now().replace(second=0, microsecond=0) - timedelta(minutes=1)
        set_watermark(db, due, "customer 1")
        assert not code.add_definition("customer 1", "it", schedule="*/1 * * * *")
        assert [(run.status, run.scheduled_for >= due) for run in runs(db)][-1] == ("queued", True)
        row = definition(db, "customer 1")
        assert row.schedule == "*/1 * * * *"
        assert row.next_run_at is not None
        assert row.next_run_at > runs(db)[-1].scheduled_for

    def test_watermark_set_by_hand_without_microseconds_is_a_watermark(
        self, deploy: Deploy, db: SQLAlchemy
    ) -> None:
        code = deploy(schedule="* * * * *")
        code.add_definition("customer 1", "it", schedule="* * * * *")
        code.tick()
        by_hand = "CURRENT_TIMESTAMP" if db.engine.dialect.name != "sqlite" else "datetime('now')"
        db.session.execute(text(f"UPDATE job_definitions SET next_run_at = {by_hand}"))
        db.session.commit()
        assert not code.add_definition("customer 1", "it", schedule="@yearly")
        code.tick()
        marks = [definition(db, name).next_run_at for name in ("it", "customer 1")]
        assert all(mark is not None and mark > now() - timedelta(minutes=1) for mark in marks)
        assert {mark.microsecond + mark.second for mark in marks if mark is not None} == {0}
