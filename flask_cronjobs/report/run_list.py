"""Lists of runs, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, func, or_, select, text, union_all

from ..models.conditions import DEAD, FREE, KEYED, RUNNING, SET_ASIDE
from ..types import Status
from .health import waiting
from .reader import DEFINITIONS, RUNS, Query, Reader, Source, reading


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to find; None means any.

    :ivar error: a part of the error's type or message; case does not matter.
    :ivar error_type: exactly the error's type; empty: runs without one.
    :ivar definition: the name of the runs' definition.
    :ivar older_than: at least so many seconds since the run ended, or was due if it has not ended.
    :ivar newer_than: at most so many seconds since then.
    :ivar overdue: only runnable runs due for longer than ``CRONJOBS_HEALTH_OVERDUE``.
    :ivar stale: only running runs whose lease ran out.
    """

    status: Status | None = None
    task: str | None = None
    queue: str | None = None
    error: str | None = None
    error_type: str | None = None
    definition: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    overdue: bool = False
    stale: bool = False


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list: without payload and stack, its error cut to one line."""

    id: int
    definition: str | None
    timezone: str | None
    task: str
    queue: str
    priority: int
    status: Status
    attempts: int
    max_attempts: int
    scheduled_for: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    locked_by: str | None
    locked_until: datetime | None
    error_type: str | None
    last_error: str | None
    progress: float | None

    def lost(self, now: datetime) -> bool:
        """Return whether its worker was lost: it is running, but the lease ran out."""
        return (
            self.status == "running" and self.locked_until is not None and self.locked_until < now
        )


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of runs, newest id first.

    :ivar before: the next page's cursor; None on the last.
    :ivar partial: the search stopped before the page was full; the next page goes on.
    :ivar now: the database's now.
    """

    rows: tuple[RunRow, ...]
    before: int | None
    partial: bool
    now: datetime


#: How many rows a page reads where no index narrows the search.
WINDOW = 50_000
_ERROR_SHOWN = 300
_LONGEST_PAGE = 500
_SHOWN = tuple(RunRow.__dataclass_fields__)


def runs(
    source: Source, which: RunFilter | None = None, before: int | None = None, limit: int = 50
) -> RunPage:
    """Return the runs that match *which*, newest id first.

    :param before: only smaller ids: the ``before`` of the page before.
    :param limit: how many runs; at most 500.
    """
    which = which or RunFilter()
    limit = max(1, min(limit, _LONGEST_PAGE))
    with reading(source) as reader:
        ids, floor = _page_ids(reader, which, before, limit)
        rows = _shown(reader, ids[:limit])
    more = len(ids) > limit
    going_on = ids[limit - 1] if more else floor
    return RunPage(tuple(rows), going_on, floor is not None and not more, reader.now)


def matching_ids(source: Source, which: RunFilter, limit: int = 1_000_000) -> list[int]:
    """Return the ids of all runs that match *which*, newest first, for bulk actions."""
    with reading(source) as reader:
        found = _newest(_statements(reader, which), limit, fenced=not _is_wide(which))
        return [row.id for row in reader.rows(found)]


def _statements(reader: Reader, which: RunFilter) -> list[Query]:
    """Return statements for the ids that match *which*: one for each index that is used."""
    conditions = _conditions(reader, which)
    if which.overdue:
        edge = reader.now - timedelta(seconds=reader.state.settings.health_overdue)
        return [part.where(*conditions) for part in waiting(edge)]
    return [
        select(RUNS.c.id, RUNS.c.run_at).where(*part, *conditions)
        for part in _parts("running" if which.stale else which.status)
    ]


def _parts(status: str | None) -> tuple[tuple[Any, ...], ...]:
    """Return the exact conditions of the partial indexes that hold runs of *status*."""
    if status in ("queued", "failed"):
        return (text(FREE),), (text(KEYED),)
    narrow = {"running": RUNNING, "dead": DEAD, "cancelled": SET_ASIDE, "skipped": SET_ASIDE}
    return ((text(narrow[status]),) if status in narrow else (),)


