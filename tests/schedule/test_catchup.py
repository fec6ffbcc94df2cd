"""Which slots of a due definition run, and which are recorded as skipped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import get_args

from hypothesis import example, given, settings
from hypothesis import strategies as st

from flask_cronjobs import Schedule
from flask_cronjobs.schedule.catchup import CATCHUP_GRACE, CATCHUP_SLOTS, Slot, plan_slots
from flask_cronjobs.types import Catchup

EVERY_MINUTE = Schedule("* * * * *")
NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=timezone.utc)
LATEST = NOW.replace(second=0)
MINUTE = timedelta(minutes=1)


POLICIES = st.sampled_from([*get_args(Catchup), None])
CRONS = st.sampled_from(["* * * * *", "*/5 * * * *", "3-59/7 * * * *", "0 * * * *"])
SECONDS = st.integers(0, 400).map(lambda seconds: timedelta(seconds=seconds))
SINCE = st.integers(0, 30_000).map(lambda seconds: timedelta(seconds=seconds))


@settings(max_examples=200, deadline=None)
@given(CRONS, POLICIES, SINCE, st.none() | SINCE, SECONDS)
@example("* * * * *", "all", 149 * MINUTE, None, CATCHUP_GRACE)
@example("* * * * *", "latest", 3 * MINUTE, 2 * MINUTE, CATCHUP_GRACE)
@example("* * * * *", "all", 0 * MINUTE, 3 * MINUTE, CATCHUP_GRACE)
@example("* * * * *", "none", 3 * MINUTE, None, timedelta(seconds=30))
@example("0 * * * *", "none", 3 * MINUTE, None, CATCHUP_GRACE)
@example("0 0 * * *", "latest", 0 * MINUTE, None, CATCHUP_GRACE)
def test_a_plan_is_as_a_plain_reading_of_all_slots(
    cron: str,
    catchup: Catchup | None,
    since: timedelta,
    looked_at: timedelta | None,
    grace: timedelta,
) -> None:
    schedule = Schedule(cron)
    first, considered = LATEST - since, None if looked_at is None else LATEST - looked_at
    plan = plan_slots(schedule, catchup, first, NOW, considered, grace, "r", "K")
    owed = [
        slot
        for slot in schedule.between(NOW - timedelta(days=1), NOW)
        if slot >= first or (considered is not None and slot > considered)
    ]
    number = {"latest": 1, "all": CATCHUP_SLOTS, "none": 1, None: 0}[catchup]
    runs = owed[max(len(owed) - number, 0) :]
    if catchup == "none" and runs and NOW - runs[-1] > grace:
        runs = []
    gone = owed[: len(owed) - len(runs)]
    skipped = [Slot(gone[-1], len(gone), gone[0], "r", "K")] if gone else []
    assert plan.slots == (*skipped, *map(Slot, runs))
    assert plan == (first, schedule.next_after(NOW), plan.slots, NOW)


def test_what_is_not_said_is_as_for_ticks_that_come_each_minute() -> None:
    plan = plan_slots(EVERY_MINUTE, "latest", LATEST - MINUTE, NOW)
    assert (plan.slots[0].reason, plan.slots[0].kind) == ("missed: no tick ran in time", "Missed")
    hourly = plan_slots(Schedule("0 * * * *"), "none", LATEST, LATEST + 2 * MINUTE)
    assert hourly.slots == (Slot(LATEST),)
    late = plan_slots(Schedule("0 * * * *"), "none", LATEST, NOW + 2 * MINUTE)
    assert [slot.skipped for slot in late.slots] == [1]


def moments_after(pauses: list[timedelta]) -> list[datetime]:
    """Return *NOW*, and the moment after each of *pauses*."""
    moments = [NOW]
    for pause in pauses:
        moments.append(moments[-1] + pause)
    return moments


def slots_of_ticks(schedule: Schedule, catchup: Catchup, moments: list[datetime]) -> Iterator[Slot]:
    """Yield the slots that ticks at *moments* record after *NOW*."""
    watermark = schedule.next_after(NOW)
    for moment in moments:
        if watermark is not None and watermark <= moment:
            plan = plan_slots(schedule, catchup, watermark, moment)
            assert plan.expected == watermark
            yield from plan.slots
            watermark = plan.following


@settings(max_examples=100, deadline=None)
@given(
    CRONS,
    st.sampled_from(get_args(Catchup)),
    st.lists(SECONDS, min_size=1, max_size=40),
)
def test_ticks_at_any_moments_account_for_each_slot_once(
    cron: str, catchup: Catchup, pauses: list[timedelta]
) -> None:
    """Ticks may come late in a minute, twice in one, from several hosts, or not at all."""
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
