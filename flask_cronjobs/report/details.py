"""One definition, and one task, with their last runs and their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from ..errors import ScheduleError
from ..schedule.words import in_words
from ..text import redacted
from ..types import JSON
from .definitions import DefinitionView, definition_views, next_slots, whole_rows
from .missed import missed_slots
from .needs import needs
from .reader import DEFINITIONS, RUNS, Query, Source, reading
from .run_list import RunFilter, RunRow, page_ids, rows_of
from .statistics import Statistics, statistics
from .task_code import TaskCode, task_code

#: How many of the latest runs the statistics look at, and how many of them are shown.
LOOKED_AT, SHOWN = 200, 50
#: How many of its next slots a definition's page shows.
SLOTS = 10
#: How many definitions of a task are shown.
DEFINITIONS_OF_A_TASK = 50


@dataclass(frozen=True, slots=True)
class DefinitionDetail:
    """One definition.

    :ivar words: its schedule in words; None if it cannot be read.
    :ivar slots: its next ten slots; none while it is paused.
    :ivar payload: redacted by ``CRONJOBS_REDACT``.
    :ivar task: what this app's code says about its task; None if it does not declare it.
    :ivar runs: its last 50 runs, newest first.
    :ivar statistics: of its last 200 runs.
    :ivar now: the database's now.
    """

    view: DefinitionView
    words: str | None
    slots: tuple[datetime, ...]
    payload: JSON
    max_attempts: int
    concurrency_key: str | None
    concurrency_limit: int | None
    created_at: datetime
    updated_at: datetime
    task: TaskCode | None
    runs: tuple[RunRow, ...]
    statistics: Statistics
    now: datetime


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """One task.

    :ivar declared: what this app's code says about it; None if it does not declare it.
    :ivar definitions: its definitions by name, at most 50.
    :ivar runs: its last 50 runs among the newest 50,000 of all tasks, newest first.
    :ivar statistics: of its last 200 among them.
    :ivar partial: whether there are older runs, which were not searched.
    :ivar now: the database's now.
    """

    name: str
    declared: TaskCode | None
    definitions: tuple[DefinitionView, ...]
    runs: tuple[RunRow, ...]
    statistics: Statistics
    partial: bool
    now: datetime


def definition(source: Source, name: str) -> DefinitionDetail | None:
    """Return one definition with its last runs; None if there is no such definition."""
    with reading(source) as reader:
        rows = reader.rows(whole_rows(reader).where(DEFINITIONS.c.name == name))
        if not rows:
            return None
        (row,) = rows
        (view,) = definition_views(reader, rows, needs(reader, missed_slots(reader)))
        found = rows_of(reader, [run.id for run in reader.rows(_last_runs(row.id))])
        # A run by hand, or of a slot that was caught up, may have been inserted later than others.
        found.sort(key=lambda run: run.scheduled_for, reverse=True)
        return DefinitionDetail(
            view=view,
            words=_words(row.schedule),
            slots=_slots(view, reader.now),
            payload=redacted(row.payload, reader.state.settings.redact),
            max_attempts=row.max_attempts,
            concurrency_key=row.concurrency_key,
            concurrency_limit=row.concurrency_limit,
            created_at=row.created_at,
            updated_at=row.updated_at,
            task=task_code(reader.state, row.job_type),
            runs=tuple(found[:SHOWN]),
            statistics=statistics(found),
            now=reader.now,
        )


def task(source: Source, name: str) -> TaskDetail | None:
    """Return one task with its last runs; None if neither the code nor a row names it."""
    with reading(source) as reader:
        statement = whole_rows(reader).where(DEFINITIONS.c.job_type == name)
        rows = reader.rows(statement.order_by(DEFINITIONS.c.name).limit(DEFINITIONS_OF_A_TASK))
        latest, floor = page_ids(reader, RunFilter(task=name), None, LOOKED_AT)
        declared = task_code(reader.state, name)
        if declared is None and not rows and not latest:
            return None
        found = rows_of(reader, [run.id for run in latest[:LOOKED_AT]])
        return TaskDetail(
            name=name,
            declared=declared,
            definitions=definition_views(reader, rows, needs(reader, missed_slots(reader))),
            runs=tuple(found[:SHOWN]),
            statistics=statistics(found),
            partial=floor is not None,
            now=reader.now,
        )


def _last_runs(definition_id: int) -> Query:
    own = select(RUNS.c.id).where(RUNS.c.definition_id == definition_id)
    return own.order_by(RUNS.c.scheduled_for.desc()).limit(LOOKED_AT)


def _words(cron: str) -> str | None:
    try:
        return in_words(cron)
    except ScheduleError:
        return None


def _slots(view: DefinitionView, now: datetime) -> tuple[datetime, ...]:
    if view.broken is not None or view.paused_at is not None:
        return ()
    return next_slots(view.schedule, view.timezone, now, SLOTS)
