"""Runs that are handed to an executor: begin them there, refuse them, and count them."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from sqlalchemy import TextClause, text

from ...db.connection import Bookkeeping
from ...db.dialect import Dialect
from ...models.conditions import DONE, HANDED, RUNNABLE, RUNNING
from ...types import NO_SUCH_TASK
from ..columns import begun
from ..orders import COMES_FIRST
from .claim import returned


@lru_cache(maxsize=2)
def begin(d: Dialect) -> TextClause:
    """Return the statement by which an executor's worker begins a run.

    It trades the token with which the run was handed on, so only the first of two that bring the
    same token begins it. A run that is paused by now, whose task this code does not have, or before
    which an earlier one of its strict order has come back, does not begin.
    """
    # Each a look into an index. NOT EXISTS would become a join.
    by_task = "SELECT id FROM job_pauses WHERE kind = 'task' AND name = job_runs.job_type"
    by_queue = "SELECT id FROM job_pauses WHERE kind = 'queue' AND name = job_runs.queue"
    return text(f"""
    UPDATE job_runs SET
        {begun(d)}
    WHERE id = :id AND locked_by = :handed AND ({RUNNING}) IS TRUE
        AND cancel_requested_at IS NULL AND {d.one_of("job_type", "tasks")}
        AND ({by_task}) IS NULL AND ({by_queue}) IS NULL AND {COMES_FIRST}
    RETURNING {returned(d)}
    """)


_REFUSED = f"""
    SELECT CASE WHEN {HANDED} THEN 'waits'
                WHEN {RUNNABLE} AND error_type = '{NO_SUCH_TASK}' THEN 'refused'
                ELSE 'begun' END AS state, last_error
    FROM job_runs WHERE id = :id
"""


_IN_BROKERS = text(f"""
    SELECT count(*) AS number FROM (
        SELECT queue FROM job_runs WHERE {HANDED} ORDER BY locked_until
    ) AS handed WHERE queue = :queue
""")


#: Among how many runs `ended_since` counts.
LATEST = 2000


def refuse(
    books: Bookkeeping, run_id: int, handed: str, tasks: tuple[str, ...], error: str
) -> str | None:
    """Note *error* in the row of a handed run whose task is none of *tasks*; return its task.

    The run stays handed; it is to be released.

    :returns: None if it is one of them, or if the run is not handed with that token any more.
    """
    statement = f"""
        UPDATE job_runs SET error_type = '{NO_SUCH_TASK}', last_error = :error
        WHERE id = :id AND locked_by = :handed AND ({RUNNING}) IS TRUE
            AND NOT {books.dialect.one_of("job_type", "tasks")}
        RETURNING job_type
    """
    values = {"id": run_id, "handed": handed, "tasks": books.dialect.array(tasks), "error": error}
    rows = books.rows(text(statement), values)
    return rows[0].job_type if rows else None


def refused(books: Bookkeeping, run_id: int) -> tuple[str, str | None]:
    """Return what became of a run that was refused before, and why.

    Whether it still ``waits`` in a broker, is ``refused`` again, or has ``begun``.
    """
    rows = books.rows(text(_REFUSED), {"id": run_id})
    return (rows[0].state, rows[0].last_error) if rows else ("begun", None)


def in_brokers(books: Bookkeeping, queue: str) -> int:
    """Return how many runs of *queue* were handed to an executor and have not begun there."""
    return int(books.rows(_IN_BROKERS, {"queue": queue})[0].number)


def ended_since(books: Bookkeeping, queue: str, seconds: float) -> int:
    """Return how many runs of *queue* have succeeded in the last *seconds*, at the least.

    Among the latest few alone, since other queues may have ended hundreds of thousands meanwhile.
    """
    lately = f"{DONE} AND finished_at > {books.dialect.later(':seconds')} ORDER BY finished_at DESC"
    latest = f"SELECT queue, status FROM job_runs WHERE {lately} LIMIT {LATEST}"
    of_queue = "queue = :queue AND status = 'succeeded'"
    statement = f"SELECT count(*) AS number FROM ({latest}) AS latest WHERE {of_queue}"
    return int(books.rows(text(statement), {"queue": queue, "seconds": -seconds})[0].number)


#: Of the database in its cluster, and of the table.
_POSTGRESQL = """
    SELECT oid, to_regclass('job_runs')::oid,
        has_function_privilege('pg_control_system()', 'EXECUTE') AS may_ask
    FROM pg_database WHERE datname = current_database()
"""
#: By itself: to a role that may not call the function, it is refused.
_CLUSTER = "SELECT system_identifier FROM pg_control_system()"
_SQLITE = "SELECT file FROM pragma_database_list WHERE name = 'main'"


def fingerprint(books: Bookkeeping) -> str:
    """Return a text that two databases do not share, whatever a URL calls them. It tells nothing.

    A database that is restored or moved gets another one. On SQLite it is of the file and its disk.
    """
    known: tuple[object, ...]
    if books.dialect.one_writer:
        file = Path(books.rows(text(_SQLITE))[0].file).stat()
        known = file.st_dev, file.st_ino
    else:
        (row,) = books.rows(text(_POSTGRESQL))
        known = tuple(row) + (tuple(books.rows(text(_CLUSTER))[0]) if row.may_ask else ())
    return hashlib.sha256(repr(known).encode()).hexdigest()[:8]
