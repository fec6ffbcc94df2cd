"""Batches: open, hold and close them; count their members, and what is done to these.

How far a batch is, is counted from the rows of its runs, so that it is right whoever wrote them.
Nothing is written to a batch while its runs end: many workers would wait for its row. Until its
commit, a transaction has this lock on the row, so that no run joins a batch that has ended:

=====================================  =========================================================
what it does                           lock
=====================================  =========================================================
adds runs (`hold_open`)                shared; alone if it closes the batch, too
closes it (`close_in`)                 alone, after those that fill it
closes it as an operator (`close`)     alone, unless another has a lock: then it refuses
ends it (`end_batch`)                  alone, unless another has a lock: then a later look ends it
retries, discards (`hold_batches`)     alone, with those around it; unless another has a lock
prunes its runs (`note_pruned`)        alone, unless another has a lock: then the runs stay
=====================================  =========================================================
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, TextClause, text

from ...db.connection import Bookkeeping
from ...db.dialect import Dialect
from ...models.conditions import IN_BATCH, OPEN_BATCH, RUNNING
from ...types import TERMINAL, BatchCounts, json_object
from ..runs.columns import RUN_COLUMNS

#: How many batches one statement looks at, and how many runs one cancels.
ROWS_AT_ONCE = 1000
#: The columns of a run of ``then`` that `OpenBatch.then_columns` gives.
THEN_COLUMNS = tuple(name for name in RUN_COLUMNS if name != "job_type")


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


#: What executes a statement with parameters, and returns its rows.
Execute: TypeAlias = Callable[[TextClause, dict[str, Any]], Iterable[Any]]
_NUMBERS = ("total", *TERMINAL)
#: How many batches inside of others are looked at, to say how far those are.
MOST_INSIDE = 1000


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


LIVE = f"""
    ({_has("queued")} OR {_has("failed")} OR {_IS_RUNNING} OR {_inside("c.finished_at IS NULL")})
"""
_DIED = "(c.finished_at IS NOT NULL) IS TRUE AND c.dead > 0"
HAS_DEAD = f"(b.on_dead = 'stop' AND ({_has('dead')} OR {_inside(_DIED)}))"


def members_of(execute: Execute, d: Dialect, ids: Iterable[int]) -> dict[int, Counter[str]]:
    """Return how many members of batches have which status, but for runs that are pruned.

    A batch inside that has not ended counts as ``open``.
    """
    found = {batch_id: Counter[str]() for batch_id in ids}
    if found:
        for row in execute(text(_count_members(d)), {"ids": d.many(found)}):
            found[row.batch_id][row.status] += row.members
    return found


def _count_members(d: Dialect) -> str:
    """Return a SELECT with a part for each of three indexes."""
    runs = f"FROM job_runs WHERE {d.among('batch_id')}"
    return f"""
        SELECT batch_id, status, count(*) AS members {runs} AND {IN_BATCH}
        GROUP BY batch_id, status
        UNION ALL
        SELECT batch_id, 'running' AS status, count(*) AS members {runs} AND {RUNNING}
        GROUP BY batch_id
        UNION ALL
        SELECT batch_id, status, count(*) AS members FROM (
            SELECT parent_id AS batch_id,
                CASE WHEN finished_at IS NULL THEN 'open' WHEN dead > 0 THEN 'dead'
                    WHEN total > 0 AND cancelled = total THEN 'cancelled'
                    ELSE 'succeeded' END AS status
            FROM job_batches WHERE {d.among("parent_id")}
        ) AS inside GROUP BY batch_id, status
    """


def all_members(execute: Execute, d: Dialect, batches: Iterable[Any]) -> dict[int, Counter[str]]:
    """Return `members_of` *batches*, rows, with those that are pruned.

    Of a batch that has finished, how they ended stands in its row.
    """
    rows = list(batches)
    live = members_of(execute, d, [row.id for row in rows if row.finished_at is None])
    return {
        row.id: live[row.id] + Counter(pruned_of(d, row) or {})
        if row.id in live
        else Counter({name: getattr(row, name) or 0 for name in TERMINAL})
        for row in rows
    }


class Inside(NamedTuple):
    """The batches inside of one.

    :ivar members: those that they have, at any depth, by status.
    :ivar dead: the keys of those directly inside in which a member died.
    """

    members: Counter[str]
    dead: list[str]


def inside_of(execute: Execute, d: Dialect, ids: Iterable[int]) -> dict[int, Inside]:
    """Return what is inside of each batch of *ids*, of the first `MOST_INSIDE` of all."""
    wanted = list(ids)
    rows: dict[int, Any] = {}
    level = wanted
    # Level by level, each by its index: PostgreSQL may join by reading all batches instead.
    while level and len(rows) < MOST_INSIDE:
        parameters = {"ids": d.many(level), "most": MOST_INSIDE - len(rows)}
        new = {row.id: row for row in execute(_next_inside(d), parameters) if row.id not in rows}
        rows |= new
        level = list(new)
    members = all_members(execute, d, rows.values())
    below = {each: Inside(Counter(), []) for each in (*wanted, *rows)}
    # Who opens a batch inside another one opens it later.
    for row in sorted(rows.values(), key=lambda row: row.id, reverse=True):
        around = below[row.parent_id]
        around.members.update(members[row.id] + below[row.id].members)
        if row.finished_at is not None and row.dead:
            around.dead.append(row.key)
    return {each: below[each] for each in wanted}


def _next_inside(d: Dialect) -> TextClause:
    return text(f"""
        SELECT id, key, parent_id, finished_at, pruned, {", ".join(TERMINAL)} FROM job_batches
        WHERE {d.among("parent_id")} ORDER BY parent_id, finished_at LIMIT :most
    """)


def counts_of(batch: Any, members: Counter[str]) -> BatchCounts:
    """Return how far a batch is.

    :param batch: its row.
    :param members: as `all_members` has them.
    """
    finished = batch.finished_at is not None
    return BatchCounts(key=batch.key, finished=finished, **numbers_of(members))


def numbers_of(members: Counter[str]) -> dict[str, int]:
    """Return the numbers that a batch's row has: all members, and those that ended in each way."""
    return {"total": members.total(), **{name: members[name] for name in TERMINAL}}


