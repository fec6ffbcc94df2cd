"""Which slots are owed when definitions leave the code and return, pause, or change zones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs.core import scheduler
from flask_cronjobs.models import JobDefinition, JobRun, JobTick
from flask_cronjobs.schedule import catchup
from flask_cronjobs.schedule import walk as schedules
from tests.core.conftest import Code
from tests.rows import Rows, now

pytestmark = pytest.mark.usefixtures("context")

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
WEEK = timedelta(days=7)
LetTimePass = Callable[[timedelta], None]


@pytest.fixture
def pass_time(db: SQLAlchemy) -> LetTimePass:
    """Return a function that moves all times in the tables into the past."""

    def pass_time(by: timedelta) -> None:
        for model, columns in (
            (JobDefinition, ("next_run_at", "considered_until", "undeclared_since", "paused_at")),
            (JobRun, ("scheduled_for",)),
            (JobTick, ("started_at", "seen_at", "finished_at")),
        ):
            # The rows change in the order of ids, so that no slot meets an older one of its
            # definition.
            for row in db.session.scalars(select(model).order_by(model.id)):
                for column in columns:
                    if (at := getattr(row, column)) is not None:
                        setattr(row, column, at - by)
        db.session.commit()

    return pass_time


@pytest.fixture
def hourly(code: Code) -> dict[str, Any]:
    """The option that gives a definition a slot each hour, and none while a test runs."""
    return {"schedule": code.hourly()}


class TestDroppedByCode:
    def test_schedule_brought_back_after_a_week_runs_no_slot_of_that_week(
        self, code: Code, pass_time: LetTimePass, hourly: dict[str, Any]
    ) -> None:
        code(catchup="all", **hourly).tick()
        code("other").tick()
        pass_time(WEEK)
        code("other").tick()
        report = code(catchup="all", **hourly).tick()
        assert (report.recorded, report.skipped) == (0, 1)
        assert code.skipped("it") == [("Undeclared", 7 * 24)]
        assert "not declared" in str(code.runs("it")[0].last_error)
        assert code.definition().undeclared_since is None
        assert code.next_is_ahead()

    def test_rename_that_is_rolled_back_runs_no_slot_under_both_names(
        self, code: Code, pass_time: LetTimePass, hourly: dict[str, Any]
    ) -> None:
        code("old", **hourly).tick()
        code("new", **hourly).tick()
        for _ in range(10):
            pass_time(HOUR)
            code("new", **hourly).tick()
        code("old", **hourly).tick()
        assert len(code.ran("new")) == 10
        assert code.ran("old") == []
        assert [kind for kind, _ in code.skipped("old")] == ["Undeclared"]
        pass_time(HOUR)
        code("old", **hourly).tick()
        assert len(code.ran("old")) == 1

    def test_old_and_new_code_side_by_side_lose_no_slot_of_the_new_one(
        self, code: Code, pass_time: LetTimePass
    ) -> None:
        # A minute may begin meanwhile, and then two slots are due.
        every: dict[str, Any] = {"schedule": "* * * * *", "catchup": "all"}
        for _ in range(5):
            code("old", "new", **every).tick()
            code("old", **every).tick()
            pass_time(MINUTE)
            code("old", **every).tick()
        assert code("old", "new", **every).tick().recorded >= 1
        assert len(code.ran("new")) >= 5
        assert len(code.ran("old")) >= 5
        assert code.skipped("new") == []

    def test_ticks_of_another_app_do_not_make_a_definition_undeclared(self, code: Code) -> None:
        code().tick()
        code.set(app="another")
        code("other").tick()
        assert code.definition().undeclared_since is None


class TestPause:
    def test_slots_that_are_owed_at_the_pause_are_recorded(
        self, code: Code, pass_time: LetTimePass, hourly: dict[str, Any]
    ) -> None:
        jobs = code(**hourly)
        jobs.tick()
        pass_time(3 * HOUR)
        jobs.pause("it")
        assert sorted(run.status for run in code.runs()) == ["queued", "skipped"]
        jobs.resume("it")
        jobs.tick()
        assert len(code.ran()) == 1

    def test_slots_of_the_pause_are_one_skipped_row(
        self, code: Code, pass_time: LetTimePass, hourly: dict[str, Any]
    ) -> None:
        jobs = code(**hourly)
        jobs.tick()
        jobs.pause("it")
        pass_time(5 * HOUR)
        assert jobs.tick().recorded == 0
        assert jobs.resume("it")
        assert not jobs.resume("it")
        assert jobs.tick().recorded == 0
        assert code.skipped() == [("Paused", 5)]
        assert code.next_is_ahead()

    @pytest.mark.parametrize("change", [{"schedule": "0 3 1 1 *"}, {"timezone": "Asia/Tokyo"}])
    def test_slots_of_a_pause_are_recorded_before_code_changes_the_schedule(
        self, code: Code, pass_time: LetTimePass, hourly: dict[str, Any], change: dict[str, str]
    ) -> None:
        code(**hourly).tick()
        code(**hourly).pause("it")
        pass_time(5 * HOUR)
        changed = code(**{**hourly, **change})
        assert changed.tick().recorded == 0
        assert code.skipped() == [("Paused", 5)]
        changed.tick()
        assert changed.resume("it")
        assert changed.tick().recorded == 0
        assert code.skipped() == [("Paused", 5)]
        assert code.definition().paused_at is None

    def test_slots_of_a_pause_are_one_row_whatever_else_changes_meanwhile(
        self, code: Code, pass_time: LetTimePass, hourly: dict[str, Any]
    ) -> None:
        """An app may add the definitions of its customers at each start."""
        own = {"name": "own", "task": "it", **hourly}
        jobs = code(**hourly)
        jobs.tick()
        jobs.add_definition(**own)
        for name in ("it", "own"):
            jobs.pause(name)
        pass_time(3 * HOUR)
        code(priority=1, **hourly).tick()
        jobs.add_definition(**own)
        pass_time(2 * HOUR)
        for name in ("it", "own"):
            assert jobs.resume(name)
        assert code.skipped() == [("Paused", 5)] * 2

    def test_code_changes_a_paused_schedule_that_had_no_slot_since(
        self, code: Code, hourly: dict[str, Any]
    ) -> None:
        code(**hourly).tick()
        code(**hourly).pause("it")
        code(timezone="Asia/Tokyo", **hourly).tick()
        assert code.definition().timezone == "Asia/Tokyo"
        assert code.skipped() == []


class TestZoneRules:
    @pytest.fixture
    def rules(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        """Install other rules for all zones: this many hours ahead of UTC."""

        def rules(hours: int) -> None:
            def parse_zone(name: object) -> tzinfo:
                return timezone(timedelta(hours=hours))

            monkeypatch.setattr(schedules, "parse_zone", parse_zone)
            # This simulates a new process: rules do not change within one.
            scheduler._schedule.cache_clear()
            catchup.plan_slots.cache_clear()

        return rules

    @pytest.fixture
    def at(self) -> datetime:
        """Return a slot of some minutes ago, in a zone three hours behind UTC."""
        return (now() - 10 * MINUTE).replace(second=0, microsecond=0)

    @pytest.fixture
    def daily(self, at: datetime) -> dict[str, Any]:
        """Return the options of a definition with that slot each day."""
        local = at.astimezone(timezone(timedelta(hours=-3)))
        return {"schedule": f"{local.minute} {local.hour} * * *", "timezone": "America/Asuncion"}

    def test_slot_that_an_update_moves_back_is_run_once(
        self, code: Code, rules: Callable[[int], None], at: datetime, daily: dict[str, Any]
    ) -> None:
        rules(-3)
        code(**daily).tick()
        code.set(next_run_at=at, considered_until=at - MINUTE)
        rules(-4)
        assert code(**daily).tick().recorded == 0
        assert code.definition().next_run_at == at + HOUR


class TestGrace:
    @pytest.mark.parametrize(
        ("ages", "runs"),
        [(range(300, 6000, 300), True), (range(600, 2400, 60), False)],
        ids=["ticks each five minutes", "an outage"],
    )
    def test_catchup_none_runs_a_slot_unless_ticks_stayed_away(
        self, code: Code, rows: Rows, ages: range, runs: bool
    ) -> None:
        code(catchup="none", schedule=code.hourly()).tick()
        for age in ages:
            rows.tick(age=age)
        slot = (now() - 4 * MINUTE).replace(second=0, microsecond=0)
        hourly = f"{slot.minute} * * * *"
        code.set(considered_until=None, schedule=hourly, next_run_at=slot)
        code(catchup="none", schedule=hourly).tick()
        assert code.ran() == ([slot] if runs else [])
        assert code.skipped() == ([] if runs else [("Missed", 1)])

    def test_record_does_not_say_that_no_tick_ran_when_ticks_ran(
        self, code: Code, rows: Rows, pass_time: LetTimePass, hourly: dict[str, Any]
    ) -> None:
        jobs = code(**hourly)
        jobs.tick()
        pass_time(3 * HOUR)
        rows.tick(age=120)
        jobs.tick()
        reasons = [run.last_error for run in code.runs() if run.status == "skipped"]
        assert reasons == ["missed: ticks ran, but none recorded it in time"]
