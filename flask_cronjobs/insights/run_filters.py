"""The filters of runs: one list for commands, pages and SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    false,
    func,
    or_,
    select,
    text,
    true,
    union_all,
)

from ..core.app_state import State
from ..models.conditions import (
    DEAD,
    IN_BATCH,
    PARKED,
    RATE_WAITS,
    READY,
    READY_GROUPS,
    RUNNING,
    SET_ASIDE,
    UNCLAIMED,
)
from ..text import one_line
from ..text.humanize import duration
from ..text.redaction import strip_credentials
from ..types import Status
from .backlog import overdue
from .reader import BATCHES, DEFINITIONS, RUNS, Query, Reader
from .search import named, open_tasks, searched
from .wait_reasons import waits_for

Condition: TypeAlias = Callable[[Reader, Any], ColumnElement[bool]]


class Filter(NamedTuple):
    """A filter of runs, for commands, for pages and in SQL.

    :ivar field: the field of `RunFilter`, which also names the option of commands.
    :ivar kind: the kind of its value. An empty value of the kind ``type`` finds runs without one.
    :ivar condition: returns the condition for a value.
    :ivar help: the help of the option; None if commands do not have it.
    :ivar label: the filter's name on the pages, if it differs from the field.
    :ivar parameter: the filter's name in URLs, if it differs from the field.
    :ivar is_rare: whether pages have no input for it, and only show it with a link to remove it.
    """

    field: str
    kind: Literal["status", "name", "key", "text", "type", "age", "time", "flag", "wait", "id"]
    condition: Condition
    help: str | None = None
    label: str = ""
    parameter: str = ""
    is_rare: bool = False

    @property
    def name(self) -> str:
        """The filter's name in URLs."""
        return self.parameter or self.field


def _equals(column: str) -> Condition:
    return lambda _, value: RUNS.c[column] == value


def _equals_or_lacks(column: str) -> Condition:
    return lambda _, value: func.coalesce(RUNS.c[column], "") == value


def _refers_to(column: str, key: Any) -> Condition:
    owner = key.table.c.id
    return lambda _, value: RUNS.c[column] == select(owner).where(key == value).scalar_subquery()


def _has_error(_: Reader, part: str) -> ColumnElement[bool]:
    columns = (RUNS.c.error_type, RUNS.c.last_error)
    return or_(*(column.icontains(part, autoescape=True) for column in columns))


def _has_key(reader: Reader, key: str) -> ColumnElement[bool]:
    tasks = open_tasks(reader.state) if strip_credentials(key) == key else []
    # A range makes PostgreSQL use an index of keys.
    is_key = and_(RUNS.c.concurrency_key >= key, RUNS.c.concurrency_key <= key)
    return and_(is_key, RUNS.c.job_type.in_(tasks) if tasks else false())


def _is_found(_: Reader, value: str) -> ColumnElement[bool]:
    return searched(value)


def _is_since(reader: Reader, at: datetime | float) -> ColumnElement[bool]:
    return _time(reader, at) <= _MOMENT


def _is_until(reader: Reader, at: datetime | float) -> ColumnElement[bool]:
    return _time(reader, at) >= _MOMENT


def _time(reader: Reader, at: datetime | float) -> datetime:
    """Return *at*, or the time that was *at* seconds ago."""
    return at if isinstance(at, datetime) else reader.now - timedelta(seconds=at)


def _is_stale(reader: Reader, _: bool) -> ColumnElement[bool]:
    return RUNS.c.locked_until <= reader.now


def _waits(reader: Reader, why: str) -> ColumnElement[bool]:
    return and_(text(UNCLAIMED), waits_for(reader, why))


def _all(*_: object) -> ColumnElement[bool]:
    return true()  # `overdue` puts this condition into its statements.


