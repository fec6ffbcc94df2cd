"""The writes about batches: fill one, close it, and end it once.

How far a batch is, is counted from the rows of its runs, by `MEMBERS`, so that it is right whoever
wrote them. Nothing is written to a batch while its runs end: many workers would wait for its row.

Who adds runs to a batch holds a lock on its row until the commit, which others may share, unless it
closes the batch, too. Who closes, ends or reopens it needs the row alone. So no run joins a batch
that has ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, text

from ... import failpoints
from ...db.connection import Bookkeeping
from ...db.dialect import Dialect
from ...models.conditions import OPEN_BATCH
from ...types import TERMINAL, BatchCounts
from ..columns import RUN_COLUMNS, insert_into_runs, parameter

#: How many batches one statement looks at, and how many runs one cancels.
CHUNK = 1000
#: The columns of a run of ``then`` that `OpenBatch.then_columns` gives.
THEN_COLUMNS = tuple(name for name in RUN_COLUMNS if name != "job_type")
#: The statuses of a batch's members, and how many have each. ``open``: a batch that has not ended.
MEMBERS = """
    SELECT status, count(*) AS members FROM job_runs
    WHERE batch_id = :id AND status <> 'running' GROUP BY status
    UNION ALL
    SELECT 'running' AS status, count(*) AS members FROM job_runs
    WHERE batch_id = :id AND status = 'running'
    UNION ALL
    SELECT status, count(*) AS members FROM (
        SELECT CASE WHEN finished_at IS NULL THEN 'open' WHEN dead > 0 THEN 'dead'
                    WHEN total > 0 AND cancelled = total THEN 'cancelled'
                    ELSE 'succeeded' END AS status
        FROM job_batches WHERE parent_id = :id
    ) AS inside GROUP BY status
"""
NUMBERS = ", ".join(f"{name} = :{name}" for name in ("total", *TERMINAL))


def _has(status: str) -> str:
    """Return SQL for: the batch ``b`` has a run of *status*.

    From the end of the index, where the runs that were due last are. At its beginning are, until a
    vacuum, entries of all those that have had the status.
    """
    return f"""
        (SELECT r.id FROM job_runs r
         WHERE r.batch_id = b.id AND r.status = '{status}' AND r.status <> 'running'
         ORDER BY r.run_at DESC, r.id DESC LIMIT 1) IS NOT NULL
    """


def _inside(condition: str) -> str:
    """Return SQL for: inside the batch ``b`` is one, ``c``, of which *condition* is true.

    Not by EXISTS, for which PostgreSQL may choose to read all batches instead.
    """
    return f"""
        (SELECT c.id FROM job_batches c WHERE c.parent_id = b.id AND {condition} LIMIT 1)
        IS NOT NULL
    """


#: From its end, too.
_IS_RUNNING = """
    (SELECT r.id FROM job_runs r WHERE r.status = 'running' AND r.batch_id = b.id
     ORDER BY r.locked_until DESC LIMIT 1) IS NOT NULL
"""


_LIVE = f"""
    ({_has("queued")} OR {_has("failed")} OR {_IS_RUNNING} OR {_inside("c.finished_at IS NULL")})
