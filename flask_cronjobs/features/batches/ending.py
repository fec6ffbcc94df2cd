"""End batches whose last member has ended.

Every tick checks all batches that have not ended, so none is forgotten, even if workers are killed.
A worker checks the batches of its runs, so that their ``then`` is enqueued soon; see `Keeper`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from ...core.columns import insert_into_runs, parameter
from ...core.new_run import POLICY
from ...db import failpoints
from ...db.connection import Bookkeeping
from ...db.dialect import Dialect
from ...db.errors import is_about_the_rows
from ...db.notify import wake_all
from ...errors import CronJobsError
from ...log import logger
from ...models.conditions import OPEN_BATCH
from ...text import one_line
from ...types import TERMINAL, BatchCounts, json_object, stored_json
from .batch_rows import is_live, members_of, numbers_of

#: The maximum number of batches that one statement checks.
MAX_BATCHES = 1000
#: Seconds of the successive waits for another process that is ending the same batch.
PAUSE_SECONDS = (0.01, 0.04)


class Ended(NamedTuple):
    """A batch that was ended.

    :ivar then_run_id: the run that was enqueued for ``then``; None without one.
    """

    counts: BatchCounts
    then_task: str | None
    then_run_id: int | None


def end_batches(books: Bookkeeping, ids: Iterable[int] | None = None) -> int:
    """End the batches that can be ended; return the number of ``then`` runs enqueued.

    A batch whose row is corrupt is logged, and does not stop the others.

    :param ids: the batches to check; None for all.
    """
    enqueued = 0
    for batch in ready(books, ids):
        with _logging_broken(batch.key):
            if ended := _end(books, batch.id):
                failpoints.reach("after-batch")
                enqueued += ended.then_run_id is not None
                _log_end(ended)
    if enqueued:
        wake_all(books)
    return enqueued


@contextmanager
def _logging_broken(key: str) -> Generator[None]:
    """Log an error that the row of the batch *key* has caused, and continue."""
    try:
        yield
    except Exception as error:
        if isinstance(error, CronJobsError) and not is_about_the_rows(error):
            raise
        logger.error(
            "The batch %s cannot end, since its row is broken: %s. Correct the row in job_batches.",
            one_line(str(key)),
            one_line(str(error)).rstrip("."),
        )


def _log_end(ended: Ended) -> None:
    """Log how a batch has ended."""
    counts = ended.counts
    summary = ", ".join(
        f"{number:,} {status}" for status in TERMINAL if (number := getattr(counts, status))
    )
    then = f"; then {ended.then_task}, run {ended.then_run_id}" if ended.then_run_id else ""
    logger.info(
        "batch %s has ended: %s%s", one_line(str(counts.key)), summary or "no members", then
    )


def _end(books: Bookkeeping, batch_id: int) -> Ended | None:
    """End a batch.

    If another process has locked it, try again, since that process may not see our last run's end.
    """
    for pause in (*PAUSE_SECONDS, 0.0):
        ended = books.transaction(lambda c: end_batch(c, books.dialect, batch_id))
        if ended is not None or not any(ready(books, [batch_id])):
            return ended
        time.sleep(pause)
    return None


def ready(books: Bookkeeping, ids: Iterable[int] | None = None) -> Iterator[Any]:
    """Yield the ids and keys of batches that are closed, and whose runs have all ended.

    :param ids: the batches to check; None for all.
    """
    among, parameters = "", dict[str, object]()
    if ids is not None:
        among, parameters = (
            f"AND {books.dialect.among('b.id')}",
            {"ids": books.dialect.many(ids)},
        )
    statement = f"""
        SELECT b.id, b.key, CASE WHEN b.closed_at IS NULL THEN 0 WHEN {is_live("b")} THEN 0
            ELSE 1 END AS is_ready
        FROM job_batches b WHERE {OPEN_BATCH} AND b.id > :after {among} ORDER BY b.id LIMIT :chunk
    """
    rows: Any = None
    while rows is None or len(rows) == MAX_BATCHES:
        page = {"after": rows[-1].id if rows else 0, "chunk": MAX_BATCHES}
        rows = books.rows(text(statement), {**parameters, **page})
        yield from (row for row in rows if row.is_ready)


def end_batch(connection: Connection, d: Dialect, batch_id: int) -> Ended | None:
    """End a batch in *connection*'s transaction.

    1. Lock its row, so that no other process ends or fills it. 2. Check that all of its runs have
    ended, in a separate statement, which sees everything committed before the lock. 3. Count them.
    4. Enqueue ``then``. 5. Write the end and the counts.

    :returns: None if a run is live, if the batch is not closed or has ended, or if its row is
        locked.
    :raises ValueError: a column of the batch cannot be read.
    """
    parameters = {"id": batch_id}
    lock = f"""
        SELECT key, then_task, {d.unparsed("then_columns")} AS then_columns FROM job_batches
        WHERE id = :id AND closed_at IS NOT NULL AND {OPEN_BATCH} {d.skip_locked}
    """
    batch = connection.execute(text(lock), parameters).first()
    live = f"SELECT 1 FROM job_batches b WHERE b.id = :id AND {is_live('b')}"
    if batch is None or connection.execute(text(live), parameters).first():
        return None
    numbers = numbers_of(members_of(connection.execute, d, [batch_id])[batch_id])
    failpoints.reach("before-then")
    then_run_id = None
    if batch.then_task is not None:
        then_run_id = _enqueue_then(connection, d, batch_id, batch.then_columns)
        failpoints.reach("after-then")
    assignments = ", ".join(f"{name} = :{name}" for name in numbers)
    end = f"""
        UPDATE job_batches SET finished_at = {d.now}, then_run_id = :then_run_id, {assignments}
        WHERE id = :id
    """
    connection.execute(text(end), {**parameters, "then_run_id": then_run_id, **numbers})
    counts = BatchCounts(key=batch.key, finished=True, **numbers)
    return Ended(counts, batch.then_task, then_run_id)


def _enqueue_then(connection: Connection, d: Dialect, batch_id: int, then_columns: object) -> int:
    """Insert a batch's run of ``then``; return its id."""
    columns = _plain(then_columns)
    policy = {name: parameter(d, name) for name in POLICY}
    source = "FROM job_batches WHERE id = :id RETURNING id"
    batch_columns = {"job_type": "then_task", "payload": "then_payload"}
    statement = insert_into_runs({**policy, **batch_columns}, d.now, d.now, source)
    values = {name: columns.get(name) for name in POLICY}
    return int(connection.execute(text(statement), {"id": batch_id, **values}).scalar_one())


def _plain(then_columns: object) -> dict[str, Any]:
    try:
        columns: dict[str, Any] = json_object(stored_json(then_columns))
    except ValueError:  # SQLite accepts any text.
        columns = {"": ...}
    if not all(isinstance(value, int | str | None) for value in columns.values()):
        raise ValueError(f"its then_columns is {then_columns!r}, which is not plain JSON")
    return columns
