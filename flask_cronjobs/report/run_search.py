"""The order of lists of runs, and their search: what the pages hide is not found, either."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Row, and_, literal, or_, select, union

from ..text import redacted
from ..types import Status
from .reader import RUNS, Query, Reader, is_one_of, readable

MAX_ID = 2**63 - 1
#: How long a page's search of payloads may take, and one for an action on all, in seconds.
SEARCH_FOR, SEARCH_ALL_FOR = 1.0, 10.0
#: How many payloads are read together at first, and twice as many where that took less seconds.
_CHUNK, _QUICK = 50, 0.05


def named(search: str) -> Query:
    """Return a SELECT of the ids of the runs whose id or idempotency key is *search*."""
    by_key = select(RUNS.c.id).where(RUNS.c.idempotency_key == search)
    number = search.strip().removeprefix("#")
    if number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= MAX_ID:
        return union(select(RUNS.c.id).where(RUNS.c.id == int(number)), by_key)
    return by_key


def of_task(search: str) -> ColumnElement[bool]:
    """Return the condition that a task's name has *search* in it."""
    return RUNS.c.job_type.icontains(search, autoescape=True)


def reads_payloads(reader: Reader) -> bool:
    """Return whether a search looks into payloads."""
    return reader.state.settings.show_payload


def showing(
    reader: Reader, search: str, rows: Sequence[Row[Any]], most: int, seconds: float
) -> tuple[list[Row[Any]], int]:
    """Return the first *most* of *rows* that show *search*, and at how many of them it looked.

    No condition of the database looks for it: who measures how long a search takes would learn
    what the pages hide. All payloads are read, and *search* is looked for in what is shown of them.

    :param seconds: how long it may take.
    """
    until = time.monotonic() + seconds
    found: list[Row[Any]] = []
    start, size = 0, _CHUNK
    while start < len(rows):
        some, began = rows[start : start + size], time.monotonic()
        stored = _stored(reader, [row.id for row in some])
        for number, row in enumerate(some, start):
            if len(found) >= most or (number and time.monotonic() >= until):
                return found, number
            if row.id in stored and _shows(reader, stored[row.id], search):
                found.append(row)
        start += size
        if time.monotonic() - began < _QUICK:
            size *= 2
    return found, len(rows)


def _stored(reader: Reader, ids: Sequence[int]) -> dict[int, Row[Any]]:
    columns = RUNS.c.id, RUNS.c.job_type, readable(reader, RUNS.c.payload)
    wanted = select(*columns).where(is_one_of(reader, RUNS.c.id, ids))
    return {row.id: row for row in reader.rows(wanted)}


def _shows(reader: Reader, row: Row[Any], search: str) -> bool:
    payload = redacted(row.payload, reader.state.settings.redact)
    shown = json.dumps([row.job_type, payload], ensure_ascii=False).lower()
    return any(
        text.lower() in shown for text in (search, json.dumps(search, ensure_ascii=False)[1:-1])
    )


#: The columns by which runs are listed.
Columns: TypeAlias = Any


class Order(NamedTuple):
    """An order of runs.

    :ivar column: by which column; among equal ones, by id.
    """

    column: str
    descending: bool

    def clauses(self, c: Columns) -> tuple[ColumnElement[Any], ...]:
        """Return what to order by, for the columns *c*."""
        columns = (c[self.column],) if self.column == "id" else (c[self.column], c.id)
        return tuple(each.desc() if self.descending else each.asc() for each in columns)

    def beyond(self, c: Columns, cursor: Cursor) -> ColumnElement[bool]:
        """Return the condition for what comes after *cursor*."""
        further: ColumnElement[bool] = c.id < cursor.id if self.descending else c.id > cursor.id
        if self.column == "id" or cursor.moment is None:
            return further
        column, moment = c[self.column], literal(cursor.moment, c[self.column].type)
        if self.descending:
            return and_(column <= moment, or_(column < moment, further))
        return and_(column >= moment, or_(column > moment, further))


NEWEST = Order("id", True)
LATEST_DEATH = Order("finished_at", True)
DUE_FIRST = Order("run_at", False)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last run of a page.

    :ivar moment: the time by which it was listed; None: by its id alone.
    """

    id: int
    moment: datetime | None = None


def order_of(status: Status | None, overdue: bool) -> Order:
    """Return the order for runs of *status*: the dead by their death, waiting ones as due."""
    if status == "dead":
        return LATEST_DEATH
    return DUE_FIRST if overdue or status in ("queued", "failed") else NEWEST
