"""The list of all definitions: searched, filtered, sorted, and page by page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast, get_args

from sqlalchemy import ColumnElement, func, or_, select

from .definitions import DefinitionView, definition_views, whole_rows
from .missed import Missed, missed_slots
from .needs import NEEDS, Need, Needs, needs
from .reader import DEFINITIONS, Query, Reader, Source, reading

#: ``attention``: those that need a person; ``unknown``: those that no code declares.
DefinitionState: TypeAlias = Literal["attention", "paused", "unknown"] | Need
STATES: tuple[DefinitionState, ...] = ("attention", *NEEDS, "paused", "unknown")
#: ``need``: those that need a person first, then by name; ``next``: by the next slot.
Sort: TypeAlias = Literal["need", "name", "task", "next"]
SORTS: tuple[Sort, ...] = get_args(Sort)


@dataclass(frozen=True, slots=True)
class DefinitionFilter:
    """Which definitions to find, and in which order; None means any.

    :ivar search: a part of the name or the task; case does not matter.
    """

    search: str | None = None
    state: DefinitionState | None = None
    sort: Sort = "need"


@dataclass(frozen=True, slots=True)
class DefinitionList:
    """One page of definitions.

    :ivar total: how many match, on all pages.
    :ivar page: the number of this page, from 1.
    :ivar pages: how many pages there are, at least 1.
    :ivar now: the database's now.
    """

    rows: tuple[DefinitionView, ...]
    total: int
    page: int
    pages: int
    now: datetime


def definition_list(
    source: Source, which: DefinitionFilter | None = None, page: int = 1, limit: int = 50
) -> DefinitionList:
    """Return one page of the definitions that match *which*; the last one if *page* is too high."""
    with reading(source) as reader:
        return find_definitions(reader, missed_slots(reader), which, page, limit)


def find_definitions(
    reader: Reader,
    missed: Missed | None,
    which: DefinitionFilter | None = None,
    page: int = 1,
    limit: int = 50,
) -> DefinitionList:
    """Return what `definition_list` does, for a caller that knows the *missed* slots."""
    which, page = which or DefinitionFilter(), max(1, page)
    found = needs(reader, missed)
    conditions = _conditions(reader, which, found)
    total = select(func.count()).select_from(DEFINITIONS).where(*conditions)
    statement = (
        whole_rows(reader)
        .add_columns(total.scalar_subquery().label("total"))
        .where(*conditions)
        .order_by(*_order(which.sort, found))
        .limit(limit)
    )
    rows = reader.rows(statement.offset((page - 1) * limit))
    if not rows and page > 1:
        page = max(1, -(-cast("int", reader.value(total)) // limit))
        rows = reader.rows(statement.offset((page - 1) * limit))
    number = rows[0].total if rows else 0
    pages = max(1, -(-number // limit))
    return DefinitionList(definition_views(reader, rows, found), number, page, pages, reader.now)


def _conditions(reader: Reader, which: DefinitionFilter, found: Needs) -> list[ColumnElement[bool]]:
    c = DEFINITIONS.c
    conditions: list[ColumnElement[bool]] = []
    if which.search is not None:
        part = which.search.strip()
        names = (c.name, c.job_type)
        conditions.append(or_(*(name.icontains(part, autoescape=True) for name in names)))
    if which.state == "attention":
        conditions.append(found.any)
    elif which.state == "paused":
        conditions.append(c.paused_at.is_not(None))
    elif which.state == "unknown":
        conditions.append(_unknown(reader))
    elif which.state is not None:
        conditions.append(found.condition(which.state))
    return conditions


def _unknown(reader: Reader) -> ColumnElement[bool]:
    """Return the condition that no code declares a definition, or not its task."""
    # The tasks are compared here, not in SQL: a long NOT IN would be compared with each row.
    tasks: Query = select(DEFINITIONS.c.job_type).distinct()
    unknown = {row.job_type for row in reader.rows(tasks)} - reader.state.registry.tasks.keys()
    undeclared = DEFINITIONS.c.undeclared_since.is_not(None)
    return or_(undeclared, DEFINITIONS.c.job_type.in_(unknown))


def _order(sort: Sort, found: Needs) -> tuple[ColumnElement[Any], ...]:
    name = DEFINITIONS.c.name
    if sort == "need":
        return found.order, name
    if sort == "next":
        # Those without a next slot, or paused, come last.
        waits = (DEFINITIONS.c.paused_at.is_(None) & DEFINITIONS.c.next_run_at.is_not(None)).desc()
        return waits, DEFINITIONS.c.next_run_at, name
    return (DEFINITIONS.c.job_type, name) if sort == "task" else (name,)
