"""List runs page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    and_,
    case,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    text,
    true,
    union_all,
)
from sqlalchemy.sql.util import ClauseAdapter

from ..models.conditions import (
    DEAD,
    IN_BATCH,
    PARKED,
    RATE_WAITS,
    READY,
    READY_GROUPS,
    RUNNING,
)
from ..types import Status
from .backlog import first_due
from .reader import CAP, RUNS, Count, Page, Query, Reader, Source, reading
from .run_filters import RunFilter, conditions, named_by, parts_of, statements
from .run_rows import RunRow, rows_of
from .wait_reasons import Wait, waits_of

#: The columns by which runs are listed.
Columns: TypeAlias = Any


class Sorting(NamedTuple):
    """An order of runs.

    :ivar column: the column that is compared first, and then the id.
    """

    column: str
    descending: bool

    def clauses(self, c: Columns) -> tuple[ColumnElement[Any], ...]:
        """Return the ORDER BY clauses for the columns *c*."""
        columns = (c[self.column],) if self.column == "id" else (c[self.column], c.id)
        return tuple(column.desc() if self.descending else column.asc() for column in columns)

    def beyond(self, c: Columns, cursor: Any) -> ColumnElement[bool]:
        """Return the condition for rows after *cursor*: a `Cursor`, or a row with its fields."""
        further: ColumnElement[bool] = c.id < cursor.id if self.descending else c.id > cursor.id
        if self.column == "id" or cursor.moment is None:
            return further
        column, moment = c[self.column], literal(cursor.moment, c[self.column].type)
        if self.descending:
            return and_(column <= moment, or_(column < moment, further))
        return and_(column >= moment, or_(column > moment, further))


NEWEST = Sorting("id", True)
LATEST_DEATH = Sorting("finished_at", True)
DUE_FIRST = Sorting("run_at", False)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last run of a page.

    :ivar moment: its time in the column that orders the list; None if only the id orders it.
    """

    id: int
    moment: datetime | None = None


def sorting_of(status: Status | None, overdue: bool) -> Sorting:
    """Return the order for runs of *status*: waiting runs by due time, dead runs by their end."""
    if overdue or status in ("queued", "failed"):
        return DUE_FIRST
    return LATEST_DEATH if status == "dead" else NEWEST


@dataclass(frozen=True, slots=True)
class RunPage(Page[RunRow]):
    """A page of runs, whose `next` is a `Cursor`.

    :ivar searched_to: the creation time of the last run that was read, if the search stopped before
        the page was full.
    :ivar waits: the reasons why each unbegun run waits, the main one first.
    """

    searched_to: datetime | None = None
    waits: Mapping[int, tuple[Wait, ...]] = field(default_factory=dict[int, tuple[Wait, ...]])

    @property
    def partial(self) -> bool:
        """Whether the search stopped before the page was full; the next page continues it."""
        return self.searched_to is not None

    @property
    def before(self) -> int | None:
        """The id in the next page's cursor."""
        return None if self.next is None else self.next.id


#: The maximum number of rows that a page reads if no index narrows the list.
WINDOW = 50_000


_LONGEST_PAGE = 500
#: Filters that match most of the waiting runs.
_NEARLY_ALL_WAITING = (RunFilter(status="queued"), RunFilter(overdue=True))


def list_runs(
    source: Source,
    which: RunFilter | None = None,
    before: int | Cursor | None = None,
    limit: int = 50,
    order: Sorting = NEWEST,
) -> RunPage:
    """Return a page of the runs that match *which*, in *order*.

    :param before: where the page begins: the ``next`` of the previous page, or an id.
    :param limit: the number of runs, at most 500.
    :param order: the order, which `sorting_of` gives for the filter's status.
    """
    which = which or RunFilter()
    limit = max(1, min(limit, _LONGEST_PAGE))
    cursor = Cursor(before) if isinstance(before, int) else before
    with reading(source) as reader:
        by_name = named_by(reader, which)
        cursors, floor = page_ids(reader, which, cursor, limit, order, by_name)
        first = by_name if cursor is None else []
        rows = rows_of(reader, [*first, *(row.id for row in cursors[:limit])])
        rows.sort(key=lambda row: row.id not in first)
        is_full = len(cursors) > limit
        last = cursors[limit - 1] if is_full else floor
        searched_to = None if is_full or floor is None else _created(reader, floor.id)
        following = None if last is None else Cursor(last.id, last.moment)
        waits = waits_of(reader, rows)
        return RunPage(tuple(rows), following, reader.now, searched_to=searched_to, waits=waits)


def _created(reader: Reader, run_id: int) -> datetime | None:
    rows = reader.rows(select(RUNS.c.created_at).where(RUNS.c.id == run_id))
    return rows[0].created_at if rows else None


def page_ids(
    reader: Reader,
    which: RunFilter,
    cursor: Cursor | None,
    limit: int,
    order: Sorting = NEWEST,
    named: Sequence[int] = (),
) -> tuple[Sequence[Any], Any]:
    """Return at most *limit* + 1 rows with a `Cursor`'s fields, and the last row that may be read.

    If an index narrows the list, the last row is None. Otherwise only `WINDOW` rows are read.

    :param named: runs to leave out.
    """
    queries, fenced = statements(reader, which), _is_fenced(which, order)
    floor = _floor(reader, which, cursor, order)
    if named:
        queries = [part.where(RUNS.c.id.not_in(named)) for part in queries]
    if cursor is not None:
        queries = [part.where(order.beyond(RUNS.c, cursor)) for part in queries]
    if floor is not None:
        queries = [part.where(not_(order.beyond(RUNS.c, floor))) for part in queries]
    if order == DUE_FIRST and replace(which, search=None) in _NEARLY_ALL_WAITING:
        queries = list(first_due(reader, queries, limit + 1))
    return reader.rows(_first(queries, limit + 1, order, fenced)), floor


