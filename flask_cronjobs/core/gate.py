"""The gate: it hides runs that cannot begin, so that claims do not read them again and again.

A run with a concurrency key is inserted as ready, and costs nothing extra while its key has a free
share. If a claim meets a run whose key is full, or which is not the first in its strict order, it
parks the run: it sets the run's ``gate``, which removes the run from the indexes that claims read.
Opening the run clears its ``gate``.

The worker that frees a share or a turn opens the next runs, and the claim that parked a run tries
to open it again, each in a separate statement **after its commit**. Usually, the worker sends this
statement (`open_statement`) just before its next claim, in the same transaction. The worker and the
claim both commit their write before they look for runs to open, so the one that commits last sees
what the other wrote. One statement could not do this: a claim may read a run as running while that
run ends, and park another run behind it, and then nothing would open the parked run. SQLite has one
writer, so there one transaction records, opens and claims.

A claim parks a run of a full key only behind runs that are running, or that it takes itself, and a
run in strict order behind any earlier run that has not ended. When one of those runs ends, the runs
that may begin next are opened.

A run with a rate first waits at the gate ``rate``, which this module never opens.

If a process dies after a commit and before it opens the next runs, or if rows are changed by hand,
`open_left_parked` opens the runs that were left parked.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from sqlalchemy import TextClause, text

from ..db import failpoints
from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import ORDERED, PARKED, RUNNING

#: How many keys of each gate one call of `open_left_parked` reads.
KEYS_READ = 500

_GATES = "(SELECT 'keys' AS gate UNION ALL SELECT 'order' AS gate)"
_ORDER = "gate, concurrency_key, job_type, queue, priority DESC, run_at, id"


def first_of(key: str) -> str:
    """Return SQL for the first run in the strict order of *key* that has not ended.

    The key is compared by two inequalities. With "=", the planner would ignore the key in the ORDER
    BY, and PostgreSQL might then read the runs of all keys by their ids.
    """
    return f"""
    (SELECT first.id FROM job_runs AS first WHERE {ORDERED}
        AND first.concurrency_key >= {key} AND first.concurrency_key <= {key}
     ORDER BY first.concurrency_key, first.id LIMIT 1)
    """


def comes_first(run: str, key: str = "") -> str:
    """Return the condition that the row *run* is not ordered, or comes first in its strict order.

    :param key: SQL for its concurrency key; by default, the row's own column.
    """
    first = first_of(key or f"{run}.concurrency_key")
    # Without CASE, SQLite would search for the first run of a key even if the row is not strict.
    return f"(CASE WHEN {run}.strict THEN {run}.id = {first} ELSE 1 = 1 END)"


#: The query for the runs claimed under ``token`` that come first in their order.
HELD_FIRST = text(f"""
    SELECT id FROM job_runs
    WHERE {RUNNING} AND locked_by = :token AND {comes_first("job_runs")}
