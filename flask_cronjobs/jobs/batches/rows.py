"""The writes about batches: fill one, close it, and end it once.

How far a batch is, is counted from the rows of its runs, so that it is right whoever wrote them.
Nothing is written to a batch while its runs end: many workers would wait for its row. Until its
commit, a transaction has this lock on the row, so that no run joins a batch that has ended:

=====================================  =========================================================
what it does                           lock
=====================================  =========================================================
adds runs (`hold_open`)                shared; alone if it closes the batch, too
closes it (`close_batch`)              alone, after those that fill it
closes it as an operator (`close`)     alone, unless another has a lock: then it refuses
ends it (`end_batch`)                  alone, unless another has a lock: then a later look ends it
retries, discards (`hold_batches`)     alone, with those around it; unless another has a lock
prunes its runs (`note_pruned`)        alone, unless another has a lock: then the runs stay
=====================================  =========================================================
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from ... import failpoints
from ...db.connection import Bookkeeping
from ...db.dialect import Dialect
from ...models.conditions import OPEN_BATCH
from ...types import TERMINAL, BatchCounts
from ..columns import RUN_COLUMNS, insert_into_runs, parameter
from .members import (
    HAS_DEAD,
    LIVE,
    all_members,
    counts_of,
    json_object,
    members_of,
    numbers_of,
    pruned_of,
    set_numbers,
)

#: How many batches one statement looks at, and how many runs one cancels.
CHUNK = 1000
#: The columns of a run of ``then`` that `OpenBatch.then_columns` gives.
THEN_COLUMNS = tuple(name for name in RUN_COLUMNS if name != "job_type")


class Ended(NamedTuple):
    """A batch that was ended.

    :ivar then_run_id: the run that was enqueued for it; None if none was.
    """

    counts: BatchCounts
    parent_id: int | None
    then_task: str | None
    then_run_id: int | None


def unended(books: Bookkeeping, ids: Iterable[int] | None = None) -> Iterator[Any]:
    """Yield the ids and keys of batches that have not ended, with what is to be done to them.

    A row is ``ready`` if the batch can be ended: it is closed, and all of its members have ended.
    It is ``stopped`` if what waits in it is to be cancelled, since a member died.

    :param ids: look at these; None for all.
    """
    d, after = books.dialect, 0
    which = "" if ids is None else f"AND {d.among('b.id')}"
    given = {} if ids is None else {"ids": d.many(ids)}
    statement = f"""
        SELECT * FROM (
            SELECT b.id, b.key,
                CASE WHEN b.closed_at IS NULL THEN 0 WHEN {LIVE} THEN 0 ELSE 1 END AS ready,
                CASE WHEN {HAS_DEAD} THEN 1 ELSE 0 END AS stopped
            FROM job_batches b WHERE {OPEN_BATCH} AND b.id > :after {which}
            ORDER BY b.id LIMIT :chunk
        ) AS looked_at
    """
    while True:
        rows = books.rows(text(statement), {"after": after, "chunk": CHUNK, **given})
        yield from rows
        if len(rows) < CHUNK:
            return
        after = rows[-1].id


def ended_for(books: Bookkeeping, run_id: int) -> BatchCounts | None:
    """Return how the batch ended whose ``then`` is the run *run_id*.

    Of one that an operator has opened again, what is known now.
    """
    found = f"""
        SELECT id, key, finished_at, pruned, total, {", ".join(TERMINAL)} FROM job_batches
        WHERE then_run_id = :run_id
    """
    rows = books.rows(text(found), {"run_id": run_id})
    if not rows:
        return None
    members = all_members(books.rows, books.dialect, rows)
    return counts_of(rows[0], members[rows[0].id])


def close(books: Bookkeeping, batch_id: int) -> bool:
    """Close an open batch; return False if another transaction holds it."""
    d = books.dialect
    free = f"SELECT id FROM job_batches WHERE id = :id {d.skip_locked}"
    sql = f"""
        UPDATE job_batches SET closed_at = COALESCE(closed_at, {d.now})
        WHERE {d.any_of("id", free)} RETURNING id
    """
    return bool(books.rows(text(sql), {"id": batch_id}))


class OpenBatch(NamedTuple):
    """What a new batch is made of.

    :ivar then_payload: a JSON text.
    :ivar then_columns: those of `THEN_COLUMNS`.
    """

    key: str
    on_dead: str
    parent_id: int | None = None
    then_task: str | None = None
    then_payload: str | None = None
    then_columns: Mapping[str, object] | None = None


def open_batch(connection: Connection, d: Dialect, batch: OpenBatch) -> int | None:
    """Insert a batch in the transaction of *connection*; return its id.

    :returns: None if there is one with its key: if another transaction is inserting it, once that
        has ended.
    """
    columns = None if batch.then_columns is None else json.dumps(batch.then_columns)
    values = {**batch._asdict(), "then_columns": columns}
    statement = f"""
        INSERT INTO job_batches
            (key, on_dead, parent_id, then_task, then_payload, then_columns, opened_at)
        VALUES (:key, :on_dead, :parent_id, :then_task, {d.typed(":then_payload", "jsonb")},
            {d.typed(":then_columns", "jsonb")}, {d.now})
        ON CONFLICT (key) DO NOTHING RETURNING id
    """
    row = connection.execute(text(statement), values).first()
    return None if row is None else int(row.id)


def hold_open(connection: Connection, d: Dialect, key: str, alone: bool) -> tuple[int, bool] | None:
    """Keep a batch from being closed until *connection*'s transaction or savepoint ends.

    :param alone: whether others may not hold it meanwhile: two that did, and then closed it, would
        wait for each other.
    :returns: its id, and whether it is open; None if there is no such batch.
    """
    if d.one_writer:
        # By a write: sqlite3 begins no transaction for a SELECT, so that alone would hold nothing.
        sql = "UPDATE job_batches SET key = key WHERE key = :key RETURNING id, closed_at"
    else:
        lock = "NO KEY UPDATE" if alone else "SHARE"
        sql = f"SELECT id, closed_at FROM job_batches WHERE key = :key FOR {lock}"
    row = connection.execute(text(sql), {"key": key}).first()
    return None if row is None else (int(row.id), row.closed_at is None)


def close_batch(connection: Connection, d: Dialect, key: str) -> tuple[bool, Ended | None]:
    """Close a batch in *connection*'s transaction, and end it if all of its members have ended.

    A transaction with a snapshot does not see members that came after that. So it only closes the
    batch, and the next tick ends it.

    :returns: whether there is such a batch; and what became of it, if it ended.
    """
    statement = f"""
        UPDATE job_batches SET closed_at = COALESCE(closed_at, {d.now}) WHERE key = :key
        RETURNING id, {d.sees_latest} AS sees_all
    """
    row = connection.execute(text(statement), {"key": key}).first()
    if row is None:
        return False, None
    return True, end_batch(connection, d, row.id) if row.sees_all else None


def end_batch(connection: Connection, d: Dialect, batch_id: int) -> Ended | None:
    """End a batch in *connection*'s transaction.

    1. Lock its row, so that nobody else ends, fills or reopens it. 2. Look whether a member is
    live, by a statement of its own: it sees what was committed before the lock. 3. Count. 4.
    Enqueue ``then``, unless that was done before. 5. Write it down.

    :returns: None if a member is live, if it is not closed or has ended, or if somebody else holds
        its row.
    :raises ValueError: a column of it cannot be read.
    """
    own = {"id": batch_id}
    lock = f"""
        SELECT key, parent_id, pruned, then_task, then_columns, then_run_id FROM job_batches
        WHERE id = :id AND closed_at IS NOT NULL AND {OPEN_BATCH} {d.skip_locked}
    """
    batch = connection.execute(text(lock), own).first()
    live = f"SELECT 1 FROM job_batches b WHERE b.id = :id AND {LIVE}"
    if batch is None or connection.execute(text(live), own).first():
        return None
    pruned = pruned_of(d, batch)
    if pruned is None:
        raise ValueError(f"its pruned is {batch.pruned!r}, and not numbers by status")
    members = members_of(connection.execute, d, [batch_id])
    numbers = numbers_of(members[batch_id] + Counter(pruned))
    failpoints.reach("before-then")
    new_run_id = None
    if batch.then_task is not None and batch.then_run_id is None:
        new_run_id = _enqueue_then(connection, d, batch_id, batch.then_columns)
        failpoints.reach("after-then")
    end = f"""
        UPDATE job_batches SET finished_at = {d.now}, then_run_id = :then_run_id,
            {set_numbers()}
        WHERE id = :id
    """
    then_run_id = new_run_id or batch.then_run_id
    connection.execute(text(end), {**own, "then_run_id": then_run_id, **numbers})
    as_counts = BatchCounts(key=batch.key, finished=True, **numbers)
    return Ended(as_counts, batch.parent_id, batch.then_task, new_run_id)


def _enqueue_then(connection: Connection, d: Dialect, batch_id: int, then_columns: object) -> int:
    """Insert a batch's run of ``then``; return its id."""
    columns = json_object(d, then_columns, int | str | None)
    if columns is None:
        raise ValueError(f"its then_columns is {then_columns!r}, and not plain JSON")
    given = {name: parameter(d, name) for name in THEN_COLUMNS}
    own = {"job_type": "then_task", "payload": "then_payload", "batch_id": "parent_id"}
    source = "FROM job_batches WHERE id = :id RETURNING id"
    statement = insert_into_runs({**own, **given}, d.now, d.now, source)
    values = {name: columns.get(name) for name in THEN_COLUMNS}
    return int(connection.execute(text(statement), {"id": batch_id, **values}).scalar_one())