def _is_wide(which: RunFilter) -> bool:
    """Return whether a list reads along the primary key, past rows that do not match."""
    indexed = which.definition, which.batch
    if which.overdue or which.stale or any(value is not None for value in indexed):
        return False
    if which.statuses:
        return "succeeded" in which.statuses
    return which.status == "succeeded" or (which.status is None and which.waits is None)


def _is_fenced(which: RunFilter, order: Sorting) -> bool:
    # Dead runs need no fence, since their index has their order.
    return not _is_wide(which) and (order != LATEST_DEATH or which.batch is not None)


def _floor(reader: Reader, which: RunFilter, cursor: Cursor | None, order: Sorting) -> Any:
    """Return the last of the `WINDOW` rows that a list without an index reads after *cursor*."""
    indexed = replace(which, search=None)
    if which == RunFilter() or (which == indexed and not _is_wide(which)):
        return None
    queries = [select(RUNS.c.id, RUNS.c.run_at, RUNS.c.finished_at)]
    if not _is_wide(which):
        queries = statements(reader, indexed)
    if cursor is not None:
        queries = [part.where(order.beyond(RUNS.c, cursor)) for part in queries]
    if order == DUE_FIRST and indexed in _NEARLY_ALL_WAITING:
        queries = list(first_due(reader, queries, WINDOW))
    last = _first(queries, 1, order, _is_fenced(which, order)).offset(WINDOW - 1)
    return next(iter(reader.rows(last)), None)


def _first(queries: Sequence[Query], limit: int, order: Sorting, fenced: bool) -> Query:
    """Return a SELECT of the first *limit* ids, and of the times that order the list."""
    c: Any = RUNS.c
    chosen = queries[0]
    if fenced:
        # OFFSET 0 stops the planner from merging the subquery. Otherwise it reads the primary key
        # from the top, past a million finished rows if the wanted ones have the lowest ids.
        parts: list[Any] = [part.offset(0).subquery() for part in queries]
        either = union_all(*(select(part) for part in parts)).subquery()
        c, chosen = either.c, select(either)
    moment: Any = null() if order == NEWEST else c[order.column]
    chosen = chosen.with_only_columns(c.id, moment.label("moment"))
    return chosen.order_by(*order.clauses(c)).limit(limit)


#: The statuses whose runs `count_by_status` counts.
COUNTED: tuple[Status, ...] = ("queued", "running", "failed", "dead")
#: The maximum number of rows of each index that `count_by_status` reads.
_COUNTED_ROWS = 10_000
_BY_GROUP = "job_type, queue, priority, run_at, id"
#: The order of each index. Without it, PostgreSQL may read the whole table instead.
_INDEX_ORDER = {
    READY: "priority DESC, run_at, id",
    READY_GROUPS: _BY_GROUP,
    PARKED: "gate, concurrency_key",
    RATE_WAITS: f"gate, rate_key, {_BY_GROUP}",
    RUNNING: "locked_until",
    DEAD: "finished_at",
    IN_BATCH: "batch_id, status, run_at, id",
}
#: The columns of a run that conditions may need.
_SMALL = [column for column in RUNS.c if column.name not in ("payload", "result")]


def count_by_status(source: Source, which: RunFilter) -> dict[Status, Count]:
    """Return how many runs of each status in `COUNTED` match *which*.

    Its status is ignored, and so are ``stale`` and ``overdue``, which find runs of few statuses.
    Each index is read up to 10,000 rows and each count up to `CAP`, so even a 0 may be capped.
    """
    with reading(source) as reader:
        which = replace(which, status=None, statuses=(), stale=False, overdue=False)
        by_name = named_by(reader, which)
        of_status = {status: parts_of(status, which) for status in COUNTED}
        parts = list(
            dict.fromkeys(part for status_parts in of_status.values() for part in status_parts)
        )
        counts = [_counted(reader, place, part, which, by_name) for place, part in enumerate(parts)]
        rows = reader.rows(union_all(*counts))
        found = select(RUNS.c.status).where(RUNS.c.id.in_(by_name))
        numbers = Counter[str](row.status for row in (reader.rows(found) if by_name else ()))
    read = Counter[str]()
    for row in rows:
        read[parts[row.part]] += row.read
        if parts[row.part] in of_status.get(row.status, ()):
            numbers[row.status] += row.number
    return {
        status: Count(
            min(numbers[status], CAP),
            numbers[status] > CAP or any(read[part] >= _COUNTED_ROWS for part in of_status[status]),
        )
        for status in COUNTED
    }


def _counted(
    reader: Reader, place: int, part: str, which: RunFilter, named: Sequence[int]
) -> Query:
    """Return a SELECT of how many of the first rows of an index match, and how many were read.

    :param named: the ids of runs that are counted elsewhere.
    """
    first = select(*_SMALL).where(text(part))
    if which.batch is not None:
        first = first.where(*conditions(reader, RunFilter(batch=which.batch)))
    if which.task is not None and part == READY_GROUPS:
        first = first.where(RUNS.c.job_type == which.task)
    first_rows = first.order_by(text(_INDEX_ORDER[part])).limit(_COUNTED_ROWS).subquery()
    others = RUNS.c.id.not_in(named) if named else true()
    matches = ClauseAdapter(first_rows).traverse(and_(others, *conditions(reader, which)))
    return select(
        literal(place).label("part"),
        first_rows.c.status,
        func.count().label("read"),
        func.count(case((matches, 1))).label("number"),
    ).group_by(first_rows.c.status)