def _conditions(reader: Reader, which: RunFilter) -> list[ColumnElement[bool]]:
    c = RUNS.c
    equal = {"status": which.status, "job_type": which.task, "queue": which.queue}
    found = [c[name] == value for name, value in equal.items() if value is not None]
    if which.error is not None:
        found.append(
            or_(
                c.error_type.icontains(which.error, autoescape=True),
                c.last_error.icontains(which.error, autoescape=True),
            )
        )
    if which.error_type is not None:
        found.append(func.coalesce(c.error_type, "") == which.error_type)
    if which.definition is not None:
        found.append(c.definition_id == _definition_id(which.definition))
    if which.stale:
        found.append(c.locked_until <= reader.now)
    return found + _ages(reader.now, which)


def _definition_id(name: str) -> Any:
    return select(DEFINITIONS.c.id).where(DEFINITIONS.c.name == name).scalar_subquery()


def _ages(now: datetime, which: RunFilter) -> list[ColumnElement[bool]]:
    moment = func.coalesce(RUNS.c.finished_at, RUNS.c.run_at)
    found: list[ColumnElement[bool]] = []
    if which.older_than is not None:
        found.append(moment <= now - timedelta(seconds=which.older_than))
    if which.newer_than is not None:
        found.append(moment >= now - timedelta(seconds=which.newer_than))
    return found


def _page_ids(
    reader: Reader, which: RunFilter, before: int | None, limit: int
) -> tuple[list[int], int | None]:
    """Return up to *limit* plus one ids, and where a search that was cut short goes on."""
    found = _statements(reader, which)
    if before is not None:
        found = [part.where(RUNS.c.id < before) for part in found]
    floor = None
    if _is_wide(which) and which != RunFilter():
        floor = _floor(reader, before)
        if floor is not None:
            found = [part.where(RUNS.c.id >= floor) for part in found]
    newest = _newest(found, limit + 1, fenced=not _is_wide(which))
    return [row.id for row in reader.rows(newest)], floor


def _is_wide(which: RunFilter) -> bool:
    """Return whether a search reads the primary key, also rows that do not match."""
    if which.overdue or which.stale or which.definition is not None:
        return False
    return which.status in (None, "succeeded")


def _floor(reader: Reader, before: int | None) -> int | None:
    statement = select(RUNS.c.id).order_by(RUNS.c.id.desc()).offset(WINDOW - 1).limit(1)
    if before is not None:
        statement = statement.where(RUNS.c.id < before)
    rows = reader.rows(statement)
    return rows[0].id if rows else None


def _newest(found: Sequence[Query], limit: int, fenced: bool) -> Query:
    if not fenced:
        return found[0].order_by(RUNS.c.id.desc()).limit(limit)
    # OFFSET 0 stops the planner from merging the subquery. Otherwise it reads the primary key from
    # the top, past a million finished rows if the wanted ones have the lowest ids.
    either = union_all(*(select(part.offset(0).subquery().c.id) for part in found)).subquery()
    return select(either.c.id).order_by(either.c.id.desc()).limit(limit)


def with_definition(*columns: Any) -> Query:
    """Return a SELECT of *columns* of runs, with their definition's name and zone."""
    return select(
        *columns, DEFINITIONS.c.name.label("definition"), DEFINITIONS.c.timezone.label("timezone")
    ).select_from(RUNS.outerjoin(DEFINITIONS, DEFINITIONS.c.id == RUNS.c.definition_id))


def _shown(reader: Reader, ids: Sequence[int]) -> list[RunRow]:
    if not ids:
        return []
    own = [name for name in _SHOWN if name in RUNS.c and name != "last_error"]
    statement = with_definition(
        *(RUNS.c[name] for name in own),
        RUNS.c.job_type,
        func.substr(RUNS.c.last_error, 1, _ERROR_SHOWN).label("last_error"),
    )
    rows = reader.rows(statement.where(RUNS.c.id.in_(ids)).order_by(RUNS.c.id.desc()))
    return [run_row(row) for row in rows]


def run_row(row: Row[Any]) -> RunRow:
    """Return the `RunRow` of a database row."""
    values = {name: getattr(row, name) for name in _SHOWN if name not in ("task", "last_error")}
    error: str | None = row.last_error
    line = error.strip().partition("\n")[0][:_ERROR_SHOWN] if error else None
    return RunRow(**values, task=row.job_type, last_error=line)
