"""Definitions whose slots no tick records, though ticks come."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select, text

from ..models.columns import UNREADABLE
from ..models.conditions import SCHEDULED
from .counts import Count, capped, count_of
from .humanize import duration, seconds_since
from .reader import DEFINITIONS, Reader

#: What to check, for the doctor and the verdict.
CHECK = "Does the FLASK_APP of cron's line import the module that declares it?"
_NAMES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Late:
    """Definitions whose next slot has waited for longer than ``CRONJOBS_HEALTH_OVERDUE``.

    :ivar name: the definition whose slot has waited longest.
    :ivar seconds: for how long; None if no tick has ever recorded the definition.
    :ivar count: how many definitions there are.
    """

    name: str
    seconds: float | None
    count: Count

    def __str__(self) -> str:
        """Return the same for people, as the end of a sentence."""
        others = f" (and {self.count.value - 1} more)" if self.count.value > 1 else ""
        if self.seconds is None:
            return f"no tick has recorded the definition {self.name!r}{others}"
        waited = duration(self.seconds)
        return f"the definition {self.name!r}{others} has been due for {waited}: no tick records it"


def late_definitions(reader: Reader) -> Late | None:
    """Return the definitions that no tick serves; None if there are none."""
    overdue = reader.state.settings.health_overdue
    before = reader.now - timedelta(seconds=overdue)
    waiting = select(DEFINITIONS.c.name, DEFINITIONS.c.next_run_at).where(
        text(SCHEDULED), DEFINITIONS.c.next_run_at < before
    )
    count = capped(waiting).label("number")
    first = waiting.add_columns(count).order_by(DEFINITIONS.c.next_run_at).limit(1)
    for row in reader.rows(first):
        at: datetime = row.next_run_at
        waited = None if at == UNREADABLE else seconds_since(at, reader.now)
        return Late(row.name, waited, count_of(row.number))
    if time.monotonic() - reader.state.started > overdue and (names := unrecorded(reader)):
        return Late(names[0], None, Count(len(names)))
    return None


def unrecorded(reader: Reader) -> list[str]:
    """Return the names of the definitions that this app's code declares and the table lacks.

    A tick inserts them. Those that were found once are not looked for again.
    """
    known = reader.state.known_rows
    wanted = [name for name in reader.state.registry.declarations if name not in known]
    for start in range(0, len(wanted), _NAMES_AT_ONCE):
        some = wanted[start : start + _NAMES_AT_ONCE]
        rows = reader.rows(select(DEFINITIONS.c.name).where(DEFINITIONS.c.name.in_(some)))
        known.update(row.name for row in rows)
    return [name for name in wanted if name not in known]
