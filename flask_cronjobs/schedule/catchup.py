"""Decide which slots of a due definition run, and which are recorded as skipped. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from ..types import Catchup
from . import Schedule

#: The largest number of missed slots that ``catchup="all"`` runs; older ones are recorded as
#: skipped.
CATCHUP_SLOTS = 100
#: How late a slot may be recorded and still run under ``catchup="none"``. A tick may come at any
#: second of its minute, so a gap of two minutes is not an outage.
CATCHUP_GRACE = timedelta(minutes=2)

_INSTANT = timedelta(microseconds=1)


class Slot(NamedTuple):
    """One instant that a schedule names, to be recorded as a row of ``job_runs``.

    :ivar skipped: the number of skipped slots in the row; 0 if the slot runs.
    :ivar first: the first of the skipped slots; *at* is the last.
    :ivar reason: why they are skipped.
    :ivar kind: the reason as one word for ``error_type``: ``Missed``, ``Undeclared`` or ``Paused``.
    """

    at: datetime
    skipped: int = 0
    first: datetime | None = None
    reason: str | None = None
    kind: str = "Missed"


class SlotPlan(NamedTuple):
    """The slots to record for one due definition, all or none.

    :ivar expected: the watermark that the plan starts from. If the row's watermark differs by now,
        another tick was faster and the plan is dropped.
    :ivar following: the new watermark; None if no slot follows.
    :ivar considered: the time up to which slots were considered; None keeps the row's value.
    """

    expected: datetime
    following: datetime | None
    slots: tuple[Slot, ...]
    considered: datetime | None = None


@lru_cache(maxsize=1024)
def plan_slots(
    schedule: Schedule,
    catchup: Catchup | None,
    first: datetime,
    now: datetime,
    considered: datetime | None = None,
    grace: timedelta = CATCHUP_GRACE,
    reason: str = "missed: no tick ran in time",
    kind: str = "Missed",
) -> SlotPlan:
    """Plan the slots up to *now*: from *first* on, or after *considered* if that is earlier.

    Plans are cached, since thousands of definitions may be due with one schedule at once.

    :param catchup: ``"latest"`` runs the newest slot, ``"all"`` the newest `CATCHUP_SLOTS`, and
        ``"none"`` the newest if it is not older than *grace*; None runs none. The other slots
        become one skipped row.
    :param first: the watermark.
    :param considered: every slot up to this time has been recorded, or never will be.
    :param reason: why slots are skipped.
    :param kind: the reason as one word, for ``error_type``.
    :returns: the plan; its slots are in order, and a skipped row is the first.
    """
    # A watermark before *considered* was moved back by hand, to record its slots again.
    after = first - _INSTANT if considered is None else min(considered, first - _INSTANT)
    limit = 0 if catchup is None else CATCHUP_SLOTS if catchup == "all" else 1
    run_times = schedule.tail(after, now, limit)
    if catchup == "none" and run_times and now - run_times[-1] > grace:
        run_times = []
    slots = [Slot(at) for at in run_times]
    until = run_times[0] - _INSTANT if run_times else now
    if skipped := schedule.count(after, until):
        (last,) = schedule.tail(after, until, 1)
        slots.insert(0, Slot(last, skipped, schedule.next_after(after), reason, kind))
    return SlotPlan(first, schedule.next_after(now), tuple(slots), now)
