"""Decide which slots of a due definition run, and which are recorded as skipped. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache

from ..types import Catchup, Slot, SlotPlan
from .schedule import Schedule

#: How many missed slots ``catchup="all"`` runs at most; older ones are recorded as skipped.
CATCHUP_CAP = 100
#: How late a slot may be recorded and still run under ``catchup="none"``. Ticks come every minute
#: and may be spread over it, so two minutes are not an outage.
CATCHUP_GRACE = timedelta(minutes=2)

_INSTANT = timedelta(microseconds=1)


def plan_slots(
    definition_id: int, schedule: Schedule, catchup: Catchup, first: datetime, now: datetime
) -> SlotPlan:
    """Plan the slots from *first* (the watermark, included) to *now*.

    :param catchup: ``"latest"`` runs the newest slot, ``"all"`` the newest `CATCHUP_CAP`, and
        ``"none"`` the newest if it is not older than `CATCHUP_GRACE`. All others become one row
        that is skipped.
    :returns: the plan; its slots in the order of time, the skipped row (if any) first.
    """
    plan = _plan(schedule, catchup, first, now)
    slots = tuple(replace(slot, definition_id=definition_id) for slot in plan.slots)
    return replace(plan, definition_id=definition_id, slots=slots)


@lru_cache(maxsize=1024)
def _plan(schedule: Schedule, catchup: Catchup, first: datetime, now: datetime) -> SlotPlan:
    """Return the plan of definition 0. Cached: thousands may be due with one schedule at once."""
    after = first - _INSTANT
    wanted = CATCHUP_CAP if catchup == "all" else 1
    # One more than will run: the newest skipped slot gives the skipped row its time.
    newest = schedule.tail(after, now, wanted + 1)
    running = newest[-wanted:]
    if catchup == "none" and running and now - running[-1] > CATCHUP_GRACE:
        running = []
    slots = [Slot(0, at) for at in running]
    skipped = schedule.count(after, now) - len(running)
    if skipped > 0:
        gap = newest[len(newest) - len(running) - 1]
        reason = "missed: no tick ran in time"
        slots.insert(0, Slot(0, gap, skipped, first=first, reason=reason))
    return SlotPlan(0, first, schedule.next_after(now), tuple(slots))
