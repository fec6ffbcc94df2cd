"""Definitions with their last outcomes and next slots, and the list of all definitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy import ColumnElement, Row, func, select, true

from ..errors import ScheduleError
from ..models.columns import UNREADABLE
from ..schedule import Schedule
from ..schedule.cron_text import parse_zone
from ..text.redaction import host_of
from ..types import Status
from .reader import DEFINITIONS, RUNS, Query, Reader, Source, reading, record
from .run_rows import seconds_taken
from .schedule_needs import Need, Needs, needs


@dataclass(frozen=True, slots=True)
class Cell:
    """One of the last runs of a definition.

    :ivar took: the seconds that its last attempt took, if it ran to its end.
    """

    id: int
    status: Status
    scheduled_for: datetime
    took: float | None
    error_type: str | None


@dataclass(frozen=True, slots=True)
class DefinitionView:
    """A definition with its last runs.

    :ivar origin: ``code`` or ``database``.
    :ivar cells: its last ten runs, oldest first.
    :ivar last_seconds: the latest ``took`` among *cells* that is not None.
    :ivar next_slots: the next three slots, in the definition's zone; none while it is paused. The
        first is in the past if no tick has recorded it yet.
    :ivar broken: the reason why it cannot be read, if it cannot.
    :ivar orphaned: whether this app's code does not declare its task.
    :ivar undeclared: whether it came from code, but this app's code does not declare it.
    :ivar elsewhere: whether it is undeclared here, but other code that ticks declares it.
    :ivar app: the name of the app whose code declared it.
    :ivar due_since: the slot that is due and not yet recorded, if there is one.
    :ivar ping: the host of its ping URL; the rest of the URL is a secret.
    :ivar needs: the reasons why it needs attention, most urgent first.
    """

    id: int
    name: str
    task: str
    schedule: str
    timezone: str
    queue: str
    priority: int
    catchup: str
    overlap: str
    origin: str
    paused_at: datetime | None
    next_run_at: datetime | None
    cells: tuple[Cell, ...]
    last_seconds: float | None
    next_slots: tuple[datetime, ...]
    broken: str | None
    orphaned: bool
    undeclared: bool
    elsewhere: bool
    app: str | None
    due_since: datetime | None
    ping: str | None
    needs: tuple[Need, ...]

    @property
    def is_enqueued(self) -> bool:
        """Whether code that runs ticks declares it and its task, so that its slots can run."""
        return self.elsewhere or not (self.orphaned or self.undeclared)


#: The maximum number of runs of each definition that are shown.
CELLS = 10
#: The maximum number of next slots of each definition that are shown.
NEXT = 3
#: How far ahead a slot is searched for: the next February 29 may be 8 years away, and the next one
#: on a Monday 40 years.
_HORIZON = timedelta(days=366 * 41)
_NAMES = 5_000
_OF_A_RUN = (
    "id", "definition_id", "status", "scheduled_for", "started_at", "finished_at", "error_type",
)  # fmt: skip


def definition_names(source: Source) -> list[str]:
    """Return the names of all definitions, up to 5,000, to suggest one for a misspelled name."""
    with reading(source) as reader:
        statement = select(DEFINITIONS.c.name).order_by(DEFINITIONS.c.name).limit(_NAMES)
        return [row.name for row in reader.rows(statement)]


@lru_cache(maxsize=1_000)
def next_slots(cron: str, zone: str, minute: datetime) -> tuple[datetime, ...]:
    """Return the next slots after *minute*, in the schedule's zone.

    Finding them takes half the time of a page of definitions, so they are cached.

    :raises ScheduleError: the schedule or its zone cannot be read.
    """
    following = islice(Schedule(cron, zone).between(minute, minute + _HORIZON), NEXT)
    local = parse_zone(zone)
    return tuple(slot.astimezone(local) for slot in following)


def definition_views(reader: Reader, rows: Sequence[Row[Any]]) -> tuple[DefinitionView, ...]:
    """Return the definitions of *rows*, which have all columns, with their last runs."""
    latest = _last_runs_by_id(reader, [row.id for row in rows])
    return tuple(_view(reader, row, latest[row.id]) for row in rows)


def _view(reader: Reader, row: Row[Any], latest: Sequence[Row[Any]]) -> DefinitionView:
    registry, cells = reader.state.registry, tuple(map(_cell, reversed(latest)))
    undeclared = row.origin == "code" and row.name not in registry.declarations
    return record(
        DefinitionView,
        row,
        task=row.job_type,
        cells=cells,
        last_seconds=next((c.took for c in reversed(cells) if c.took is not None), None),
        next_slots=_slots(row, reader.now),
        broken=why_broken(row),
        orphaned=row.job_type not in registry.tasks,
        undeclared=undeclared,
        elsewhere=undeclared and row.app is not None and row.undeclared_since is None,
        due_since=_due_since(row, reader.now),
        ping=None if row.ping_url is None else host_of(str(row.ping_url)),
        needs=needs(reader).of(row),
    )


def _due_since(row: Row[Any], now: datetime) -> datetime | None:
    at: datetime | None = row.next_run_at
    if at is None or at == UNREADABLE or row.paused_at is not None or at > now:
        return None
    return at


def why_broken(row: Row[Any]) -> str | None:
    """Return the reason why the definition *row* cannot be read, if it cannot."""
    if row.next_run_at == UNREADABLE:
        return "Its next_run_at is not a time."
    if not isinstance(row.payload, dict):
        return "Its payload is not a JSON object."
    return _unreadable(row.schedule, row.timezone)


@lru_cache(maxsize=1_000)
def _unreadable(cron: str, zone: str) -> str | None:
    try:
        Schedule(cron, zone)
    except ScheduleError as error:
        return str(error)
    return None


def _slots(row: Row[Any], now: datetime) -> tuple[datetime, ...]:
    """Return the next slots. If a slot is due and no tick has recorded it yet, it comes first."""
    if row.paused_at is not None or why_broken(row) is not None:
        return ()
    # Slots are at whole minutes.
    slots = next_slots(row.schedule, row.timezone, now.replace(second=0, microsecond=0))
    if row.next_run_at is None or row.next_run_at > now:
        return slots
    due_slot = row.next_run_at.astimezone(parse_zone(row.timezone))
    return (due_slot, *slots[: NEXT - 1])


def _cell(run: Row[Any]) -> Cell:
    took = seconds_taken(run.status, run.started_at, run.finished_at)
    return record(Cell, run, took=took)


def _last_runs_by_id(reader: Reader, ids: Sequence[int]) -> dict[int, list[Row[Any]]]:
    """Return the latest runs of each definition that has runs, newest first."""
    runs_by_id: dict[int, list[Row[Any]]] = defaultdict(list)
    for row in reader.rows(_last_runs(reader, ids)) if ids else ():
        runs_by_id[row.definition_id].append(row)
    return runs_by_id


def _last_runs(reader: Reader, ids: Sequence[int]) -> Query:
    latest = RUNS.alias("latest")
    last = (
        select(*(latest.c[name] for name in _OF_A_RUN))
        .where(latest.c.definition_id == DEFINITIONS.c.id)
        .order_by(latest.c.scheduled_for.desc())
        .limit(CELLS)
    )
    is_listed = DEFINITIONS.c.id.in_(ids)
    if not reader.dialect.one_writer:
        lateral = last.lateral("last")
        return (
            select(lateral)
            .select_from(DEFINITIONS.join(lateral, true()))
            .where(is_listed)
            .order_by(lateral.c.definition_id, lateral.c.scheduled_for.desc())
        )
    # A correlated subquery of ids uses the index even without LATERAL.
    own = last.with_only_columns(latest.c.id).correlate(DEFINITIONS)
    return (
        select(*(RUNS.c[name] for name in _OF_A_RUN))
        .select_from(DEFINITIONS.join(RUNS, RUNS.c.id.in_(own)))
        .where(is_listed)
        .order_by(RUNS.c.definition_id, RUNS.c.scheduled_for.desc())
    )


#: ``need`` orders by the most urgent need, then by name; ``next`` orders by the next slot.
Sort: TypeAlias = Literal["need", "name", "next"]


@dataclass(frozen=True, slots=True)
class DefinitionList:
    """A page of definitions.

    :ivar total: the number of definitions on all pages.
    :ivar page: the number of this page, from 1.
    :ivar pages: the number of pages, at least 1.
    :ivar now: the database's now.
    """

    rows: tuple[DefinitionView, ...]
    total: int
    page: int
    pages: int
    now: datetime


def list_definitions(
    source: Source, sort: Sort = "need", page: int = 1, limit: int = 50, after: str | None = None
) -> DefinitionList:
    """Return a page of the definitions, or the last page if *page* is too high.

    :param after: return only names after this one.
    """
    page = max(1, page)
    with reading(source) as reader:
        condition = true() if after is None else DEFINITIONS.c.name > after
        total = select(func.count()).select_from(DEFINITIONS).where(condition)
        statement = (
            select(DEFINITIONS, total.scalar_subquery().label("total"))
            .where(condition)
            .order_by(*_order(sort, needs(reader)))
            .limit(limit)
        )
        rows = reader.rows(statement.offset((page - 1) * limit))
        if not rows and page > 1:
            page = max(1, -(-cast("int", reader.value(total)) // limit))
            rows = reader.rows(statement.offset((page - 1) * limit))
        number = rows[0].total if rows else 0
        pages = max(1, -(-number // limit))
        return DefinitionList(definition_views(reader, rows), number, page, pages, reader.now)


def _order(sort: Sort, definition_needs: Needs) -> tuple[ColumnElement[Any], ...]:
    name = DEFINITIONS.c.name
    if sort == "need":
        return definition_needs.order, name
    if sort == "next":
        # Paused definitions and those without a next slot come last.
        waits = (DEFINITIONS.c.paused_at.is_(None) & DEFINITIONS.c.next_run_at.is_not(None)).desc()
        return waits, DEFINITIONS.c.next_run_at, name
    return (name,)