_MOMENT = func.coalesce(RUNS.c.finished_at, RUNS.c.run_at)
_OF_DEFINITION = _refers_to("definition_id", DEFINITIONS.c.name)
_OF_BATCH = _refers_to("batch_id", BATCHES.c.key)
_OF_GROUP = _equals_or_lacks("fingerprint")
_ALIKE = "Find only runs whose error belongs to this group."
_IN_ERROR = "Find TEXT in the error's type or message."
_SEARCHED = "Find an id, an idempotency key, or the beginning of a label or a task."
#: The filters, in the order of the options of commands and of the fields of the page.
FILTERS = (
    Filter("status", "status", _equals("status"), "Find only runs with this status."),
    Filter("task", "name", _equals("job_type"), "Find only runs of this task."),
    Filter("queue", "name", _equals("queue"), "Find only runs in this queue."),
    Filter("error", "text", _has_error, _IN_ERROR, "error contains", is_rare=True),
    Filter(
        "newer_than",
        "age",
        _is_since,
        "Find runs that ended, or were due, within the last AGE.",
        "within",
        "newer",
        is_rare=True,
    ),
    Filter(
        "older_than",
        "age",
        _is_until,
        "Find runs that ended, or were due, more than AGE ago.",
        "older than",
        "older",
        is_rare=True,
    ),
    Filter("definition", "name", _OF_DEFINITION, "Find only runs of this definition."),
    Filter("batch", "key", _OF_BATCH, "Find only runs in this batch.", is_rare=True),
    Filter("concurrency_key", "key", _has_key, parameter="key", label="key", is_rare=True),
    Filter("overdue", "flag", _all, "Find only runs that have waited too long.", is_rare=True),
    Filter("stale", "flag", _is_stale, "Find running runs whose lease has ended.", is_rare=True),
    Filter("waits", "wait", _waits, "Find only runs that wait for this reason.", "waits:"),
    Filter("error_type", "type", _equals_or_lacks("error_type"), label="error", is_rare=True),
    Filter("fingerprint", "type", _OF_GROUP, _ALIKE, "errors of group", is_rare=True),
    Filter(
        "since",
        "time",
        _is_since,
        "Find runs that ended, or were due, at TIME or later.",
        is_rare=True,
    ),
    Filter(
        "until",
        "time",
        _is_until,
        "Find runs that ended, or were due, at TIME or earlier.",
        is_rare=True,
    ),
    Filter("search", "text", _is_found, _SEARCHED, parameter="q"),
)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The runs to find. A filter that is None matches all runs.

    The time of a run is its end, or its due time if it has not ended. Its age is counted from then.

    :ivar error: a part of the error's type or message; case is ignored.
    :ivar error_type: the exact type of the error; empty for runs without one.
    :ivar definition: the name of the runs' definition.
    :ivar older_than: the least age in seconds.
    :ivar newer_than: the greatest age in seconds.
    :ivar overdue: find only runnable runs that have been due for ``CRONJOBS_HEALTH_OVERDUE``.
    :ivar stale: find only running runs whose lease has ended.
    :ivar since: the earliest time of a run.
    :ivar until: the latest time of a run.
    :ivar search: the exact id or idempotency key, or the beginning of the label or of the task's
        name; the case of the latter two is ignored.
    :ivar batch: the key of the runs' batch.
    :ivar concurrency_key: the runs' concurrency key, for tasks whose key hides no value.
    :ivar waits: find only runs that wait for this, one of `WAITS`.
    :ivar fingerprint: the group of the runs' latest error; empty for runs without a group.
    :ivar statuses: the runs' statuses, if one status is not enough.
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
    since: datetime | None = None
    until: datetime | None = None
    search: str | None = None
    batch: str | None = None
    concurrency_key: str | None = None
    waits: str | None = None
    fingerprint: str | None = None
    statuses: Sequence[Status] = ()

    def items(self) -> Iterator[tuple[Filter, Any]]:
        """Yield the filters that are set, each with its value."""
        for filter_ in FILTERS:
            value = getattr(self, filter_.field)
            if value is not None and value is not False:
                yield filter_, value


def words(which: RunFilter) -> str:
    """Return *which* in words that follow "runs", such as `` of send, older than 6 h``."""
    task = f" of {one_line(which.task)}" if which.task else ""
    others = (_word(*item) for item in which.items() if item[0].field != "task")
    return "".join([task, *(f", {word}" for word in others)])


def _word(which: Filter, value: Any) -> str:
    name = (which.label or which.field.replace("_", " ")).rstrip(":")
    if which.kind == "flag":
        return name
    if which.kind == "status":
        return f"{name} {value}"
    value_text = duration(value) if which.kind == "age" else strip_credentials(str(value))
    return f"{name} {one_line(value_text) or 'none'}"


def matching(state: State, which: RunFilter, limit: int, connection: Connection) -> list[int]:
    """Return all runs that match *which*, newest first, up to *limit*, for bulk actions.

    :param which: a filter whose statuses have an index; succeeded runs have none.
    """
    reader = Reader(state, connection)
    queries = [part.with_only_columns(RUNS.c.id) for part in statements(reader, which)]
    first = [] if which.search is None else named_by(reader, which)
    # OFFSET 0: see `run_list`.
    parts: list[Any] = [part.offset(0).subquery() for part in queries]
    either = union_all(*(select(part) for part in parts)).subquery()
    others = select(either.c.id).order_by(either.c.id.desc()).limit(limit)
    if first:
        others = others.where(either.c.id.not_in(first))
    return [*first, *connection.scalars(others)][:limit]


def named_by(reader: Reader, which: RunFilter) -> list[int]:
    """Return the runs with the id or the key that is searched for, whatever their age."""
    if which.search is None:
        return []
    ids = named(reader, which.search)
    others = conditions(reader, replace(which, search=None))
    query = select(RUNS.c.id).where(RUNS.c.id.in_(ids), *others)
    matching_ids = {row.id for row in reader.rows(query)}
    return [run_id for run_id in ids if run_id in matching_ids]


def statements(reader: Reader, which: RunFilter) -> list[Query]:
    """Return statements for the ids that match *which*, one for each index that is used."""
    also = conditions(reader, which)
    if which.overdue:
        return [part.where(*also) for part in overdue(reader)]
    statuses = ("running",) if which.stale else which.statuses or (which.status,)
    if which.waits is not None and statuses == (None,):
        statuses = ("queued",)
    # The dict removes duplicates, since queued and failed runs are in the same indexes.
    parts = dict.fromkeys(part for status in statuses for part in parts_of(status, which))
    parts = {"": None} if "" in parts else parts  # The whole table includes the others.
    columns = select(RUNS.c.id, RUNS.c.run_at, RUNS.c.finished_at)
    return [columns.where(*map(text, filter(None, [part])), *also) for part in parts]


def parts_of(status: str | None, which: RunFilter) -> tuple[str, ...]:
    """Return the exact conditions of the partial indexes that contain runs of *status*."""
    if which.batch is not None and status != "running":  # A batch has its own index.
        return (IN_BATCH,) if status else (IN_BATCH, RUNNING)
    if status in ("queued", "failed"):
        if which.task is not None:
            return READY_GROUPS, PARKED, RATE_WAITS
        return READY, PARKED, RATE_WAITS
    narrow = {"running": RUNNING, "dead": DEAD, "cancelled": SET_ASIDE, "skipped": SET_ASIDE}
    return (narrow.get(status or "", ""),)


def conditions(reader: Reader, which: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of the runs that *which* finds."""
    clauses = [filter_.condition(reader, value) for filter_, value in which.items()]
    return [*clauses, RUNS.c.status.in_(which.statuses)] if which.statuses else clauses
