"""What is due now: what ``tick --dry-run`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, func, or_, select, text

from ..models.conditions import KEYED, RUNNING, SCHEDULED, UNKEYED
from .reader import DEFINITIONS, RUNS, Reader, Source, reading
from .waiting import not_paused

#: How many rows of each kind are read at most.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Due:
    """What is due now.

    :ivar definitions: names, each with the slot that is due.
    :ivar runs: tasks and queues, each with the number of runs.
    :ivar expired: how many leases ran out.
    """

    definitions: tuple[tuple[str, datetime], ...]
    runs: tuple[tuple[str, str, int], ...]
    expired: int


class Next(NamedTuple):
    """What is due next: a definition's slot or a task's run, and when."""

    at: datetime
    name: str


def due(source: Source, queues: tuple[str, ...] = ()) -> Due:
    """Return what is due now, in *queues* or in all; at most `MOST` of each kind."""
    with reading(source) as reader:
        definitions = reader.rows(
            select(DEFINITIONS.c.name, DEFINITIONS.c.next_run_at)
            .where(text(SCHEDULED), DEFINITIONS.c.next_run_at <= reader.now, _ours(reader))
            .order_by(DEFINITIONS.c.next_run_at)
            .limit(MOST)
        )
        counts: dict[tuple[str, str], int] = {}
        waits = not_paused(reader)
        for condition in (UNKEYED, KEYED):
            statement = select(RUNS.c.job_type, RUNS.c.queue).where(
                text(condition), RUNS.c.run_at <= reader.now, *waits
            )
            if queues:
                statement = statement.where(RUNS.c.queue.in_(queues))
            some = statement.limit(MOST).subquery()
            grouped = select(some.c.job_type, some.c.queue, func.count().label("number"))
            for row in reader.rows(grouped.group_by(some.c.job_type, some.c.queue)):
                key = (row.job_type, row.queue)
                counts[key] = counts.get(key, 0) + row.number
        expired = reader.rows(
            select(func.count())
            .select_from(RUNS)
            .where(text(RUNNING), RUNS.c.locked_until <= reader.now)
        )
        return Due(
            tuple((row.name, row.next_run_at) for row in definitions),
            tuple((task, queue, number) for (task, queue), number in sorted(counts.items())),
            expired[0][0],
        )


def next_due(source: Source) -> Next | None:
    """Return which slot or waiting run will be due next; None if there is none."""
    slot, run = DEFINITIONS.c.next_run_at, RUNS.c.run_at
    with reading(source) as reader:
        slots = select(slot.label("at"), DEFINITIONS.c.name).where(
            text(SCHEDULED), slot > reader.now, _ours(reader)
        )
        runs = [
            select(run.label("at"), RUNS.c.job_type.label("name"))
            .where(text(part), run > reader.now)
            .order_by(run)
            for part in (UNKEYED, KEYED)
        ]
        found = [reader.rows(each.limit(1)) for each in (slots.order_by(slot), *runs)]
    return min((Next(rows[0].at, rows[0].name) for rows in found if rows), default=None)


def _ours(reader: Reader) -> ColumnElement[bool]:
    """Return the condition that this app enqueues a definition's slots, as `definitions.read`."""
    registry = reader.state.registry
    declared = DEFINITIONS.c.name.in_(list(registry.declarations))
    known = DEFINITIONS.c.job_type.in_(list(registry.tasks))
    return or_(
        and_(DEFINITIONS.c.origin == "code", declared),
        and_(DEFINITIONS.c.origin == "database", known),
    )
