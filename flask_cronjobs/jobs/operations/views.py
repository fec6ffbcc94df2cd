"""What operators did, and what became of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, literal, select, union_all

from ..humanize import plural
from ..reader import CAP, OPERATIONS, RUNS, Page, Query, Reader, Source, cut_page, reading, record

#: An operation that has not ended is taken to be stopped after so many seconds without a change.
STOPPED_AFTER = 60.0
#: How many operations on one run are shown.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class OperationView:
    """One operation.

    :ivar what: the verb, as in the log.
    :ivar target: what it was done to.
    :ivar run_id: the run, if it was one.
    :ivar asked: how many runs it was to change; None if it was not about runs.
    :ivar done: how many of them it has changed.
    :ivar stopped: it did not come to its end.
    :ivar became: how many of those that no later operation has changed have each status now, and
        whose row is still kept; of more than 1,000, of some 1,000.
    """

    id: int
    what: str
    target: str
    actor: str
    run_id: int | None
    asked: int | None
    done: int | None
    started_at: datetime
    finished_at: datetime | None
    stopped: bool = False
    became: tuple[tuple[str, int], ...] = ()

    @property
    def progress(self) -> str:
        """Say how far it came, if it has not ended: ``500 of 34,000, stopped``."""
        if self.finished_at is not None or self.asked is None:
            return ""
        return f"{self.done or 0:,} of {self.asked:,}, {'stopped' if self.stopped else 'at work'}"

    @property
    def outcome(self) -> str:
        """Say what became of its runs: ``31 succeeded, 3 dead``."""
        known, done = sum(number for _, number in self.became), self.done or 0
        parts = [f"{number:,} {status}" for status, number in self.became]
        if known >= CAP:
            return f"{', '.join(parts)} of the first {plural(known, 'run')}"
        if known < done:
            parts.append(f"{done - known:,} changed since, or pruned")
        return ", ".join(parts)


def list_operations(
    source: Source, before: int | None = None, limit: int = 50
) -> Page[OperationView]:
    """Return operations, newest first, each with what became of its runs.

    :param before: only smaller ids, for paging.
    :param limit: at most 100.
    """
    limit = max(1, min(limit, 100))
    with reading(source) as reader:
        newest = select(OPERATIONS).order_by(OPERATIONS.c.id.desc()).limit(limit + 1)
        if before is not None:
            newest = newest.where(OPERATIONS.c.id < before)
        return cut_page(_views(reader, reader.rows(newest)), limit, reader.now)


def operations_on(source: Source, run_id: int) -> tuple[OperationView, ...]:
    """Return who touched a run: the latest operation on many, and those on it alone.

    :returns: at most eleven, newest first.
    """
    c = OPERATIONS.c
    with reading(source) as reader:
        latest = select(RUNS.c.operation_id).where(RUNS.c.id == run_id).scalar_subquery()
        on_it = select(OPERATIONS).where(c.run_id == run_id).order_by(c.started_at.desc())
        rows = [
            *reader.rows(select(OPERATIONS).where(c.id == latest)),
            *reader.rows(on_it.limit(_SHOWN)),
        ]
        found = {row.id: row for row in rows}
        return tuple(_view(reader, found[each], ()) for each in sorted(found, reverse=True))


def _views(reader: Reader, rows: Sequence[Row[Any]]) -> list[OperationView]:
    """Return *rows* as views; one query looks at their runs."""
    found: dict[int, list[tuple[str, int]]] = {}
    if parts := [_runs_of(row.id) for row in rows if row.done]:
        runs: Any = union_all(*(select(part) for part in parts)).subquery()
        counted = select(*runs.c, func.count().label("number")).group_by(*runs.c)
        for each in reader.rows(counted.order_by(func.count().desc(), runs.c.status)):
            found.setdefault(each.operation, []).append((each.status, each.number))
    return [_view(reader, row, found.get(row.id, ())) for row in rows]


def _runs_of(operation: int) -> Query:
    """Return a subquery of the statuses of the runs of *operation*, as many as are counted."""
    columns = literal(operation).label("operation"), RUNS.c.status
    return select(*columns).where(RUNS.c.operation_id == operation).limit(CAP).subquery()


def _view(reader: Reader, row: Row[Any], became: Sequence[tuple[str, int]]) -> OperationView:
    silent = reader.now - row.seen_at > timedelta(seconds=STOPPED_AFTER)
    stopped = row.finished_at is None and silent
    return record(OperationView, row, stopped=stopped, became=tuple(became))
