"""The writes about batches: fill one, close it, stop it, and end it once.

How far a batch is, is counted from the rows of its runs, by `MEMBERS`, so that it is right whoever
wrote them. Nothing is written to a batch while its runs end: many workers would wait for its row.

Who adds runs to a batch holds a lock on its row until the commit, which others may share, unless it
closes the batch, too. Who closes, ends or reopens it needs the row alone. So no run joins a batch
that has ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, text

from .. import failpoints
from ..models.conditions import HANDED, OPEN_BATCH
from ..types import TERMINAL, BatchCounts, Outcome
from . import batch_statements as statements
from .connection import Bookkeeping, Rows
from .dialect import Dialect

#: How many batches one statement looks at, and how many runs one cancels.
CHUNK = 1000
#: Why a run was cancelled that waited in a batch.
REASON = "its batch was stopped: a member died"


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
    given = {} if ids is None else {"ids": statements.many(d, ids)}
    rows = books.rows(
        text(statements.unended(d, some=ids is not None)),
        {"after": after, "chunk": CHUNK, **given},
    )
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
    rows = books.rows(text(statements.ENDED_FOR), {"run_id": run_id})
    if not rows:
        return None
    (row,) = rows
    if row.total is not None:
        numbers = {name: getattr(row, name) for name in ("total", *TERMINAL)}
    else:
        members = books.rows(text(statements.MEMBERS), {"id": row.id})
        numbers = numbers_of(counted(members, _pruned(books.dialect, row) or {}))
    return BatchCounts(key=row.key, finished=row.total is not None, **numbers)


def close(books: Bookkeeping, batch_id: int) -> bool:
    """Close an open batch; return False if another transaction holds it."""
    d = books.dialect
    free = f"SELECT id FROM job_batches WHERE id = :id {d.skip_locked}"
    sql = f"""
        UPDATE job_batches SET closed_at = COALESCE(closed_at, {d.now})
        WHERE {d.any_of("id", free)} RETURNING id
    """
    return bool(books.rows(text(sql), {"id": batch_id}))


def keys_of_family(books: Bookkeeping, batch_id: int) -> list[str]:
    """Return the keys of the batches of `family`."""
    ids = {"ids": statements.many(books.dialect, family(books, batch_id))}
    sql = f"SELECT key FROM job_batches WHERE {statements.among(books.dialect, 'id')}"
    return [row.key for row in books.rows(text(sql), ids)]


def family(books: Bookkeeping, batch_id: int) -> list[int]:
    """Return a batch's id, and those of the batches inside it that have not ended."""
    rows = books.rows(text(statements.FAMILY), {"id": batch_id})
    return [row.id for row in rows]


def cancel_waiting(books: Bookkeeping, batch_id: int, stopped_id: int) -> Iterator[list[Outcome]]:
    """Cancel the runs of a batch that wait, also in brokers; yield the outcomes by `CHUNK`.

    :param stopped_id: the batch in which a member died: this one, or one around it. If an
        operator lets that go on, nothing more is cancelled.
    """
    d = books.dialect
    given = {"id": batch_id, "stopped_id": stopped_id, "chunk": CHUNK}
    for waiting in statements.WAITING:
        place: dict[str, object] = {}
        while found := books.rows(
            text(statements.waiting(d, waiting, begin=not place)), {**given, **place}
        ):
            ids = statements.many(d, [row.id for row in found])
            rows = books.rows(text(statements.cancel(d)), {"ids": ids, "reason": REASON})
            yield [_cancelled(row) for row in rows]
            if waiting == HANDED:
                if not rows:  # Others have them locked.
                    break
                continue  # Those that are left are found again, from the first on.
            last = found[-1]
            moment = last.run_at if isinstance(last.run_at, str) else d.instant(last.run_at)
            place = {"run_at": moment, "run_id": last.id}


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
    row = connection.execute(text(statements.insert(d)), values).first()
    return None if row is None else int(row.id)


def hold_open(connection: Connection, d: Dialect, key: str, alone: bool) -> tuple[int, bool] | None:
    """Keep a batch from being closed until *connection*'s transaction or savepoint ends.

    :param alone: whether others may not hold it meanwhile: two that did, and then closed it, would
        wait for each other.
    :returns: its id, and whether it is open; None if there is no such batch.
    """
    if d.name == "postgresql":
        lock = "NO KEY UPDATE" if alone else "SHARE"
        sql = f"SELECT id, closed_at FROM job_batches WHERE key = :key FOR {lock}"
    else:
        # By a write: sqlite3 begins no transaction for a SELECT, so that alone would hold nothing.
        sql = "UPDATE job_batches SET key = key WHERE key = :key RETURNING id, closed_at"
    row = connection.execute(text(sql), {"key": key}).first()
    return None if row is None else (int(row.id), row.closed_at is None)


def close_batch(connection: Connection, d: Dialect, key: str) -> tuple[bool, Ended | None]:
    """Close a batch in *connection*'s transaction, and end it if all of its members have ended.

    A transaction with a snapshot does not see members that came after that. So it only closes the
    batch, and the next tick ends it.

    :returns: whether there is such a batch; and what became of it, if it ended.
    """
    row = connection.execute(text(statements.close(d)), {"key": key}).first()
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
    batch = connection.execute(text(statements.lock(d)), {"id": batch_id}).first()
    if batch is None or connection.execute(text(statements.is_live()), {"id": batch_id}).first():
        return None
    pruned = _pruned(d, batch)
    if pruned is None:
        raise ValueError(f"its pruned is {batch.pruned!r}, and not numbers by status")
    counts = counted(connection.execute(text(statements.MEMBERS), {"id": batch_id}), pruned)
    failpoints.reach("before-then")
    then_run_id = new_run_id = None
    if batch.then_task is not None and batch.then_run_id is None:
        columns = _object(d, batch.then_columns, int | str | None)
        if columns is None:
            raise ValueError(f"its then_columns is {batch.then_columns!r}, and not plain JSON")
        values = {name: columns.get(name) for name in statements.THEN_COLUMNS}
        new_run_id = connection.execute(
            text(statements.enqueue_then(d)), {"id": batch_id, **values}
        ).scalar_one()
        then_run_id = new_run_id
        failpoints.reach("after-then")
    numbers = numbers_of(counts)
    connection.execute(
        text(statements.write_end(d)),
        {"id": batch_id, "then_run_id": then_run_id or batch.then_run_id, **numbers},
    )
    as_counts = BatchCounts(key=batch.key, finished=True, **numbers)
    return Ended(as_counts, batch.parent_id, batch.then_task, new_run_id)


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


