"""Marks of what changed at one moment, such as a deploy: made, removed and read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import text

from ..errors import NotFound
from ..log import DEFAULT_ACTOR, log_action
from ..text import one_line
from ..types import stored_time
from .operations import Act, perform
from .state import State

if TYPE_CHECKING:
    from .reader import Page, Source

#: How many characters the name of a mark may have.
LONGEST = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark.

    :ivar at: when that was which it marks.
    :ivar by: who made it.
    """

    id: int
    name: str
    at: datetime
    by: str | None


def add_mark(
    state: State, name: str, at: datetime | None = None, actor: str = DEFAULT_ACTOR
) -> Mark:
    """Add a mark to the charts.

    :param name: cut to one line of `LONGEST` characters.
    :param at: None: now.
    """
    name = one_line(name).strip()[:LONGEST]
    with state.bookkeeping() as books:
        d = books.dialect
        when = d.now if at is None else d.typed(":at", "timestamptz")
        (row,) = books.rows(
            text(
                f"INSERT INTO job_marks (name, marked_at, marked_by) VALUES (:name, {when}, :by)"
                " RETURNING id, marked_at"
            ),
            {"name": name, "by": actor} | ({} if at is None else {"at": d.instant(at)}),
            repeat=False,
        )
    log_action("marked", name, actor)
    return Mark(row.id, name, stored_time(row.marked_at), actor)


def remove_mark(state: State, id_: int, actor: str = DEFAULT_ACTOR) -> str:
    """Remove a mark, and return its name.

    :raises NotFound: there is none with that id.
    """
    this, removed = {"id": id_}, text("DELETE FROM job_marks WHERE id = :id RETURNING id")
    with state.bookkeeping() as books:
        rows = books.rows(text("SELECT name FROM job_marks WHERE id = :id"), this)
        name: str = rows[0].name if rows else ""
        act = Act("unmarked", name, actor)
        if not rows or not perform(books, act, lambda inner: inner.rows(removed, this)):
            raise NotFound(f"There is no mark with the id {id_}.")
    return name


def latest_marks(
    source: Source, limit: int = 20, since: datetime | None = None
) -> tuple[Mark, ...]:
    """Return the latest marks, newest first.

    :param since: none before this.
    """
    return tuple(list_marks(source, limit, since=since).rows)


def list_marks(
    source: Source, limit: int = 20, before: int | None = None, since: datetime | None = None
) -> Page[Mark]:
    """Return a page of marks, newest first.

    :param before: only marks before the one with this id.
    :param since: none before this.
    """
    from sqlalchemy import select, tuple_

    from .reader import MARKS, cut_page, reading

    place = tuple_(MARKS.c.marked_at, MARKS.c.id)
    statement = select(MARKS).order_by(MARKS.c.marked_at.desc(), MARKS.c.id.desc())
    if before is not None:
        cursor = select(MARKS.c.marked_at, MARKS.c.id).where(MARKS.c.id == before)
        statement = statement.where(place < cursor.scalar_subquery())
    if since is not None:
        statement = statement.where(MARKS.c.marked_at >= since)
    with reading(source) as reader:
        rows = reader.rows(statement.limit(limit + 1))
        marks = [Mark(row.id, row.name, row.marked_at, row.marked_by) for row in rows]
        return cut_page(marks, limit, reader.now)