""")


def held_first(books: Bookkeeping, token: str) -> set[int]:
    """Return the runs claimed under *token* that may begin, since they come first in their order.

    Since the claim, an operator may have retried an earlier run, or the transaction that enqueued
    one may have committed.
    """
    return {row.id for row in books.rows(HELD_FIRST, {"token": token})}


def open_behind(books: Bookkeeping, ids: Collection[int]) -> int:
    """Open the next runs in the keys of the runs *ids*; return how many were opened.

    Call it after the transaction that ended, released or parked these runs has committed.
    """
    if not ids:
        return 0
    failpoints.reach("before-open")
    d = books.dialect
    return len(books.rows(open_statement(d), {"ids": d.many(ids)}))


def open_all_left_parked(books: Bookkeeping) -> int:
    """Open parked runs that were never opened; return their number."""
    opened, after = open_left_parked(books)
    while after:
        more, after = open_left_parked(books, after)
        opened += more
    return opened


def open_left_parked(books: Bookkeeping, after: str = "") -> tuple[int, str]:
    """Open parked runs that were never opened, of each gate's next `KEYS_READ` keys after *after*.

    :returns: the number of opened runs, and the key after which to continue, if any.
    """
    d = books.dialect
    rows = books.rows(parked_keys(d), {"after": after})
    if not rows:
        return 0, ""
    keys = d.many({row.key for row in rows})
    return len(books.rows(_open_keys(d), {"keys": keys})), rows[0].last or ""


@lru_cache(maxsize=2)
def parked_keys(d: Dialect) -> TextClause:
    """Return the query for the keys of parked runs after ``after``, with one search for each.

    In each row, ``last`` is the key after which to continue, if any. The database chooses it, since
    its collation may order keys differently than Python.
    """
    later = f"{PARKED} AND gate = {{0}}.gate AND concurrency_key > {{1}}"
    by_key = "ORDER BY gate, concurrency_key LIMIT 1"
    step = f"(SELECT concurrency_key FROM job_runs WHERE {later} {by_key})"
    return text(f"""
    WITH RECURSIVE hop(gate, key, number) AS (
        SELECT gate, {step.format("gates", d.typed(":after", "text"))}, 1 FROM {_GATES} AS gates
        UNION ALL
        SELECT gate, {step.format("hop", "hop.key")}, number + 1 FROM hop
        WHERE key IS NOT NULL AND number < {KEYS_READ}
    )
    SELECT key, min(key) FILTER (WHERE number = {KEYS_READ}) OVER () AS last
    FROM hop WHERE key IS NOT NULL
    """)


@lru_cache(maxsize=2)
def open_statement(d: Dialect) -> TextClause:
    """Return the UPDATE that opens the next runs in the keys of the runs ``ids``."""
    of_runs = f"SELECT DISTINCT concurrency_key AS key FROM job_runs WHERE {d.among('id')}"
    return _open(d, f"{of_runs} AND concurrency_key IS NOT NULL")


@lru_cache(maxsize=2)
def _open_keys(d: Dialect) -> TextClause:
    return _open(d, f"SELECT key FROM {d.each('keys', 'key')}")


def _open(d: Dialect, keys: str) -> TextClause:
    """Return the UPDATE that opens the next runs of *keys*, a SELECT.

    1. ``grp`` lists the groups of parked runs with the same key, task and queue, and how many
       shares of the key are free. That many runs of each group are opened, since the task or queue
       of another group may be paused or have no worker. A claim parks surplus runs again.
    2. ``next`` selects the first unlocked runs of each group, and the first run of each strict
       order. It locks only rows that it opens: another opening would skip a row that is locked,
       and then nobody would open it.
    """
    of_key = f"{PARKED} AND gate = 'keys' AND concurrency_key = grp.key"
    # If both sides of this comparison are plain columns, SQLite searches the index by `job_type`
    # alone.
    operator, group = ">", "grp.job_type, grp.queue"
    if d.one_writer:
        operator, group = ">=", "grp.job_type || '', grp.queue || char(1)"
    later = f"FROM job_runs WHERE {of_key} AND (job_type, queue) {operator} ({group})"
    is_next = f"{later} ORDER BY {_ORDER} LIMIT 1"
    # The key's other runs may have a higher limit, and hold shares that these runs cannot get.
    taken = "taken.concurrency_key = grp.key AND taken.concurrency_share <= r.concurrency_limit"
    free = f"r.concurrency_limit - (SELECT count(*) FROM job_runs AS taken WHERE {taken})"
    first = d.any_of("id", f"SELECT {first_of('given.key')} FROM given")
    return text(f"""
    WITH RECURSIVE given AS MATERIALIZED ({keys}),
    grp(key, job_type, queue, free) AS (
        SELECT key, CAST('' AS varchar), CAST('' AS varchar), CAST(0 AS bigint) FROM given
        UNION ALL
        SELECT grp.key, r.job_type, r.queue, {free}
        FROM grp {d.join_each("job_type, queue, concurrency_limit", is_next)}
    ),
    next AS MATERIALIZED (
        SELECT id FROM ({_first_of_groups(d, of_key)}) AS of_groups
        UNION ALL
        SELECT id FROM (
            SELECT id FROM job_runs WHERE {first} AND (gate = 'order') IS TRUE {d.skip_locked}
        ) AS in_order
    )
    UPDATE job_runs SET gate = NULL WHERE {d.any_of("id", "SELECT id FROM next")} RETURNING id
    """)


def _first_of_groups(d: Dialect, of_key: str) -> str:
    """Return the SELECT of the first runs of each row of ``grp``, as many as its ``free`` says."""
    rest = f"""
        FROM job_runs WHERE {of_key} AND job_type = grp.job_type AND queue = grp.queue
        ORDER BY {_ORDER} LIMIT
    """
    if not d.one_writer:  # PostgreSQL accepts a limit that differs for each row.
        joined = d.join_each("queue", f"{rest} GREATEST(grp.free, 0) {d.skip_locked}")
        return f"SELECT r.id FROM grp {joined}"
    return f"""
        SELECT id FROM (
            SELECT r.id, grp.free, row_number() OVER (
                PARTITION BY grp.key, r.job_type, r.queue ORDER BY r.priority DESC, r.run_at, r.id
            ) AS place FROM grp {d.join_each("queue", f"{rest} (SELECT max(free) FROM grp)")}
        ) AS numbered WHERE place <= free
    """
