"""Details of a definition or a task, and the payload that a run of it would get."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select

from ..core.app_state import State
from ..core.slots import slots_of
from ..core.tasks.declared_task import DeclaredTask
from ..core.tasks.options import TaskOptions
from ..core.tasks.retry import Retry, RetryPolicy
from ..text import cut
from ..text.humanize import duration, plural
from ..text.redaction import redacted
from ..types import JSON
from .reader import (
    DEFINITIONS,
    NUMBER,
    Count,
    Query,
    Reader,
    Source,
    number_of,
    reading,
    record,
)
from .run_rows import RunRow, rows_of
from .schedule_needs import set_aside
from .schedule_views import DefinitionView, definition_views
from .search import shown_key

#: The maximum number of gaps in its slots that a definition's page shows.
GAPS = 5


@dataclass(frozen=True, slots=True)
class MissedSlots:
    """A gap in the slots of a definition.

    :ivar run_id: the id of the row that records it.
    :ivar number: the number of slots that were missed, from *first* to *last*.
    :ivar why: the reason why they were not run.
    """

    run_id: int
    number: int
    first: datetime
    last: datetime
    why: str


@dataclass(frozen=True, slots=True)
class DefinitionDetail:
    """A definition with its task, its missed slots and its last runs.

    :ivar payload: its payload, redacted by ``CRONJOBS_REDACT``.
    :ivar task: its task in this app's code; None if the app does not declare it.
    :ivar missed: the latest gaps in its slots, newest first, at most 5.
    :ivar gaps: the number of its gaps among the newest skipped and cancelled rows.
    :ivar runs: its last ten runs, newest first.
    :ivar now: the database's now.
    """

    view: DefinitionView
    payload: JSON
    max_attempts: int
    concurrency_key: str | None
    concurrency_limit: int | None
    created_at: datetime
    updated_at: datetime
    task: TaskCode | None
    missed: tuple[MissedSlots, ...]
    gaps: Count
    runs: tuple[RunRow, ...]
    now: datetime


def find_definition(source: Source, name: str) -> DefinitionDetail | None:
    """Return a definition with its last runs; None if there is no such definition."""
    with reading(source) as reader:
        rows = reader.rows(select(DEFINITIONS).where(DEFINITIONS.c.name == name))
        if not rows:
            return None
        (row,) = rows
        (view,) = definition_views(reader, rows)
        missed = reader.rows(_missed(reader, row.id))
        return record(
            DefinitionDetail,
            row,
            view=view,
            payload=redacted(row.payload, reader.state.settings.redact),
            concurrency_key=shown_key(
                *(reader.state, row.job_type, row.payload, "concurrency_key", row.concurrency_key)
            ),
            task=task_code(reader.state, row.job_type),
            missed=tuple(map(_gap, missed)),
            gaps=number_of(missed),
            runs=tuple(rows_of(reader, [cell.id for cell in reversed(view.cells)])),
            now=reader.now,
        )


def _missed(reader: Reader, definition_id: int) -> Query:
    """Return a SELECT of the latest gaps of a definition, from the rows of `set_aside`."""
    aside = set_aside(reader)
    of_this = aside.c.definition_id == definition_id, aside.c.error_type == "Missed"
    return select(aside, NUMBER).where(*of_this).limit(GAPS)


def _gap(row: Row[Any]) -> MissedSlots:
    number, first = slots_of(row.result, row.scheduled_for)
    why = row.last_error or "missed"
    return MissedSlots(row.id, number, first, row.scheduled_for, why)


def read_arguments(source: Source, name: str) -> tuple[str, JSON] | None:
    """Return the task of the definition or task *name*, and the redacted payload of its runs.

    The payload of a task without a definition is None. If neither exists, return None.
    """
    with reading(source) as reader:
        registry, hidden = reader.state.registry, reader.state.settings.redact
        c = DEFINITIONS.c
        rows = reader.rows(select(c.job_type, c.payload).where(c.name == name))
    if rows:
        return rows[0].job_type, redacted(rows[0].payload, hidden)
    if name in registry.declarations:
        spec = registry.declarations[name].spec(reader.state.settings)
        return spec.job_type, redacted(spec.payload, hidden)
    return (name, None) if name in registry.tasks else None


_LONGEST_TEXT = 4_000


@dataclass(frozen=True, slots=True)
class TaskCode:
    """A task as this app's code declares it.

    :ivar arguments: the names of the handler's arguments, in the order of its signature.
    :ivar doc: the handler's docstring.
    :ivar options: the names and values of its options, as texts for people.
    """

    arguments: tuple[str, ...]
    doc: str | None
    options: tuple[tuple[str, str], ...]


def task_code(state: State, name: str) -> TaskCode | None:
    """Return the task *name* as code declares it; None if this app does not declare it."""
    task = state.registry.tasks.get(name)
    if task is None:
        return None
    doc = inspect.getdoc(task.func)
    return TaskCode(
        arguments=task.parameters,
        doc=cut(doc, _LONGEST_TEXT) if doc else None,
        options=tuple(_options(state, task)),
    )


def _options(state: State, task: DeclaredTask) -> Iterator[tuple[str, str]]:
    """Return the retry policy, the timeout, and all options that differ from their defaults."""
    yield "retry", _retry(task.retry_policy(state.settings.max_attempts))
    yield "timeout", duration(task.options.timeout or state.settings.timeout)
    defaults = TaskOptions()._asdict()
    for name, value in task.options._asdict().items():
        if name not in ("retry", "timeout") and value != defaults[name]:
            yield name, "yes" if value is True else str(value)


def _retry(policy: RetryPolicy) -> str:
    attempts = plural(policy.max_attempts, "attempt")
    if policy.max_attempts == 1:
        return attempts
    if not isinstance(policy, Retry):
        return f"{attempts} at most, after delays that a function chooses"
    delays = f"{policy.backoff} delays from {duration(policy.base)} to {duration(policy.cap)}"
    return f"{attempts}, {delays}"
