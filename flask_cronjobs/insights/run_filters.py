"""What runs can be found by, one list for commands, pages and SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    and_,
    false,
    func,
    or_,
    select,
    text,
    true,
    union_all,
)

from ..models.conditions import (
    DEAD,
    IN_BATCH,
    KEYED,
    KEYED_GROUPS,
    PARKED,
    RATE_WAITS,
    RUNNABLE,
    RUNNING,
    SET_ASIDE,
    UNKEYED,
    UNKEYED_GROUPS,
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
    kind: Literal["status", "name", "key", "text", "type", "age", "time", "flag", "wait", "id"]
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


def _equals_or_lacks(column: str) -> Condition:
    return lambda _, value: func.coalesce(RUNS.c[column], "") == value


def _refers_to(column: str, key: Any) -> Condition:
    owner = key.table.c.id
    return lambda _, value: RUNS.c[column] == select(owner).where(key == value).scalar_subquery()


def _has_error(_: Reader, part: str) -> ColumnElement[bool]:
    texts = (RUNS.c.error_type, RUNS.c.last_error)
    return or_(*(each.icontains(part, autoescape=True) for each in texts))


def _has_key(reader: Reader, key: str) -> ColumnElement[bool]:
    tasks = open_tasks(reader.state) if strip_credentials(key) == key else []
    # As a range, so that PostgreSQL takes an index of keys.
    is_key = and_(RUNS.c.concurrency_key >= key, RUNS.c.concurrency_key <= key)
    return and_(is_key, RUNS.c.job_type.in_(tasks) if tasks else false())


def _is_found(_: Reader, value: str) -> ColumnElement[bool]:
    return searched(value)


def _is_since(reader: Reader, at: datetime | float) -> ColumnElement[bool]:
    return _time(reader, at) <= _MOMENT


def _is_until(reader: Reader, at: datetime | float) -> ColumnElement[bool]:
    return _time(reader, at) >= _MOMENT


def _time(reader: Reader, at: datetime | float) -> datetime:
    """Return a time, or that of an age in seconds."""
    return at if isinstance(at, datetime) else reader.now - timedelta(seconds=at)


def _is_stale(reader: Reader, _: bool) -> ColumnElement[bool]:
    return RUNS.c.locked_until <= reader.now


def _waits(reader: Reader, why: str) -> ColumnElement[bool]:
    return and_(text(RUNNABLE), waits_for(reader, why))


def _all(*_: object) -> ColumnElement[bool]:
    return true()  # Its statements have the condition, see `overdue`.


_MOMENT = func.coalesce(RUNS.c.finished_at, RUNS.c.run_at)
_OF_DEFINITION = _refers_to("definition_id", DEFINITIONS.c.name)
_OF_BATCH = _refers_to("batch_id", BATCHES.c.key)
_OF_GROUP = _equals_or_lacks("fingerprint")
_ALIKE = "Find only runs whose error is of this group."
_IN_ERROR = "Find TEXT in the error's type or message."
_SEARCHED = "Find an id, an idempotency key, or the beginning of a label or a task."
#: In the order of the options of commands, and of the fields of the page.
FILTERS = (
    Filter("status", "status", _equals("status"), "Find only runs of this status."),
    Filter("task", "name", _equals("job_type"), "Find only runs of this task."),
    Filter("queue", "name", _equals("queue"), "Find only runs of this queue."),
    Filter("error", "text", _has_error, _IN_ERROR, "error contains", is_rare=True),
    Filter(
        "newer_than",
        "age",
        _is_since,
        "Find runs that ended, or were due, within AGE.",
        "within",
        "newer",
        is_rare=True,
    ),
    Filter(
        "older_than",
        "age",
        _is_until,
        "Find runs that ended, or were due, over AGE ago.",
        "older than",
        "older",
        is_rare=True,
    ),
    Filter("definition", "name", _OF_DEFINITION, "Find only runs of this definition."),
    Filter("batch", "key", _OF_BATCH, "Find only runs of this batch.", is_rare=True),
    Filter("concurrency_key", "key", _has_key, parameter="key", label="key", is_rare=True),
    Filter("overdue", "flag", _all, "Find only runs that have waited too long.", is_rare=True),
    Filter("stale", "flag", _is_stale, "Find running runs whose lease ran out.", is_rare=True),
    Filter("waits", "wait", _waits, "Find only runs that wait for this.", "waits:"),
    Filter("error_type", "type", _equals_or_lacks("error_type"), label="error", is_rare=True),
    Filter("fingerprint", "type", _OF_GROUP, _ALIKE, "errors of group", is_rare=True),
    Filter(
        "since",
        "time",
        _is_since,
        "Find runs that ended, or were due, at TIME or later.",
        is_rare=True,
    ),
    Filter("until", "time", _is_until, "Find runs that ended, or were due, by TIME.", is_rare=True),
    Filter("search", "text", _is_found, _SEARCHED, parameter="q"),
)


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
    :ivar since: it ended, or was due if it has not ended, then or later.
    :ivar until: likewise, then or before.
    :ivar search: exactly the id or the idempotency key, or how the label or the name of the task
        begins; case does not matter there.
    :ivar batch: the key of the runs' batch.
    :ivar concurrency_key: the runs' concurrency key, of tasks whose key hides no value.
    :ivar waits: only runs that wait for this, one of `WAITS`.
    :ivar fingerprint: only runs whose latest error is of this group; empty: of none.
    :ivar statuses: only runs of these, where one status is not enough.
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

    def given(self) -> Iterator[tuple[Filter, Any]]:
        """Yield the filters that narrow it, each with its value."""
        for each in FILTERS:
            value = getattr(self, each.field)
            if value is not None and value is not False:
                yield each, value


def words(which: RunFilter) -> str:
    """Return *which* for people, to stand after "runs": `` of send, older than 6 h``."""
    task = f" of {one_line(which.task)}" if which.task else ""
    others = (_word(*each) for each in which.given() if each[0].field != "task")
    return "".join([task, *(f", {each}" for each in others)])


def _word(which: Filter, value: Any) -> str:
    name = (which.label or which.field.replace("_", " ")).rstrip(":")
    if which.kind == "flag":
        return name
    if which.kind == "status":
        return f"{name} {value}"
    said = duration(value) if which.kind == "age" else strip_credentials(str(value))
    return f"{name} {one_line(said) or 'none'}"


def matching(reader: Reader, which: RunFilter, limit: int) -> list[int]:
    """Return all runs that match *which*, newest first, up to *limit*, for bulk actions.

    :param which: with statuses of which an index has the runs: not those that succeeded.
    """
    found = [part.with_only_columns(RUNS.c.id) for part in statements(reader, which)]
    first = named_by(reader, which)
    # OFFSET 0: see `run_list`.
    parts: list[Any] = [part.offset(0).subquery() for part in found]
    either = union_all(*(select(part) for part in parts)).subquery()
    others = select(either.c.id).order_by(either.c.id.desc()).limit(limit)
    if first:
        others = others.where(either.c.id.not_in(first))
    return [*first, *(row.id for row in reader.rows(others))][:limit]


def named_by(reader: Reader, which: RunFilter) -> list[int]:
    """Return the runs whose id or key is searched for, however old they are."""
    if which.search is None:
        return []
    found = named(reader, which.search)
    others = conditions(reader, replace(which, search=None))
    wanted = select(RUNS.c.id).where(RUNS.c.id.in_(found), *others)
    left = {row.id for row in reader.rows(wanted)}
    return [each for each in found if each in left]


def statements(reader: Reader, which: RunFilter) -> list[Query]:
    """Return statements for the ids that match *which*: one for each index that is used."""
    also = conditions(reader, which)
    if which.overdue:
        return [part.where(*also) for part in overdue(reader)]
    wanted = ("running",) if which.stale else which.statuses or (which.status,)
    if which.waits is not None and wanted == (None,):
        wanted = ("queued",)
    # Each once: queued and failed runs are in the same indexes.
    parts = dict.fromkeys(part for status in wanted for part in parts_of(status, which))
    parts = {"": None} if "" in parts else parts  # All rows, so also those of the others.
    columns = select(RUNS.c.id, RUNS.c.run_at, RUNS.c.finished_at)
    return [columns.where(*map(text, filter(None, [part])), *also) for part in parts]


def parts_of(status: str | None, which: RunFilter) -> tuple[str, ...]:
    """Return the exact conditions of the partial indexes that hold runs of *status*."""
    if which.batch is not None and status != "running":  # A batch has its own index.
        return (IN_BATCH,) if status else (IN_BATCH, RUNNING)
    if status in ("queued", "failed"):
        if which.task is not None:
            return UNKEYED_GROUPS, KEYED_GROUPS, PARKED, RATE_WAITS
        return UNKEYED, KEYED, PARKED, RATE_WAITS
    narrow = {"running": RUNNING, "dead": DEAD, "cancelled": SET_ASIDE, "skipped": SET_ASIDE}
    return (narrow.get(status or "", ""),)


def conditions(reader: Reader, which: RunFilter) -> list[ColumnElement[bool]]:
    """Return what must be true of a run that *which* finds."""
    found = [each.condition(reader, value) for each, value in which.given()]
    return [*found, RUNS.c.status.in_(which.statuses)] if which.statuses else found
