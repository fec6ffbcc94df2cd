"""Which slots are owed when definitions leave the code and come back, pause, or change zones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.definitions import scheduler
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobDefinition, JobRun, JobTick
from flask_cronjobs.schedule import catchup
from flask_cronjobs.schedule import schedule as schedules
from tests.rows import now

pytestmark = pytest.mark.usefixtures("context")

Code = Callable[..., CronJobs]
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
WEEK = timedelta(days=7)


@pytest.fixture
def code(app: Flask, jobs: CronJobs) -> Code:
    """Put other code in the place of the app's, which declares definitions of these names."""

    # No slot comes due by itself while a test runs.
    hourly = f"{(now() + HOUR / 2).minute} * * * *"

    def code(*names: str, **options: Any) -> CronJobs:
        made = CronJobs()
        for name in names:
            made.task(name=name, **{"schedule": hourly, **options})(lambda: None)
        old: State = app.extensions["cronjobs"]
        app.extensions["cronjobs"] = replace(old, registry=made._registry)
        return made

    return code


def pass_time(db: SQLAlchemy, by: timedelta) -> None:
    """Move everything that stands in the tables into the past."""
    for model, columns in (
        (JobDefinition, ("next_run_at", "considered_until", "undeclared_since", "paused_at")),
        (JobRun, ("scheduled_for",)),
        (JobTick, ("started_at", "seen_at", "finished_at")),
    ):
        # In the order of ids, so that no slot meets an older one of its definition.
        for row in db.session.scalars(select(model).order_by(model.id)):
            for column in columns:
                if (at := getattr(row, column)) is not None:
                    setattr(row, column, at - by)
    db.session.commit()


def runs(db: SQLAlchemy, name: str) -> list[JobRun]:
    db.session.rollback()
    named = select(JobRun).where(JobRun.job_type == name)
    return list(db.session.scalars(named.order_by(JobRun.scheduled_for)))


def definition(db: SQLAlchemy, name: str = "it") -> JobDefinition:
    db.session.rollback()
    return db.session.scalars(select(JobDefinition).where(JobDefinition.name == name)).one()


def ran(db: SQLAlchemy, name: str) -> list[datetime]:
    return [run.scheduled_for for run in runs(db, name) if run.status == "succeeded"]


def skipped(db: SQLAlchemy, name: str) -> list[tuple[str | None, Any]]:
    """The kind of each skipped row, and how many slots it stands for."""
    rows = [run for run in runs(db, name) if run.status == "skipped"]
    return [(run.error_type, run.result["skipped"]) for run in rows if isinstance(run.result, dict)]


