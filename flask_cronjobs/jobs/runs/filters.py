"""What runs can be listed by: filters, orders, and a search that does not find what is hidden."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    text,
    true,
    union,
)

from ...models.conditions import RUNNABLE
from ...text import redacted
from ...types import Status
from ..eligibility import not_paused
from ..reader import BATCHES, DEFINITIONS, RUNS, Query, Reader, is_one_of, readable

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


Condition: TypeAlias = Callable[[Reader, Any], ColumnElement[bool]]


class Filter(NamedTuple):
    """One of the filters of runs: for commands, for pages and in SQL.

    :ivar field: the field of `RunFilter`; the option of commands is named so, too.
    :ivar kind: what its value is; ``type`` is a text that may be empty: runs without one.
    :ivar condition: the condition for a value.
    :ivar help: what the option does; None: commands do not have it.
    :ivar label: what the pages call it, if not by its name.
    :ivar parameter: its name in URLs, if it is another one.
    :ivar is_rare: a page says that it has it, and removes it on a click; there is no other field.
    """

    field: str
    kind: Literal["status", "name", "key", "text", "type", "age", "flag", "wait", "id"]
    condition: Condition
    help: str | None = None
    label: str = ""
    parameter: str = ""
    is_rare: bool = False

    @property
    def name(self) -> str:
        """Its name in URLs."""
        return self.parameter or self.field


def _equals(column: str) -> Condition:
    return lambda _, value: RUNS.c[column] == value


def _refers_to(column: str, key: Any) -> Condition:
    owner = key.table.c.id
    return lambda _, value: RUNS.c[column] == select(owner).where(key == value).scalar_subquery()


def _has_error(_: Reader, part: str) -> ColumnElement[bool]:
    texts = (RUNS.c.error_type, RUNS.c.last_error)
    return or_(*(each.icontains(part, autoescape=True) for each in texts))


def _is_of_type(_: Reader, name: str) -> ColumnElement[bool]:
    return func.coalesce(RUNS.c.error_type, "") == name


def _is_alike(_: Reader, name: str) -> ColumnElement[bool]:
    return func.coalesce(RUNS.c.fingerprint, "") == name


def _is_newer(reader: Reader, age: float) -> ColumnElement[bool]:
    return reader.now - timedelta(seconds=age) <= _MOMENT


def _is_older(reader: Reader, age: float) -> ColumnElement[bool]:
    return reader.now - timedelta(seconds=age) >= _MOMENT


def _is_stale(reader: Reader, _: bool) -> ColumnElement[bool]:
    return RUNS.c.locked_until <= reader.now


def _waits(reader: Reader, why: str) -> ColumnElement[bool]:
    tasks = reader.state.registry.tasks
    conditions: dict[str, ColumnElement[bool]] = {
        "turn": RUNS.c.order_mark.is_not(None),
        "paused": not_(and_(true(), *not_paused(reader))),
        "undeclared": RUNS.c.job_type.not_in(list(tasks)) if tasks else false(),
        "later": RUNS.c.run_at > reader.now,
        "rate": RUNS.c.rate_mark.is_not(None),
    }
    return and_(text(RUNNABLE), conditions[why])


def _is_overdue(*_: object) -> ColumnElement[bool]:
    return true()  # Its statements have the condition: see `overdue`.


def _is_searched(reader: Reader, part: str) -> ColumnElement[bool]:
    """Return the condition for a task's name; where payloads are read, `showing` looks for it."""
    return true() if reads_payloads(reader) else RUNS.c.job_type.icontains(part, autoescape=True)


#: What the filter can find of the reasons of `waits`.
WAITS: tuple[str, ...] = ("turn", "paused", "undeclared", "later", "rate")
_MOMENT = func.coalesce(RUNS.c.finished_at, RUNS.c.run_at)
_OF_DEFINITION = _refers_to("definition_id", DEFINITIONS.c.name)
_OF_BATCH = _refers_to("batch_id", BATCHES.c.key)
_ALIKE = "Only runs whose error is of this group: see errors."
_TOUCHED = "Only runs that this operation was the last to change."
_IN_ERROR = "Only with TEXT in the error's type or message."
#: In the order of the options of commands, and of the fields of the page.
FILTERS = (
    Filter("status", "status", _equals("status"), "Only runs of this status."),
    Filter("task", "name", _equals("job_type"), "Only runs of this task."),
    Filter("queue", "name", _equals("queue"), "Only runs of this queue."),
    Filter("error", "text", _has_error, _IN_ERROR, "error contains"),
    Filter("newer_than", "age", _is_newer, "Ended (or due) within AGE: 2h.", "within", "newer"),
    Filter("older_than", "age", _is_older, "Ended (or due) over AGE ago.", "older than", "older"),
    Filter("definition", "name", _OF_DEFINITION, "Only runs of this definition.", is_rare=True),
    Filter("batch", "key", _OF_BATCH, "Only runs of this batch.", is_rare=True),
    Filter("overdue", "flag", _is_overdue, "Only runs that have waited too long.", is_rare=True),
    Filter("stale", "flag", _is_stale, "Only running runs whose lease ran out.", is_rare=True),
    Filter("waits", "wait", _waits, "Only runs that wait for this.", "waits:", is_rare=True),
    Filter("error_type", "type", _is_of_type, label="error", is_rare=True),
    Filter("fingerprint", "type", _is_alike, _ALIKE, "errors of group", is_rare=True),
    Filter("operation", "id", _equals("operation_id"), _TOUCHED, is_rare=True),
    Filter("search", "text", _is_searched, parameter="q"),
)


#: The columns by which runs are listed.
Columns: TypeAlias = Any


class Sorting(NamedTuple):
    """An order of runs.

    :ivar column: by which column; among equal ones, by id.
    """

    column: str
    descending: bool

    def clauses(self, c: Columns) -> tuple[ColumnElement[Any], ...]:
        """Return what to order by, for the columns *c*."""
        columns = (c[self.column],) if self.column == "id" else (c[self.column], c.id)
        return tuple(each.desc() if self.descending else each.asc() for each in columns)

    def beyond(self, c: Columns, cursor: Any) -> ColumnElement[bool]:
        """Return the condition for what comes after *cursor*, or a row with its fields."""
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

    :ivar moment: the time by which it was listed; None: by its id alone.
    """

    id: int
    moment: datetime | None = None


def sorting_of(status: Status | None, overdue: bool) -> Sorting:
    """Return the order for runs of *status*: the dead by their death, waiting ones as due."""
    if status == "dead":
        return LATEST_DEATH
    return DUE_FIRST if overdue or status in ("queued", "failed") else NEWEST
