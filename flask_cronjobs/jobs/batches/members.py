"""What becomes of a batch whose runs are cancelled, retried, discarded or pruned."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from sqlalchemy import Connection, text

from ...db.connection import Bookkeeping, Rows
from ...db.dialect import Dialect
from ...models.conditions import HANDED, OPEN_BATCH, RUNNABLE
from ...types import Outcome
from ..columns import assigned, ended
from .rows import CHUNK, HAS_DEAD, MEMBERS, NUMBERS, counted, numbers_of, pruned_of

#: Why a run was cancelled that waited in a batch.
REASON = "its batch was stopped: a member died"
#: The conditions of the runs that wait, in the words of an index each.
WAITING = (
    "status = 'queued' AND status <> 'running'",
    "status = 'failed' AND status <> 'running'",
    HANDED,
)
#: The ``error_type`` of a run that waited in a batch that was stopped.
STOPPED = "Stopped"


def keys_of_family(books: Bookkeeping, batch_id: int) -> list[str]:
    """Return the keys of the batches of `family`."""
    ids = {"ids": books.dialect.many(family(books, batch_id))}
    sql = f"SELECT key FROM job_batches WHERE {books.dialect.among('id')}"
    return [row.key for row in books.rows(text(sql), ids)]


def family(books: Bookkeeping, batch_id: int) -> list[int]:
    """Return a batch's id, and those of the batches inside it that have not ended."""
    inside = """
        WITH RECURSIVE family(id) AS (
            SELECT id FROM job_batches WHERE id = :id
            UNION
            SELECT c.id FROM job_batches c JOIN family ON c.parent_id = family.id
            WHERE (c.finished_at IS NULL) IS TRUE
        )
        SELECT id FROM family
    """
    rows = books.rows(text(inside), {"id": batch_id})
    return [row.id for row in rows]


def cancel_waiting(books: Bookkeeping, batch_id: int, stopped_id: int) -> Iterator[list[Outcome]]:
    """Cancel the runs of a batch that wait, also in brokers; yield the outcomes by `CHUNK`.

    :param stopped_id: the batch in which a member died: this one, or one around it. If an
        operator lets that go on, nothing more is cancelled.
    """
    d = books.dialect
    free = f"""
        SELECT id FROM job_runs WHERE {d.among("id")} AND ({RUNNABLE} OR {HANDED}) {d.skip_locked}
    """
    cancel = f"""
        UPDATE job_runs SET {assigned(ended("'cancelled'", d.now, ":reason", f"'{STOPPED}'"))}
        WHERE {d.any_of("id", free)} RETURNING id, job_type, attempts
    """
    given = {"id": batch_id, "stopped_id": stopped_id, "chunk": CHUNK}
    for waiting in WAITING:
        place: dict[str, object] = {}
        while found := books.rows(text(_waiting(d, waiting, begin=not place)), {**given, **place}):
            ids = d.many([row.id for row in found])
            rows = books.rows(text(cancel), {"ids": ids, "reason": REASON})
            yield [
                Outcome(row.id, "", "cancelled", row.attempts, row.job_type, REASON, STOPPED)
                for row in rows
            ]
            if waiting == HANDED:
                if not rows:  # Others have them locked.
                    break
                continue  # Those that are left are found again, from the first on.
            last = found[-1]
            moment = last.run_at if isinstance(last.run_at, str) else d.instant(last.run_at)
            place = {"run_at": moment, "run_id": last.id}


def _waiting(d: Dialect, which: str, begin: bool) -> str:
    """Return the query for a step of the runs that wait in a stopped batch, by when they are due.

    Those in a broker are few, and have an index by lease alone.

    :param which: one of `WAITING`.
    :param begin: the first step; later ones go on behind ``run_at`` and ``run_id``.
    """
    place = f"({d.typed(':run_at', 'timestamptz')}, :run_id)"
    beyond = "" if begin else f"AND (run_at, id) > {place}"
    order = "locked_until" if which == HANDED else "run_at, id"
    return f"""
        SELECT id, run_at FROM job_runs
        WHERE batch_id = :id AND {which} {beyond}
            AND EXISTS (SELECT 1 FROM job_batches WHERE id = :stopped_id AND on_dead = 'stop')
        ORDER BY {order} LIMIT :chunk
    """


