"""Write what a test wants of a run, and read which runs wait."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import func, select, text, update

from ..models import JobRun
from ..models.conditions import RUNNABLE
from .clock import database_now
from .connection import Bookkeeping


def prepare_run(books: Bookkeeping, run_id: int, **values: object) -> None:
    """Write *values* into the columns of a run."""
    changed = update(JobRun).where(JobRun.id == run_id).values(**values)
    books.rows(changed.values(updated_at=database_now()))


def next_due(books: Bookkeeping, tasks: Collection[str]) -> float | None:
    """Return in how many seconds the next run of *tasks* comes due; None if none will."""
    now = database_now()
    query = select(func.min(JobRun.run_at).label("first"), now.label("now")).where(
        text(RUNNABLE), JobRun.job_type.in_(tasks), JobRun.run_at > now,
        JobRun.attempts < JobRun.max_attempts,
    )  # fmt: skip
    (row,) = books.rows(query)
    first: datetime | None = row.first
    return None if first is None else (first - row.now).total_seconds()


def due_of_others(books: Bookkeeping, tasks: Collection[str]) -> list[str]:
    """Return the tasks apart from *tasks* of which runs are due."""
    due = (text(RUNNABLE), JobRun.run_at <= database_now(), JobRun.job_type.not_in(tasks))
    query = select(JobRun.job_type).where(*due).distinct().order_by(JobRun.job_type)
    return [row.job_type for row in books.rows(query)]


def enqueued_ahead(books: Bookkeeping) -> list[str]:
    """Return the tasks of which runs wait that were enqueued when the clock was ahead of now."""
    ahead = (text(RUNNABLE), JobRun.created_at > database_now())
    query = select(JobRun.job_type).where(*ahead).distinct().order_by(JobRun.job_type)
    return [row.job_type for row in books.rows(query)]


def newest(books: Bookkeeping) -> int:
    """Return the id of the newest run; 0 if there is none."""
    (row,) = books.rows(select(func.coalesce(func.max(JobRun.id), 0)))
    return int(row[0])
