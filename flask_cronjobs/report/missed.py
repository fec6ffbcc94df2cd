"""Slots that were missed: what stands in the rows that ticks record for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import select, text

from ..models.conditions import SET_ASIDE
from .humanize import plural
from .reader import RUNS, Reader, readable

#: How many skipped and cancelled runs, newest first, are searched for missed slots.
_LOOKED_AT = 2000
_SHOWN = ("scheduled_for", "definition_id")


@dataclass(frozen=True, slots=True)
class Missed:
    """Slots that were missed, as recorded in the last 24 hours.

    :ivar slots: how many.
    :ivar first: the first of them.
    :ivar last: the last.
    :ivar definition_ids: the definitions that missed them.
    """

    slots: int
    first: datetime
    last: datetime
    definition_ids: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the same for people, such as "3 slots were missed, from … to …"."""
        were = "was" if self.slots == 1 else "were"
        span = f"from {_minute(self.first)} to {_minute(self.last)} UTC"
        return f"{plural(self.slots, 'slot')} {were} missed, {span}"


def missed_slots(reader: Reader) -> Missed | None:
    """Return the slots that were recorded as missed in the last 24 hours; None if there are none.

    Slots of a pause, of a time when no code declared the definition, and overlaps are not missed.
    """
    newest = (
        select(
            readable(reader, RUNS.c.result),
            *(RUNS.c[name] for name in (*_SHOWN, "error_type", "finished_at")),
        )
        .where(text(SET_ASIDE))
        .order_by(RUNS.c.id.desc())
        .limit(_LOOKED_AT)
        .subquery()
    )
    rows = reader.rows(
        select(newest.c.result, *(newest.c[name] for name in _SHOWN)).where(
            newest.c.error_type == "Missed",
            newest.c.finished_at >= reader.now - timedelta(days=1),
        )
    )
    if not rows:
        return None
    spans = [_span(row.result, row.scheduled_for) for row in rows]
    return Missed(
        sum(number for number, _, _ in spans),
        min(first for _, first, _ in spans),
        max(last for _, _, last in spans),
        tuple({row.definition_id: None for row in rows if row.definition_id is not None}),
    )


def _span(result: Any, last: datetime) -> tuple[int, datetime, datetime]:
    """Return how many slots a row stands for, the first and the last; 1 if it was edited."""
    try:
        return int(result["skipped"]), datetime.fromisoformat(result["from"]), last
    except (TypeError, KeyError, ValueError):
        return 1, last, last


def _minute(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M}"
