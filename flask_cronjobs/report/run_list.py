"""Lists of runs, page by page, and one run in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, func, or_, select, text, union_all

from ..models.tables import DEAD, FREE, KEYED, RUNNING, SET_ASIDE
from ..types import Status
from .counts import Count, capped, count_of
from .health import waiting
from .reader import DEFINITIONS, RUNS, Query, Reader, Source, reading


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs; what is None does not matter.

    :ivar error: a part of the error's type or message, in any case.
    :ivar error_type: the error's type, exactly; empty: those without one.
    :ivar definition: the name of the definition whose slots the runs are.
    :ivar older_than: seconds since the run ended, or since it was due if it has not; at least.
    :ivar newer_than: the same; at most.
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
    """A run, as a list shows it: no payload, no stack, its error cut to one line."""

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


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, newest id first.

    :ivar before: the id to go on before, or None at the end.
    :ivar partial: the search stopped before it had a full page; go on to look further.
    :ivar now: the database's now.
    """

    rows: tuple[RunRow, ...]
    before: int | None
    partial: bool
    now: datetime


#: How many rows a page looks through where no index narrows the search.
WINDOW = 50_000
_ERROR_SHOWN = 300
_LONGEST_PAGE = 500
_SHOWN = tuple(RunRow.__dataclass_fields__)


def runs(
    source: Source, which: RunFilter | None = None, before: int | None = None, limit: int = 50
) -> RunPage:
    """The runs that *which* describes, newest id first.

    :param before: only ids smaller than this: the ``before`` of the page before.
    :param limit: at most this many, and no more than 500.
    """
    which = which or RunFilter()
    limit = max(1, min(limit, _LONGEST_PAGE))
    with reading(source) as reader:
        ids, floor = _page_ids(reader, which, before, limit)
        rows = _shown(reader, ids[:limit])
    more = len(ids) > limit
    going_on = ids[limit - 1] if more else floor
    return RunPage(tuple(rows), going_on, floor is not None and not more, reader.now)


def count(source: Source, which: RunFilter) -> Count:
    """How many runs *which* describes, up to a cap."""
    with reading(source) as reader:
        found = [capped(arm) for arm in arms(reader, which)]
        return count_of(sum(reader.rows(select(*found))[0]))


def matching_ids(source: Source, which: RunFilter, limit: int = 1_000_000) -> list[int]:
    """The ids of all runs that *which* describes, newest first: for bulk actions."""
    with reading(source) as reader:
        found = _newest(arms(reader, which), limit, fenced=not _is_wide(which))
        return [row.id for row in reader.rows(found)]


def arms(reader: Reader, which: RunFilter) -> list[Query]:
    """One or two statements for the ids that *which* describes, each with an index of its own."""
    conditions = _conditions(reader, which)
    if which.overdue:
        edge = reader.now - timedelta(seconds=reader.state.settings.health_overdue)
        return [arm.where(*conditions) for arm in waiting(edge)]
    return [
        select(RUNS.c.id, RUNS.c.run_at).where(*part, *conditions)
        for part in _parts("running" if which.stale else which.status)
    ]


def _parts(status: str | None) -> tuple[tuple[Any, ...], ...]:
    """The conditions of the partial indexes that hold runs of *status*, to the letter."""
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
    """Up to one id more than *limit*, and where a search that was cut short is to go on."""
    found = arms(reader, which)
    if before is not None:
        found = [arm.where(RUNS.c.id < before) for arm in found]
    floor = None
    if _is_wide(which) and which != RunFilter():
        floor = _floor(reader, before)
        if floor is not None:
            found = [arm.where(RUNS.c.id >= floor) for arm in found]
    newest = _newest(found, limit + 1, fenced=not _is_wide(which))
    return [row.id for row in reader.rows(newest)], floor


def _is_wide(which: RunFilter) -> bool:
    """Whether a search walks the primary key past rows that do not match."""
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
    # OFFSET 0 keeps a planner from looking into a subquery: or it would walk the primary key, past
    # a million finished rows to the few that are wanted, where those have the lowest ids.
    either = union_all(*(select(arm.offset(0).subquery().c.id) for arm in found)).subquery()
    return select(either.c.id).order_by(either.c.id.desc()).limit(limit)


def with_definition(*columns: Any) -> Query:
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
    values = {name: getattr(row, name) for name in _SHOWN if name not in ("task", "last_error")}
    error: str | None = row.last_error
    line = error.strip().partition("\n")[0][:_ERROR_SHOWN] if error else None
    return RunRow(**values, task=row.job_type, last_error=line)
