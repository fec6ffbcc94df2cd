"""What tests of an app ask of runs and write to them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import text

from ...db.connection import Bookkeeping
from ...models.conditions import RUNNABLE
from ...types import stored_time
from ..columns import assigned


def prepare_run(books: Bookkeeping, run_id: int, **values: object) -> None:
    """Write *values* into the columns of a run, as a test wants it."""
    d = books.dialect
    given = {n: d.instant(v) if isinstance(v, datetime) else v for n, v in values.items()}
    set_to = assigned({**{name: f":{name}" for name in given}, "updated_at": d.now})
    books.rows(
        text(f"UPDATE job_runs SET {set_to} WHERE id = :run_id"), {**given, "run_id": run_id}
    )


def next_due(books: Bookkeeping, tasks: Collection[str]) -> float | None:
    """Return in how many seconds the next run of *tasks* comes due; None if none will."""
    d = books.dialect
    later = f"{d.one_of('job_type', 'tasks')} AND run_at > {d.now} AND attempts < max_attempts"
    query = f"SELECT min(run_at) AS due, {d.now} AS now FROM job_runs WHERE {RUNNABLE} AND {later}"
    (row,) = books.rows(text(query), {"tasks": d.array(tuple(tasks))})
    if row.due is None:
        return None
    return (stored_time(row.due) - stored_time(row.now)).total_seconds()


def due_of_others(books: Bookkeeping, tasks: Collection[str]) -> list[str]:
    """Return the tasks apart from *tasks* of which runs are due."""
    d = books.dialect
    due = f"run_at <= {d.now} AND NOT ({d.one_of('job_type', 'tasks')})"
    return _tasks_waiting(books, due, tasks=d.array(tuple(tasks)))


def enqueued_ahead(books: Bookkeeping) -> list[str]:
    """Return the tasks of which runs wait that were enqueued when the clock was ahead of now."""
    return _tasks_waiting(books, f"created_at > {books.dialect.now}")


def _tasks_waiting(books: Bookkeeping, which: str, **given: object) -> list[str]:
    tasks = f"SELECT DISTINCT job_type FROM job_runs WHERE {RUNNABLE} AND {which} ORDER BY job_type"
    return [row.job_type for row in books.rows(text(tasks), given)]


def newest(books: Bookkeeping) -> int:
    """Return the id of the newest run; 0 if there is none."""
    (row,) = books.rows(text("SELECT COALESCE(max(id), 0) FROM job_runs"))
    return int(row[0])