class TestDroppedByCode:
    def test_schedule_brought_back_after_a_week_runs_no_slot_of_that_week(
        self, code: Code, db: SQLAlchemy
    ) -> None:
        code("it", catchup="all").tick()
        code("other").tick()
        pass_time(db, WEEK)
        code("other").tick()
        report = code("it", catchup="all").tick()
        assert (report.recorded, report.skipped) == (0, 1)
        ((kind, number),) = skipped(db, "it")
        assert (kind, number) == ("Undeclared", 7 * 24)
        assert runs(db, "it")[0].last_error is not None
        assert "not declared" in str(runs(db, "it")[0].last_error)
        row = definition(db)
        assert row.undeclared_since is None
        assert row.next_run_at is not None
        assert row.next_run_at > now()

    def test_schedule_brought_back_after_a_week_as_another_one_backfills_nothing(
        self, code: Code, db: SQLAlchemy
    ) -> None:
        code("it").tick()
        code("other").tick()
        pass_time(db, WEEK)
        report = code("it", schedule="0 3 1 1 *").tick()
        assert report.recorded == 0
        assert ran(db, "it") == []

    def test_rename_that_is_rolled_back_runs_no_slot_under_both_names(
        self, code: Code, db: SQLAlchemy
    ) -> None:
        code("nightly").tick()
        code("nightly_report").tick()
        for _ in range(10):
            pass_time(db, HOUR)
            code("nightly_report").tick()
        code("nightly").tick()
        assert len(ran(db, "nightly_report")) == 10
        assert ran(db, "nightly") == []
        ((kind, _),) = skipped(db, "nightly")
        assert kind == "Undeclared"
        pass_time(db, HOUR)
        code("nightly").tick()
        assert len(ran(db, "nightly")) == 1

    def test_old_and_new_code_side_by_side_lose_no_slot_of_the_new_one(
        self, code: Code, db: SQLAlchemy
    ) -> None:
        # A minute may pass by itself, too, and then two slots are due.
        every: dict[str, Any] = {"schedule": "* * * * *", "catchup": "all"}
        for _ in range(5):
            code("old", "new", **every).tick()
            code("old", **every).tick()
            pass_time(db, MINUTE)
            code("old", **every).tick()
        assert code("old", "new", **every).tick().recorded >= 1
        assert len(ran(db, "new")) >= 5
        assert len(ran(db, "old")) >= 5
        assert skipped(db, "new") == []

    def test_outage_of_all_ticks_is_still_caught_up(self, code: Code, db: SQLAlchemy) -> None:
        code("it").tick()
        pass_time(db, WEEK)
        assert code("it").tick().recorded == 1
        ((kind, _),) = skipped(db, "it")
        assert kind == "Missed"

    def test_ticks_of_another_app_do_not_make_a_definition_undeclared(
        self, app: Flask, code: Code, db: SQLAlchemy
    ) -> None:
        code("it").tick()
        db.session.execute(update(JobDefinition).values(app="another"))
        db.session.commit()
        code("other").tick()
        assert definition(db).undeclared_since is None


class TestPause:
    def test_slots_that_are_owed_at_the_pause_are_recorded(
        self, code: Code, db: SQLAlchemy
    ) -> None:
        jobs = code("it")
        jobs.tick()
        pass_time(db, 3 * HOUR)
        jobs.pause("it")
        assert sorted(run.status for run in runs(db, "it")) == ["queued", "skipped"]
        jobs.resume("it")
        jobs.tick()
        assert len(ran(db, "it")) == 1

    def test_slots_of_the_pause_are_one_skipped_row(self, code: Code, db: SQLAlchemy) -> None:
        jobs = code("it")
        jobs.tick()
        jobs.pause("it")
        pass_time(db, 5 * HOUR)
        jobs.resume("it")
        assert jobs.tick().recorded == 0
        assert skipped(db, "it") == [("Paused", 5)]

    @pytest.mark.parametrize("change", [{"schedule": "0 3 1 1 *"}, {"timezone": "Asia/Tokyo"}])
    def test_slots_of_a_pause_are_recorded_before_code_changes_the_schedule(
        self, code: Code, db: SQLAlchemy, change: dict[str, str]
    ) -> None:
        code("it").tick()
        code("it").pause("it")
        pass_time(db, 5 * HOUR)
        changed = code("it", **change)
        assert changed.tick().recorded == 0
        assert skipped(db, "it") == [("Paused", 5)]
        changed.tick()
        changed.resume("it")
        assert changed.tick().recorded == 0
        assert skipped(db, "it") == [("Paused", 5)]
        assert definition(db).paused_at is None

    def test_slots_of_a_pause_are_recorded_before_a_call_changes_the_schedule(
        self, code: Code, db: SQLAlchemy
    ) -> None:
        jobs = code("it", schedule="@yearly")
        hourly = f"{(now() + HOUR / 2).minute} * * * *"
        jobs.add_definition("own", "it", schedule=hourly)
        jobs.pause("own")
        for _ in range(2):
            pass_time(db, 5 * HOUR)
            jobs.add_definition("own", "it", schedule=hourly, timezone="Asia/Tokyo")
        jobs.resume("own")
        assert skipped(db, "it") == [("Paused", 5), ("Paused", 5)]

    def test_pause_without_a_slot_leaves_no_row(self, code: Code, db: SQLAlchemy) -> None:
        jobs = code("it", schedule="@yearly")
        jobs.tick()
        jobs.pause("it")
        jobs.resume("it")
        assert runs(db, "it") == []