def set_numbers() -> str:
    """Return what follows SET to write down the numbers of `numbers_of`."""
    return ", ".join(f"{name} = :{name}" for name in _NUMBERS)


def pruned_of(d: Dialect, batch: Any) -> dict[str, int] | None:
    """Return how many of a batch's runs were pruned, by status; None if that cannot be read."""
    return {} if batch.pruned is None else object_of(d, batch.pruned, int)


def object_of(d: Dialect, value: object, kinds: Any) -> dict[str, Any] | None:
    """Return the object in a JSON column, its values of *kinds*; None if there is another value."""
    try:
        found = json_object(d.parsed(value))
    except ValueError:  # SQLite accepts any text.
        return None
    return found if all(isinstance(each, kinds) for each in found.values()) else None


def hold_batches(
    connection: Connection, d: Dialect, run_ids: Sequence[int]
) -> dict[int, list[int]]:
    """Lock the batches of *run_ids*, and those around them, for `reopen` or `recount`.

    :returns: for each batch of the runs, itself and those around it; nothing, if another
        transaction holds one of these: then its runs are to be left alone.
    """
    own = f"SELECT batch_id FROM job_runs WHERE {d.among('id')}"
    # By subqueries: PostgreSQL may join by reading all batches.
    outer = "SELECT parent_id FROM job_batches WHERE id = around.id"
    sql = f"""
        WITH RECURSIVE around(own_id, id) AS (
            SELECT id, id FROM job_batches WHERE {d.any_of("id", own)}
            UNION
            SELECT own_id, (SELECT id FROM job_batches b WHERE b.id = ({outer}))
            FROM around WHERE id IS NOT NULL
        )
        SELECT own_id, id FROM around WHERE id IS NOT NULL
    """
    found: dict[int, list[int]] = {}
    for row in connection.execute(text(sql), {"ids": d.many(run_ids)}):
        found.setdefault(row.own_id, []).append(row.id)
    wanted = {each for around in found.values() for each in around}
    free = {row.id for row in _lock(connection, d, wanted)}
    return {own: around if free.issuperset(around) else [] for own, around in found.items()}


def _lock(connection: Connection, d: Dialect, ids: Collection[int]) -> Sequence[Any]:
    """Lock the batches *ids*, but for those that others hold; return the rows of these."""
    sql = f"SELECT id, pruned FROM job_batches WHERE {d.among('id')} {d.skip_locked}"
    return connection.execute(text(sql), {"ids": d.many(ids)}).all() if ids else ()


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
        UPDATE job_batches SET {", ".join(f"{name} = NULL" for name in ("finished_at", *_NUMBERS))},
            on_dead = CASE WHEN {d.among("id", "halted")} THEN 'continue' ELSE on_dead END,
            then_run_id = CASE WHEN id = :again THEN NULL ELSE then_run_id END
        WHERE {d.among("id")}
    """
    connection.execute(text(statement), parameters)


def recount(connection: Connection, d: Dialect, ids: Iterable[int]) -> None:
    """Count the members of those of *ids* that have ended: an operator has changed some.

    From the inside out: how a batch ended that is inside another one is seen from its counts.
    """
    sql = f"SELECT id, pruned FROM job_batches WHERE {d.among('id')} AND NOT ({OPEN_BATCH})"
    ended = connection.execute(text(sql), {"ids": d.many(ids)}).all()
    # Who opens a batch inside another one opens it later.
    for row in sorted(ended, key=lambda row: row.id, reverse=True):
        pruned = pruned_of(d, row)
        if pruned is None:
            continue  # It is broken, and stops no other.
        members = members_of(connection.execute, d, [row.id])[row.id]
        sql = f"UPDATE job_batches SET {set_numbers()} WHERE id = :id"
        connection.execute(text(sql), {"id": row.id, **numbers_of(members + Counter(pruned))})


def note_pruned(
    connection: Connection, d: Dialect, rows: Sequence[Any]
) -> tuple[list[int], set[int]]:
    """Add runs that are about to be deleted to what their batches have lost; return their ids.

    Those whose batch another transaction holds stay for the next time; these batches are returned,
    too. If what a batch has lost cannot be read, nothing is added.

    :param rows: their ids, statuses and batches.
    """
    ids = {row.batch_id for row in rows} - {None}
    locked = _lock(connection, d, ids)
    held: set[int] = ids - {row.id for row in locked}
    if held:
        there = f"SELECT id FROM job_batches WHERE {d.among('id')}"
        found = connection.execute(text(there), {"ids": d.many(held)})
        held = {row.id for row in found}
    before = {row.id: pruned_of(d, row) for row in locked}
    lost = {batch: Counter(pruned) for batch, pruned in before.items() if pruned is not None}
    for row in rows:
        if row.batch_id in lost:
            lost[row.batch_id][row.status] += 1
    if lost:
        value = d.member("pruned", "id")
        note = f"UPDATE job_batches SET pruned = {value} WHERE {d.among('id')}"
        connection.execute(text(note), {"ids": d.many(lost), "pruned": json.dumps(lost)})
    return [row.id for row in rows if row.batch_id not in held], held