def hold_batches(
    connection: Connection, d: Dialect, run_ids: Sequence[int]
) -> dict[int, list[int]]:
    """Lock the batches of *run_ids*, and those around them, for `reopen` or `recount`.

    :returns: for each batch of the runs, itself and those around it; nothing, if another
        transaction holds one of these: then its runs are to be left alone.
    """
    sql = f"SELECT DISTINCT batch_id FROM job_runs WHERE {d.among('id')}"
    rows = connection.execute(text(sql), {"ids": d.many(run_ids)})
    own = {row.batch_id for row in rows} - {None}
    around: dict[int, int | None] = {}
    left = own
    while left:
        sql = f"SELECT id, parent_id FROM job_batches WHERE {d.among('id')}"
        found = connection.execute(text(sql), {"ids": d.many(left)}).all()
        around |= {row.id: row.parent_id for row in found}
        left = {row.parent_id for row in found} - {None} - around.keys()
    if not around:
        return {}
    locked = connection.execute(text(_lock_all(d)), {"ids": d.many(around)})
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
    statement = f"""
        SELECT b.id FROM job_batches b
        WHERE {d.among("b.id")} AND ({HAS_DEAD} OR (b.on_dead = 'stop' AND NOT ({OPEN_BATCH})))
    """
    rows = connection.execute(text(statement), {"ids": d.many(ids)})
    return {row.id for row in rows}


def reopen(connection: Connection, d: Dialect, ids: Mapping[int, bool], again: int | None) -> None:
    """Note that batches have live members again: those of *ids*, which are locked.

    :param ids: for each, whether it was `halted`. If so, it goes on from now on when a member dies.
    :param again: the batch whose ``then`` is to be enqueued again when it ends.
    """
    parameters = {
        "ids": d.many(ids),
        "halted": d.many([each for each, was_halted in ids.items() if was_halted]),
        "again": again or 0,
    }
    statement = f"""
        UPDATE job_batches SET finished_at = NULL, total = NULL, succeeded = NULL, dead = NULL,
            cancelled = NULL, skipped = NULL,
            on_dead = CASE WHEN {d.among("id", "halted")} THEN 'continue' ELSE on_dead END,
            then_run_id = CASE WHEN id = :again THEN NULL ELSE then_run_id END
        WHERE {d.among("id")}
    """
    connection.execute(text(statement), parameters)


def recount(connection: Connection, d: Dialect, ids: Iterable[int]) -> None:
    """Count the members of those of *ids* that have ended: an operator has changed some.

    From the inside out: how a batch ended that is inside another one is seen from its counts.
    """
    among = d.among("id")
    sql = f"SELECT id, pruned FROM job_batches WHERE {among} AND NOT ({OPEN_BATCH})"
    ended = connection.execute(text(sql), {"ids": d.many(ids)}).all()
    # Who opens a batch inside another one opens it later.
    for row in sorted(ended, key=lambda row: row.id, reverse=True):
        pruned = pruned_of(d, row)
        if pruned is None:
            continue  # It is broken, and stops no other.
        counts = counted(connection.execute(text(MEMBERS), {"id": row.id}), pruned)
        values = {"id": row.id, **numbers_of(counts)}
        connection.execute(text(f"UPDATE job_batches SET {NUMBERS} WHERE id = :id"), values)


def note_pruned(connection: Connection, d: Dialect, rows: Rows) -> tuple[list[int], set[int]]:
    """Add runs that are about to be deleted to what their batches have lost; return their ids.

    Those whose batch another transaction holds stay for the next time; these batches are returned,
    too. If what a batch has lost cannot be read, nothing is added.

    :param rows: their ids, statuses and batches.
    """
    ids = {row.batch_id for row in rows} - {None}
    if not ids:
        return [row.id for row in rows], set()
    given = {"ids": d.many(ids)}
    locked = connection.execute(text(_lock_all(d)), given).all()
    held: set[int] = ids - {row.id for row in locked}
    if held:
        given = {"ids": d.many(held)}
        there = f"SELECT id FROM job_batches WHERE {d.among('id')}"
        held = {row.id for row in connection.execute(text(there), given)}
    before = {row.id: pruned_of(d, row) for row in locked}
    lost = {batch: Counter(pruned) for batch, pruned in before.items() if pruned is not None}
    for row in rows:
        if row.batch_id in lost:
            lost[row.batch_id][row.status] += 1
    given = {"ids": d.many(lost), "pruned": json.dumps(lost)}
    connection.execute(text(_note_pruned(d)), given)
    return [row.id for row in rows if row.batch_id not in held], held


def _lock_all(d: Dialect) -> str:
    """Return the query that locks the batches in ``ids``, but for those that others hold."""
    return f"SELECT id, pruned FROM job_batches WHERE {d.among('id')} {d.skip_locked}"


def _note_pruned(d: Dialect) -> str:
    """Return the UPDATE that notes how many runs of those in ``ids`` were pruned, by status.

    The parameter ``pruned`` has that by their ids.
    """
    return f"UPDATE job_batches SET pruned = {d.member('pruned', 'id')} WHERE {d.among('id')}"
