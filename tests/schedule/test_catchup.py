"""Which slots of a due definition run, and which are recorded as skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flask_cronjobs import Schedule
from flask_cronjobs.schedule.catchup import CATCHUP_CAP, Slot, SlotPlan, plan_slots
from flask_cronjobs.types import Catchup

EVERY_MINUTE = Schedule("* * * * *")
NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=timezone.utc)
LATEST = NOW.replace(second=0)
MINUTE = timedelta(minutes=1)


def planned(catchup: Catchup, missed: int, now: datetime = NOW) -> SlotPlan:
    """The plan when the newest slot is due and *missed* more are, before it."""
    return plan_slots(7, EVERY_MINUTE, catchup, LATEST - missed * MINUTE, now)


def running(plan: SlotPlan) -> list[datetime]:
    return [slot.at for slot in plan.slots if not slot.skipped]


def skipped(plan: SlotPlan) -> list[tuple[int, datetime | None, datetime]]:
    return [(slot.skipped, slot.first, slot.at) for slot in plan.slots if slot.skipped]


@pytest.mark.parametrize("catchup", ["latest", "all", "none"])
def test_one_due_slot_runs_whatever_the_policy(catchup: Catchup) -> None:
    plan = planned(catchup, 0)
    assert running(plan) == [LATEST]
    assert skipped(plan) == []
    assert (plan.definition_id, plan.expected) == (7, LATEST)
    assert plan.following == LATEST + MINUTE


def test_latest_runs_the_newest_and_records_the_others_as_one_gap() -> None:
    plan = planned("latest", 5)
    assert running(plan) == [LATEST]
    assert skipped(plan) == [(5, LATEST - 5 * MINUTE, LATEST - MINUTE)]
    assert plan.slots[0].reason == "missed: no tick ran in time"
    assert plan.following == LATEST + MINUTE


def test_watermark_that_was_moved_back_gives_its_slots_again() -> None:
    first, considered = LATEST - 3 * MINUTE, LATEST - MINUTE
    plan = plan_slots(7, EVERY_MINUTE, "all", first, NOW, considered=considered)
    assert running(plan) == [first, first + MINUTE, considered, LATEST]


def test_slots_between_what_was_considered_and_the_watermark_are_owed() -> None:
    considered = LATEST - 3 * MINUTE
    plan = plan_slots(7, EVERY_MINUTE, "all", LATEST, NOW, considered=considered)
    assert running(plan) == [LATEST - 2 * MINUTE, LATEST - MINUTE, LATEST]


@pytest.mark.parametrize("hours", [1, 24, 24 * 365], ids=["an hour", "a day", "a year"])
def test_outage_of_any_length_is_one_run_and_one_gap(hours: int) -> None:
    plan = planned("latest", hours * 60)
    assert running(plan) == [LATEST]
    assert skipped(plan) == [(hours * 60, LATEST - hours * 60 * MINUTE, LATEST - MINUTE)]


def test_all_runs_each() -> None:
    plan = planned("all", 5)
    assert running(plan) == [LATEST - minutes * MINUTE for minutes in range(5, -1, -1)]
    assert skipped(plan) == []


def test_all_runs_no_more_than_its_cap() -> None:
    plan = planned("all", CATCHUP_CAP + 49)
    assert running(plan) == [LATEST - minutes * MINUTE for minutes in range(99, -1, -1)]
    assert skipped(plan) == [(50, LATEST - 149 * MINUTE, LATEST - 100 * MINUTE)]


def test_none_runs_the_newest_within_the_grace() -> None:
    plan = planned("none", 3)
    assert running(plan) == [LATEST]
    assert skipped(plan) == [(3, LATEST - 3 * MINUTE, LATEST - MINUTE)]


def test_none_runs_nothing_older_than_the_grace() -> None:
    hourly = Schedule("0 * * * *")
    late = LATEST + timedelta(minutes=10)
    plan = plan_slots(7, hourly, "none", LATEST - timedelta(hours=2), late)
    assert running(plan) == []
    assert skipped(plan) == [(3, LATEST - timedelta(hours=2), LATEST)]
    assert plan.following == LATEST + timedelta(hours=1)


@pytest.mark.parametrize("catchup", ["latest", "all", "none"])
def test_a_year_of_missed_minutes_costs_milliseconds(catchup: Catchup) -> None:
    missed = 365 * 24 * 60
    started = time.thread_time()
    plan = planned(catchup, missed)
    # A minute-by-minute walk over the year takes many times as long.
    assert time.thread_time() - started < 2
    assert len(running(plan)) + skipped(plan)[0][0] == missed + 1
    assert len(skipped(plan)) == 1


def test_watermark_between_slots_is_no_slot() -> None:
    plan = plan_slots(7, EVERY_MINUTE, "all", LATEST - timedelta(seconds=10), NOW)
    assert running(plan) == [LATEST]


def test_watermark_after_which_nothing_came_moves_on_without_a_slot() -> None:
    """As after a change of the zone's rules."""
    plan = plan_slots(7, Schedule("0 0 * * *"), "latest", LATEST, NOW)
    assert plan.slots == ()
    assert plan.following == datetime(2026, 3, 2, tzinfo=timezone.utc)


SECONDS = st.integers(0, 400).map(lambda seconds: timedelta(seconds=seconds))


def moments_after(pauses: list[timedelta]) -> list[datetime]:
    """*NOW*, and the moment after each of *pauses*."""
    moments = [NOW]
    for pause in pauses:
        moments.append(moments[-1] + pause)
    return moments


def slots_of_ticks(schedule: Schedule, catchup: Catchup, moments: list[datetime]) -> Iterator[Slot]:
    """What ticks at *moments* record, from *NOW* on."""
    watermark = schedule.next_after(NOW)
    for moment in moments:
        if watermark is not None and watermark <= moment:
            plan = plan_slots(7, schedule, catchup, watermark, moment)
            assert plan.expected == watermark
            yield from plan.slots
            watermark = plan.following


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["* * * * *", "*/5 * * * *", "3-59/7 * * * *"]),
    st.sampled_from(get_args(Catchup)),
    st.lists(SECONDS, min_size=1, max_size=40),
)
def test_ticks_at_any_moments_account_for_each_slot_once(
    cron: str, catchup: Catchup, pauses: list[timedelta]
) -> None:
    """They cross the minute as they boot, come twice in one, from several hosts, or stay away."""
    schedule = Schedule(cron)
    moments = moments_after(pauses)
    slots = list(slots_of_ticks(schedule, catchup, moments))
    times = [slot.at for slot in slots]
    assert times == sorted(set(times))
    assert all(NOW < at <= moments[-1] for at in times)
    assert sum(slot.skipped or 1 for slot in slots) == schedule.count(NOW, moments[-1])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=60))
def test_ticks_at_least_once_a_minute_run_each_slot(pauses: list[int]) -> None:
    moments = moments_after([timedelta(seconds=pause) for pause in pauses])
    slots = list(slots_of_ticks(EVERY_MINUTE, "none", moments))
    assert [slot.skipped for slot in slots] == [0] * len(slots)
    assert [slot.at for slot in slots] == list(EVERY_MINUTE.between(NOW, moments[-1]))
