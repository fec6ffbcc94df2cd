"""The statements of `store.batches`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache

from ..models.conditions import HANDED, OPEN_BATCH, RUNNABLE
from ..types import RUN_COLUMNS, TERMINAL
from .columns import assigned, ended, insert_into_runs, parameter
from .dialect import Dialect

#: The columns of a run of ``then`` that `OpenBatch.then_columns` gives.
THEN_COLUMNS = tuple(name for name in RUN_COLUMNS if name != "job_type")
#: The conditions of the runs that wait, in the words of an index each.
WAITING = (
    "status = 'queued' AND status <> 'running'",
    "status = 'failed' AND status <> 'running'",
    HANDED,
)
#: The ``error_type`` of a run that waited in a batch that was stopped.
STOPPED = "Stopped"


def many(d: Dialect, ids: Iterable[object]) -> object:
    """Return *ids* as the parameter ``ids``."""
    if d.name == "postgresql":
        return list(ids)
    return json.dumps([each for each in ids if isinstance(each, int)])  # A row may hold anything.


def among(d: Dialect, column: str, parameter: str = "ids") -> str:
    """Return SQL for: *column* is in the parameter ``ids``, or another one."""
    if d.name == "postgresql":
        return f"{column} = ANY(CAST(:{parameter} AS bigint[]))"
    return f"{column} IN (SELECT value FROM json_each(:{parameter}))"


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
ENDED_FOR = f"""
    SELECT id, key, pruned, {", ".join(("total", *TERMINAL))} FROM job_batches
    WHERE then_run_id = :run_id
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
_HAS_DEAD = f"(b.on_dead = 'stop' AND ({_has('dead')} OR {_inside(_DIED)}))"


@lru_cache
def unended(d: Dialect, some: bool) -> str:
    """Return the query for batches that have not ended: whether each can be, or is stopped.

    :param some: only those in the parameter ``ids``.
    """
    which = f"AND {among(d, 'b.id')}" if some else ""
    return f"""
        SELECT * FROM (
            SELECT b.id, b.key,
                CASE WHEN b.closed_at IS NULL THEN 0 WHEN {_LIVE} THEN 0 ELSE 1 END AS ready,
                CASE WHEN {_HAS_DEAD} THEN 1 ELSE 0 END AS stopped
            FROM job_batches b WHERE {OPEN_BATCH} AND b.id > :after {which}
            ORDER BY b.id LIMIT :chunk
        ) AS looked_at
    """


def is_live() -> str:
    """Return the query that finds a batch if a member of it has not ended."""
    return f"SELECT 1 FROM job_batches b WHERE b.id = :id AND {_LIVE}"


def close(d: Dialect) -> str:
    """Return the UPDATE that closes a batch, and tells whether what follows sees all members."""
    # SQLite refuses to write in a transaction that has read what is out of date.
    level = "current_setting('transaction_isolation') = 'read committed'"
    return f"""
        UPDATE job_batches SET closed_at = COALESCE(closed_at, {d.now}) WHERE key = :key
        RETURNING id, {level if d.name == "postgresql" else "1"} AS sees_all
    """


def lock(d: Dialect) -> str:
    """Return the query that locks a closed batch that has not ended, to end it."""
    return f"""
        SELECT key, parent_id, pruned, then_task, then_columns, then_run_id FROM job_batches
        WHERE id = :id AND closed_at IS NOT NULL AND {OPEN_BATCH} {d.skip_locked}
    """


def lock_all(d: Dialect) -> str:
    """Return the query that locks the batches in ``ids``, but for those that others hold."""
    return f"SELECT id, pruned FROM job_batches WHERE {among(d, 'id')} {d.skip_locked}"


def insert(d: Dialect) -> str:
    """Return the INSERT of a batch, which does nothing if its key is taken."""
    json_type = "CAST(:{} AS jsonb)" if d.name == "postgresql" else ":{}"
    return f"""
        INSERT INTO job_batches
            (key, on_dead, parent_id, then_task, then_payload, then_columns, opened_at)
        VALUES (:key, :on_dead, :parent_id, :then_task, {json_type.format("then_payload")},
            {json_type.format("then_columns")}, {d.now})
        ON CONFLICT (key) DO NOTHING RETURNING id
    """