class TestZoneRules:
    @pytest.fixture
    def rules(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        """Install other rules for all zones: this many hours ahead of UTC."""

        def rules(hours: int) -> None:
            def parse_zone(name: object) -> tzinfo:
                return timezone(timedelta(hours=hours))

            monkeypatch.setattr(schedules, "parse_zone", parse_zone)
            # As in a new process: rules do not change within one.
            scheduler._schedule.cache_clear()
            catchup._plan.cache_clear()

        return rules

    def test_slot_that_an_update_moves_to_the_past_is_run(
        self, code: Code, db: SQLAlchemy, rules: Callable[[int], None]
    ) -> None:
        at = (now() - 10 * MINUTE).replace(second=0, microsecond=0)
        local = at.astimezone(timezone(timedelta(hours=-3)))
        options = {"schedule": f"{local.minute} {local.hour} * * *", "timezone": "America/Asuncion"}
        rules(-4)
        code("it", **options).tick()
        row = definition(db)
        assert row.next_run_at == at + timedelta(hours=1)
        row.considered_until = now() - 40 * MINUTE
        db.session.commit()
        rules(-3)
        assert code("it", **options).tick().recorded == 1
        assert ran(db, "it") == [at]
        assert definition(db).next_run_at == at + timedelta(days=1)

    def test_slot_that_an_update_moves_back_is_run_once(
        self, code: Code, db: SQLAlchemy, rules: Callable[[int], None]
    ) -> None:
        at = (now() - 10 * MINUTE).replace(second=0, microsecond=0)
        local = at.astimezone(timezone(timedelta(hours=-3)))
        options = {"schedule": f"{local.minute} {local.hour} * * *", "timezone": "America/Asuncion"}
        rules(-3)
        code("it", **options).tick()
        row = definition(db)
        row.next_run_at, row.considered_until = at, at - MINUTE
        db.session.commit()
        rules(-4)
        assert code("it", **options).tick().recorded == 0
        assert definition(db).next_run_at == at + timedelta(hours=1)


class TestGrace:
    def test_catchup_none_runs_an_hourly_slot_under_ticks_each_five_minutes(
        self, code: Code, db: SQLAlchemy, rows: Any
    ) -> None:
        jobs = code("it", catchup="none")
        jobs.tick()
        for number in range(1, 20):
            rows.tick(age=300 * number)
        slot = (now() - 4 * MINUTE).replace(second=0, microsecond=0)
        hourly = {"schedule": f"{slot.minute} * * * *", "next_run_at": slot}
        db.session.execute(update(JobDefinition).values(considered_until=None, **hourly))
        db.session.commit()
        code("it", catchup="none", schedule=hourly["schedule"]).tick()
        assert ran(db, "it") == [slot]

    def test_catchup_none_still_skips_after_an_outage(
        self, code: Code, db: SQLAlchemy, rows: Any
    ) -> None:
        jobs = code("it", catchup="none")
        jobs.tick()
        for number in range(10, 40):
            rows.tick(age=60 * number)
        slot = (now() - 4 * MINUTE).replace(second=0, microsecond=0)
        hourly = {"schedule": f"{slot.minute} * * * *", "next_run_at": slot}
        db.session.execute(update(JobDefinition).values(considered_until=None, **hourly))
        db.session.commit()
        code("it", catchup="none", schedule=hourly["schedule"]).tick()
        assert ran(db, "it") == []
        assert skipped(db, "it") == [("Missed", 1)]

    def test_record_does_not_say_that_no_tick_ran_when_ticks_ran(
        self, code: Code, db: SQLAlchemy, rows: Any
    ) -> None:
        jobs = code("it")
        jobs.tick()
        pass_time(db, 3 * HOUR)
        rows.tick(age=120)
        jobs.tick()
        reasons = [run.last_error for run in runs(db, "it") if run.status == "skipped"]
        assert reasons == ["missed: ticks ran, but none recorded it in time"]