def _pruned(d: Dialect, batch: Any) -> dict[str, int] | None:
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


def hold_batches(
    connection: Connection, d: Dialect, run_ids: Sequence[int]
) -> dict[int, list[int]]:
    """Lock the batches of *run_ids*, and those around them, for `reopen` or `recount`.

    :returns: for each batch of the runs, itself and those around it; nothing, if another
        transaction holds one of these: then its runs are to be left alone.
    """
    sql = f"SELECT DISTINCT batch_id FROM job_runs WHERE {statements.among(d, 'id')}"
    rows = connection.execute(text(sql), {"ids": statements.many(d, run_ids)})
    own = {row.batch_id for row in rows} - {None}
    around: dict[int, int | None] = {}
    left = own
    while left:
        sql = f"SELECT id, parent_id FROM job_batches WHERE {statements.among(d, 'id')}"
        found = connection.execute(text(sql), {"ids": statements.many(d, left)}).all()
        around |= {row.id: row.parent_id for row in found}
        left = {row.parent_id for row in found} - {None} - around.keys()
    if not around:
        return {}
    locked = connection.execute(text(statements.lock_all(d)), {"ids": statements.many(d, around)})
    free = {row.id for row in locked}
    held: dict[int, list[int]] = {}
    for batch in own & around.keys():
        chain: list[int] = []
        outer: int | None = batch
        while outer is not None and outer in around and outer not in chain:
            chain.append(outer)
            outer = around[outer]
        held[batch] = chain if free.issuperset(chain) else []
    return held


def halted(connection: Connection, d: Dialect, ids: Collection[int]) -> set[int]:
    """Return which of *ids* with ``on_dead='stop'`` have ended, or have a dead member."""
    if not ids:
        return set()
    rows = connection.execute(text(statements.halted(d)), {"ids": statements.many(d, ids)})
    return {row.id for row in rows}


def reopen(connection: Connection, d: Dialect, ids: Mapping[int, bool], again: int | None) -> None:
    """Note that batches have live members again: those of *ids*, which are locked.

    :param ids: for each, whether it was `halted`. If so, it goes on from now on when a member dies.
    :param again: the batch whose ``then`` is to be enqueued again when it ends.
    """
    parameters = {
        "ids": statements.many(d, ids),
        "halted": statements.many(d, [each for each, was_halted in ids.items() if was_halted]),
        "again": again or 0,
    }
    connection.execute(text(statements.reopen(d)), parameters)


def recount(connection: Connection, d: Dialect, ids: Iterable[int]) -> None:
    """Count the members of those of *ids* that have ended: an operator has changed some.

    From the inside out: how a batch ended that is inside another one is seen from its counts.
    """
    among = statements.among(d, "id")
    sql = f"SELECT id, pruned FROM job_batches WHERE {among} AND NOT ({OPEN_BATCH})"
    ended = connection.execute(text(sql), {"ids": statements.many(d, ids)}).all()
    # Who opens a batch inside another one opens it later.
    for row in sorted(ended, key=lambda row: row.id, reverse=True):
        pruned = _pruned(d, row)
        if pruned is None:
            continue  # It is broken, and stops no other.
        counts = counted(connection.execute(text(statements.MEMBERS), {"id": row.id}), pruned)
        values = {"id": row.id, **numbers_of(counts)}
        connection.execute(
            text(f"UPDATE job_batches SET {statements.NUMBERS} WHERE id = :id"), values
        )


def note_pruned(connection: Connection, d: Dialect, rows: Rows) -> tuple[list[int], set[int]]:
    """Add runs that are about to be deleted to what their batches have lost; return their ids.

    Those whose batch another transaction holds stay for the next time; these batches are returned,
    too. If what a batch has lost cannot be read, nothing is added.

    :param rows: their ids, statuses and batches.
    """
    ids = {row.batch_id for row in rows} - {None}
    if not ids:
        return [row.id for row in rows], set()
    given = {"ids": statements.many(d, ids)}
    locked = connection.execute(text(statements.lock_all(d)), given).all()
    held: set[int] = ids - {row.id for row in locked}
    if held:
        given = {"ids": statements.many(d, held)}
        there = f"SELECT id FROM job_batches WHERE {statements.among(d, 'id')}"
        held = {row.id for row in connection.execute(text(there), given)}
    before = {row.id: _pruned(d, row) for row in locked}
    lost = {batch: Counter(pruned) for batch, pruned in before.items() if pruned is not None}
    for row in rows:
        if row.batch_id in lost:
            lost[row.batch_id][row.status] += 1
    given = {"ids": statements.many(d, lost), "pruned": json.dumps(lost)}
    connection.execute(text(statements.note_pruned(d)), given)
    return [row.id for row in rows if row.batch_id not in held], held


def _cancelled(row: Any) -> Outcome:
    return Outcome(
        row.id, "", "cancelled", row.attempts, row.job_type, row.last_error, row.error_type
    )
