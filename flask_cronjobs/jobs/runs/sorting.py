"""By what runs can be listed, and where the next page begins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, and_, literal, or_

from ...types import Status

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