"""
_DIED = "(c.finished_at IS NOT NULL) IS TRUE AND c.dead > 0"
HAS_DEAD = f"(b.on_dead = 'stop' AND ({_has('dead')} OR {_inside(_DIED)}))"


class Unended(NamedTuple):
    """A batch that has not ended, as a look found it.

    :ivar ready: whether it can be ended: it is closed, and all of its members have ended.
    :ivar stopped: whether what waits in it is to be cancelled, since a member died.
    """

    id: int
    key: str
    ready: bool
    stopped: bool


class Ended(NamedTuple):
    """A batch that was ended.

    :ivar then_run_id: the run that was enqueued for it; None if none was.
    """

    counts: BatchCounts
    parent_id: int | None
    then_task: str | None
    then_run_id: int | None


def unended(books: Bookkeeping, ids: Iterable[int] | None = None, after: int = 0) -> list[Unended]:
    """Return those batches that can be ended or are to be stopped.

    :param ids: look at these; None for all, `CHUNK` at a time.
    :param after: only greater ids.
    """
    d = books.dialect
    which = "" if ids is None else f"AND {d.among('b.id')}"
    given = {} if ids is None else {"ids": d.many(ids)}
    statement = f"""
        SELECT * FROM (
            SELECT b.id, b.key,
                CASE WHEN b.closed_at IS NULL THEN 0 WHEN {_LIVE} THEN 0 ELSE 1 END AS ready,
                CASE WHEN {HAS_DEAD} THEN 1 ELSE 0 END AS stopped
            FROM job_batches b WHERE {OPEN_BATCH} AND b.id > :after {which}
            ORDER BY b.id LIMIT :chunk
        ) AS looked_at
    """
    rows = books.rows(text(statement), {"after": after, "chunk": CHUNK, **given})
    return [Unended(row.id, row.key, bool(row.ready), bool(row.stopped)) for row in rows]


def end(books: Bookkeeping, batch_id: int) -> Ended | None:
    """End a batch, and enqueue its ``then``; return None if it cannot be ended now.

    Somebody else may be at it, or a member is live after all.
    """
    return books.transaction(lambda c: end_batch(c, books.dialect, batch_id))


def ended_for(books: Bookkeeping, run_id: int) -> BatchCounts | None:
    """Return how the batch ended whose ``then`` is the run *run_id*.

    Of one that an operator has opened again, what is known now.
    """
    numbers = ", ".join(("total", *TERMINAL))
    found = f"SELECT id, key, pruned, {numbers} FROM job_batches WHERE then_run_id = :run_id"
    rows = books.rows(text(found), {"run_id": run_id})
    if not rows:
        return None
    (row,) = rows
    if row.total is not None:
        counts = {name: getattr(row, name) for name in ("total", *TERMINAL)}
    else:
        members = books.rows(text(MEMBERS), {"id": row.id})
        counts = numbers_of(counted(members, pruned_of(books.dialect, row) or {}))
    return BatchCounts(key=row.key, finished=row.total is not None, **counts)


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
    live = f"SELECT 1 FROM job_batches b WHERE b.id = :id AND {_LIVE}"
    if batch is None or connection.execute(text(live), own).first():
        return None
    pruned = pruned_of(d, batch)
    if pruned is None:
        raise ValueError(f"its pruned is {batch.pruned!r}, and not numbers by status")
    counts = counted(connection.execute(text(MEMBERS), own), pruned)
    failpoints.reach("before-then")
    new_run_id = None
    if batch.then_task is not None and batch.then_run_id is None:
        new_run_id = _enqueue_then(connection, d, batch_id, batch.then_columns)
        failpoints.reach("after-then")
    numbers = numbers_of(counts)
    end = f"""
        UPDATE job_batches SET finished_at = {d.now}, then_run_id = :then_run_id, {NUMBERS}
        WHERE id = :id
    """
    then_run_id = new_run_id or batch.then_run_id
    connection.execute(text(end), {**own, "then_run_id": then_run_id, **numbers})
    as_counts = BatchCounts(key=batch.key, finished=True, **numbers)
    return Ended(as_counts, batch.parent_id, batch.then_task, new_run_id)


def _enqueue_then(connection: Connection, d: Dialect, batch_id: int, then_columns: object) -> int:
    """Insert a batch's run of ``then``; return its id."""
    columns = _object(d, then_columns, int | str | None)
    if columns is None:
        raise ValueError(f"its then_columns is {then_columns!r}, and not plain JSON")
    given = {name: parameter(d, name) for name in THEN_COLUMNS}
    own = {"job_type": "then_task", "payload": "then_payload", "batch_id": "parent_id"}
    source = "FROM job_batches WHERE id = :id RETURNING id"
    statement = insert_into_runs({**own, **given}, d.now, d.now, source)
    values = {name: columns.get(name) for name in THEN_COLUMNS}
    return int(connection.execute(text(statement), {"id": batch_id, **values}).scalar_one())


def _object(d: Dialect, value: object, kinds: Any) -> dict[str, Any] | None:
    """Return the object in a JSON column, its values of *kinds*; None if there is another value."""
    try:
        parsed = d.parsed(value)
    except ValueError:  # SQLite accepts any text.
        return None
    if not isinstance(parsed, dict):
        return None
    found = cast("dict[str, Any]", parsed)
    return found if all(isinstance(each, kinds) for each in found.values()) else None


def pruned_of(d: Dialect, batch: Any) -> dict[str, int] | None:
    """Return how many of a batch's runs were pruned, by status; None if that cannot be read."""
    return {} if batch.pruned is None else _object(d, batch.pruned, int)


def counted(rows: Iterable[Any], pruned: Mapping[str, int]) -> Counter[str]:
    """Return how many members have which status, also those whose rows are pruned.

    :param rows: those of `MEMBERS`.
    """
    found = Counter(pruned)
    for row in rows:
        found[row.status] += row.members
    return found


def numbers_of(counts: Counter[str]) -> dict[str, int]:
    """Return the numbers that a batch's row has, from those of its members by status."""
    return {"total": sum(counts.values()), **{name: counts[name] for name in TERMINAL}}
