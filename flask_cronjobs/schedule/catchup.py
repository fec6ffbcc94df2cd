"""Decide which slots of a due definition run, and which are recorded as skipped. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from ..types import Catchup
from .schedule import Schedule

#: How many missed slots ``catchup="all"`` runs at most; older ones are recorded as skipped.
CATCHUP_CAP = 100
#: How late a slot may be recorded and still run under ``catchup="none"``, where ticks come every
#: minute. They may be spread over it, so two minutes are not an outage.
CATCHUP_GRACE = timedelta(minutes=2)

_INSTANT = timedelta(microseconds=1)
_NO_TICK = "missed: no tick ran in time"


class Slot(NamedTuple):
    """One instant that a definition's schedule names, to be recorded as a row of ``job_runs``.

    :ivar skipped: how many skipped slots the row stands for; 0 means that it runs.
    :ivar first: the first of the skipped slots; *at* is the last.
    :ivar reason: why they are skipped.
    :ivar kind: the same in a word, for ``error_type``: ``Missed``, ``Undeclared`` or ``Paused``.
    """

    definition_id: int
    at: datetime
    skipped: int = 0
    first: datetime | None = None
    reason: str | None = None
    kind: str = "Missed"


class SlotPlan(NamedTuple):
    """What to record for one due definition, all or nothing.

    :ivar expected: the watermark that the plan starts from; if the row has another by now, another
        tick was faster and the plan is dropped.
    :ivar following: the new watermark; None if no slot follows.
    :ivar considered: up to when slots were considered; None leaves what the row has.
    """

    definition_id: int
    expected: datetime
    following: datetime | None
    slots: tuple[Slot, ...]
    considered: datetime | None = None


def plan_slots(
    definition_id: int,
    schedule: Schedule,
    catchup: Catchup,
    first: datetime,
    now: datetime,
    *,
    considered: datetime | None = None,
    grace: timedelta = CATCHUP_GRACE,
    reason: str = _NO_TICK,
) -> SlotPlan:
    """Plan the slots after *considered*, and from *first* (the watermark, included), to *now*.

    :param catchup: ``"latest"`` runs the newest slot, ``"all"`` the newest `CATCHUP_CAP`, and
        ``"none"`` the newest if it is not older than *grace*. All others become one row that is
        skipped.
    :param considered: every slot up to here has been recorded, or was never owed.
    :param reason: why slots are skipped.
    :returns: the plan; its slots in the order of time, the skipped row (if any) first.
    """
    plan = _plan(schedule, catchup, first, now, _after(first, considered), grace, reason)
    slots = tuple(slot._replace(definition_id=definition_id) for slot in plan.slots)
    return plan._replace(definition_id=definition_id, slots=slots)


@lru_cache(maxsize=1024)
def _plan(
    schedule: Schedule,
    catchup: Catchup,
    first: datetime,
    now: datetime,
    after: datetime,
    grace: timedelta,
    reason: str,
) -> SlotPlan:
    """Return the plan of definition 0. Cached: thousands may be due with one schedule at once."""
    running = schedule.tail(after, now, CATCHUP_CAP if catchup == "all" else 1)
    if catchup == "none" and running and now - running[-1] > grace:
        running = []
    slots = [Slot(0, at) for at in running]
    until = running[0] - _INSTANT if running else now
    slots[:0] = skipped_slots(0, schedule, after, until, reason, "Missed")
    return SlotPlan(0, first, schedule.next_after(now), tuple(slots), now)


def plan_skipped(
    definition_id: int,
    schedule: Schedule,
    first: datetime,
    now: datetime,
    *,
    considered: datetime | None,
    reason: str,
    kind: str,
) -> SlotPlan:
    """Plan the same slots as `plan_slots`, all skipped.

    :param kind: the reason in a word, for ``error_type``.
    """
    slots = skipped_slots(definition_id, schedule, _after(first, considered), now, reason, kind)
    return SlotPlan(definition_id, first, schedule.next_after(now), tuple(slots), now)


def skipped_slots(
    definition_id: int,
    schedule: Schedule,
    after: datetime,
    until: datetime,
    reason: str,
    kind: str,
) -> list[Slot]:
    """Return one skipped slot for all with *after* < slot <= *until*; none if there are none."""
    number = schedule.count(after, until)
    if not number:
        return []
    (last,) = schedule.tail(after, until, 1)
    first = schedule.next_after(after)
    return [Slot(definition_id, last, number, first=first, reason=reason, kind=kind)]


def _after(first: datetime, considered: datetime | None) -> datetime:
    # A watermark before `considered` was moved back by hand, to record its slots again.
    return first - _INSTANT if considered is None else min(considered, first - _INSTANT)
