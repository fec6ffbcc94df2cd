"""The rows of batches: open, hold and close them, and count their members.

Until a batch has ended, its members are counted from the rows of its runs, so the counts are right
even if other code wrote those rows. Nothing is written to the batch while its runs end, since many
workers would wait for its row. The following transactions lock the row until their commit, so that
no run can join an ended batch:

=====================================  =========================================================
the transaction                        if another transaction has locked the row
=====================================  =========================================================
adds runs, closes it                   it waits
closes it as an operator               it refuses
ends it (`ending.end_batch`)           it gives up, and a later check ends the batch
retries runs of it (`hold_batches`)    it leaves these runs unchanged
=====================================  =========================================================
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, TextClause, text

from ...db.connection import Bookkeeping
from ...db.dialect import Dialect
from ...models.conditions import IN_BATCH, OPEN_BATCH, RUNNING
from ...types import TERMINAL, BatchCounts

#: Executes a statement with parameters, and returns its rows.
Execute: TypeAlias = Callable[[TextClause, dict[str, Any]], Iterable[Any]]


class NewBatch(NamedTuple):
    """The values of a new batch.

    :ivar then_payload: the payload of the ``then`` run, as a JSON text.
    :ivar then_columns: the other columns of that run.
    """

    key: str
    then_task: str | None = None
    then_payload: str | None = None
    then_columns: Mapping[str, object] | None = None


def open_batch(connection: Connection, d: Dialect, batch: NewBatch) -> tuple[int, bool]:
    """Insert a batch, or find the one with its key, and lock it until the transaction ends.

    If another transaction has locked it, this waits until that one has ended.

    :returns: the batch's id, and whether it is open.
    """
    columns = None if batch.then_columns is None else json.dumps(batch.then_columns)
    statement = f"""
        INSERT INTO job_batches (key, then_task, then_payload, then_columns, opened_at)
        VALUES (:key, :then_task, {d.typed(":then_payload", "jsonb")},
            {d.typed(":then_columns", "jsonb")}, {d.now})
        ON CONFLICT (key) DO UPDATE SET key = job_batches.key RETURNING id, closed_at
    """
    row = connection.execute(text(statement), {**batch._asdict(), "then_columns": columns}).one()
    return int(row.id), row.closed_at is None


def hold_open(connection: Connection, batch_id: int) -> bool:
    """Lock an open batch until *connection*'s transaction or savepoint ends.

    It takes the lock with a write, since sqlite3 begins no transaction for a SELECT, and since a
    transaction with an old snapshot must fail.

    :returns: False if the batch is closed or gone.
    """
    sql = "UPDATE job_batches SET key = key WHERE id = :id AND closed_at IS NULL RETURNING id"
    return connection.execute(text(sql), {"id": batch_id}).first() is not None


def close(connection: Connection, d: Dialect, batch_id: int, wait: bool = True) -> bool:
    """Close a batch.

    :param wait: whether to wait for another transaction that has locked the batch.
    :returns: False if the batch does not exist or is locked.
    """
    free = "SELECT :id" if wait else f"SELECT id FROM job_batches WHERE id = :id {d.skip_locked}"
    sql = f"""
        UPDATE job_batches SET closed_at = COALESCE(closed_at, {d.now})
        WHERE {d.any_of("id", free)} RETURNING id
    """
    return connection.execute(text(sql), {"id": batch_id}).first() is not None


def is_open(books: Bookkeeping, batch_id: int) -> bool:
    """Return whether a batch is committed and not closed."""
    sql = "SELECT id FROM job_batches WHERE id = :id AND closed_at IS NULL"
    return bool(books.rows(text(sql), {"id": batch_id}))


def hold_batches(connection: Connection, d: Dialect, batch_ids: Iterable[int]) -> list[int]:
    """Lock those of *batch_ids* that have not ended, so that none ends before the commit.

    It takes the locks with a write, so that a transaction with an old snapshot cannot end one of
    these batches.

    :returns: the ids of batches that another transaction has locked; leave their runs alone.
    """
    unended = f"SELECT id FROM job_batches WHERE {d.among('id')} AND {OPEN_BATCH}"
    ids = [row.id for row in connection.execute(text(unended), {"ids": d.many(batch_ids)})]
    if not ids:
        return []
    free = f"SELECT id FROM job_batches WHERE {d.among('id')} AND {OPEN_BATCH} {d.skip_locked}"
    lock = f"UPDATE job_batches SET key = key WHERE {d.any_of('id', free)} RETURNING id"
    locked_ids = {row.id for row in connection.execute(text(lock), {"ids": d.many(ids)})}
    return [batch_id for batch_id in ids if batch_id not in locked_ids]


def _has(status: str, batch: str) -> str:
    """Return SQL for: *batch*, an alias, has a run of *status*.

    It reads the end of the index, which has the runs that were due last. Until a vacuum, the start
    of the index has dead entries of all runs that ever had the status.
    """
    return f"""
        (SELECT r.id FROM job_runs r
         WHERE r.batch_id = {batch}.id AND r.status = '{status}' AND r.status <> 'running'
         ORDER BY r.run_at DESC, r.id DESC LIMIT 1) IS NOT NULL
    """


def is_live(batch: str) -> str:
    """Return SQL for: *batch*, an alias, has a run that has not ended."""
    running = f"""
        (SELECT r.id FROM job_runs r WHERE r.status = 'running' AND r.batch_id = {batch}.id
         ORDER BY r.locked_until DESC LIMIT 1) IS NOT NULL
    """
    return f"({_has('queued', batch)} OR {_has('failed', batch)} OR {running})"


def members_of(execute: Execute, d: Dialect, ids: Iterable[int]) -> dict[int, Counter[str]]:
    """Return the number of runs by status for each of the batches *ids*."""
    counts = {batch_id: Counter[str]() for batch_id in ids}
    if counts:
        runs = f"FROM job_runs WHERE {d.among('batch_id')}"
        # Both parts repeat the condition of an index.
        count = f"""
            SELECT batch_id, status, count(*) AS members {runs} AND {IN_BATCH}
            GROUP BY batch_id, status
            UNION ALL
            SELECT batch_id, 'running' AS status, count(*) AS members {runs} AND {RUNNING}
            GROUP BY batch_id
        """
        for row in execute(text(count), {"ids": d.many(counts)}):
            counts[row.batch_id][row.status] = row.members
    return counts


def numbers_of(members: Counter[str]) -> dict[str, int]:
    """Return the counts for a batch's row: of all members, and by outcome."""
    return {"total": members.total(), **{name: members[name] for name in TERMINAL}}


def ended_for(books: Bookkeeping, run_id: int) -> BatchCounts | None:
    """Return the counts of the batch whose ``then`` is the run *run_id*."""
    numbers = ", ".join(("total", *TERMINAL))
    sql = f"SELECT key, {numbers} FROM job_batches WHERE then_run_id = :run_id"
    rows = books.rows(text(sql), {"run_id": run_id})
    names = "key", "total", *TERMINAL
    counts = [dict(zip(names, row, strict=True)) for row in rows]
    return BatchCounts(finished=True, **counts[0]) if counts else None