def enqueue_then(d: Dialect) -> str:
    """Return the INSERT of a batch's run of ``then``."""
    given = {name: parameter(d, name) for name in THEN_COLUMNS}
    own = {"job_type": "then_task", "payload": "then_payload", "batch_id": "parent_id"}
    source = "FROM job_batches WHERE id = :id RETURNING id"
    return insert_into_runs({**own, **given}, d.now, d.now, source)


def write_end(d: Dialect) -> str:
    """Return the UPDATE that ends a batch, with its counts."""
    return f"""
        UPDATE job_batches SET finished_at = {d.now}, then_run_id = :then_run_id, {NUMBERS}
        WHERE id = :id
    """


FAMILY = """
    WITH RECURSIVE family(id) AS (
        SELECT id FROM job_batches WHERE id = :id
        UNION
        SELECT c.id FROM job_batches c JOIN family ON c.parent_id = family.id
        WHERE (c.finished_at IS NULL) IS TRUE
    )
    SELECT id FROM family
"""


def waiting(d: Dialect, which: str, begin: bool) -> str:
    """Return the query for a step of the runs that wait in a stopped batch, by when they are due.

    Those in a broker are few, and have an index by lease alone.

    :param which: one of `WAITING`.
    :param begin: the first step; later ones go on behind ``run_at`` and ``run_id``.
    """
    kind = "timestamptz" if d.name == "postgresql" else "text"
    beyond = "" if begin else f"AND (run_at, id) > (CAST(:run_at AS {kind}), :run_id)"
    order = "locked_until" if which == HANDED else "run_at, id"
    return f"""
        SELECT id, run_at FROM job_runs
        WHERE batch_id = :id AND {which} {beyond}
            AND EXISTS (SELECT 1 FROM job_batches WHERE id = :stopped_id AND on_dead = 'stop')
        ORDER BY {order} LIMIT :chunk
    """


def cancel(d: Dialect) -> str:
    """Return the UPDATE that cancels those of the runs in ``ids`` that wait."""
    waiting = f"""
        SELECT id FROM job_runs WHERE {among(d, "id")} AND ({RUNNABLE} OR {HANDED})
        {d.skip_locked}
    """
    return f"""
        UPDATE job_runs SET {assigned(ended("'cancelled'", d.now, ":reason", f"'{STOPPED}'"))}
        WHERE {d.any_of("id", waiting)}
        RETURNING id, job_type, attempts, last_error, error_type
    """


def halted(d: Dialect) -> str:
    """Return the query for those in ``ids`` that stop, and have ended or have a dead member."""
    return f"""
        SELECT b.id FROM job_batches b
        WHERE {among(d, "b.id")} AND ({_HAS_DEAD} OR (b.on_dead = 'stop' AND NOT ({OPEN_BATCH})))
    """


def reopen(d: Dialect) -> str:
    """Return the UPDATE that opens the batches in ``ids`` again; those in ``halted`` go on."""
    return f"""
        UPDATE job_batches SET finished_at = NULL, total = NULL, succeeded = NULL, dead = NULL,
            cancelled = NULL, skipped = NULL,
            on_dead = CASE WHEN {among(d, "id", "halted")} THEN 'continue' ELSE on_dead END,
            then_run_id = CASE WHEN id = :again THEN NULL ELSE then_run_id END
        WHERE {among(d, "id")}
    """


def note_pruned(d: Dialect) -> str:
    """Return the UPDATE that notes how many runs of those in ``ids`` were pruned, by status.

    The parameter ``pruned`` has that by their ids.
    """
    if d.name == "postgresql":
        value, source = "CAST(:pruned AS jsonb) -> CAST(id AS text)", ""
    else:
        value, source = "lost.value", "FROM json_each(:pruned) AS lost"
    matched = f"{source} WHERE job_batches.id = lost.key" if source else f"WHERE {among(d, 'id')}"
    return f"UPDATE job_batches SET pruned = {value} {matched}"
