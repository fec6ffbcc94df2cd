"""Strict orders: whose turn it is in each concurrency key, and what the others wait for."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import TextClause, text

from ..core.app_state import State
from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import HAS_TURN, ORDERED, RUNNING, UNPLACED

#: How many runs one statement looks at.
RUNS_READ = 500


#: The query that finds a run with a mark.
LOOK = text(f"SELECT id FROM job_runs WHERE {UNPLACED} ORDER BY id LIMIT 1")
_FIRST = f"""
    SELECT first.id FROM job_runs AS first WHERE {ORDERED}
        AND first.concurrency_key >= job_runs.concurrency_key
        AND first.concurrency_key <= job_runs.concurrency_key
    ORDER BY first.concurrency_key, first.id LIMIT 1
"""
#: The condition that a row of ``job_runs`` has no order, or comes first in its key's. Its turn does
#: not say so: somebody may have retried an earlier run since that was given.
COMES_FIRST = f"(NOT strict OR id = ({_FIRST}))"
#: The query for the runs under ``token`` that come first.
HELD_FIRST = text(
    f"SELECT id FROM job_runs WHERE {RUNNING} AND locked_by = :token AND {COMES_FIRST}"
)


@lru_cache(maxsize=2)
def _place(d: Dialect) -> TextClause:
    """Return the UPDATE that gives each key's turn to its first run, and lets the others wait.

    1. ``marked`` are runs that are ``new`` or ``over``, ``queue`` is the state of their keys.
    2. ``next`` is the first run of each key whose turn nobody has. It may be locked by somebody
       else: then its key keeps its marks, and is looked at again.
    3. A new run that is not the first of its key waits. One that is over has no mark any more, if
       what comes after it is settled, or another one's mark stays: one for each key is enough, and
       more would leave other keys no place in ``marked``.

    A new run that comes first, though another has the turn, stays so, and is returned as ``new``.
    """
    mark = "min(CASE WHEN order_mark = 'over' THEN id END)"
    # Else SQLite takes them to be many, and reads the whole table for a Bloom filter.
    few = f"LIMIT {2 * RUNS_READ}"
    is_settled = "queue.first IS NULL OR queue.first = queue.holder OR next.id IS NOT NULL"
    return text(f"""
    WITH marked AS MATERIALIZED (
        SELECT id, concurrency_key AS key, order_mark FROM job_runs WHERE {UNPLACED}
        ORDER BY id LIMIT {RUNS_READ} {d.skip_locked}
    ),
    queue AS MATERIALIZED ({_queue(f"SELECT key, {mark} AS mark FROM marked GROUP BY key")}),
    next AS MATERIALIZED (
        SELECT id, concurrency_key AS key FROM job_runs
        WHERE {d.any_of("id", "SELECT first FROM queue WHERE holder IS NULL")}
            AND (finished_at IS NULL AND order_mark IS NOT NULL) IS TRUE
        {d.skip_locked}
    ),
    given AS MATERIALIZED (
        SELECT marked.id AS id,
            CASE WHEN marked.order_mark = 'over' OR marked.id = next.id THEN NULL
                 WHEN marked.id = queue.first THEN 'new' ELSE 'waits' END AS order_mark
        FROM marked JOIN queue ON queue.key = marked.key LEFT JOIN next ON next.key = marked.key
        WHERE marked.order_mark = 'new' OR marked.id > queue.mark OR {is_settled}
        UNION ALL
        SELECT id, CAST(NULL AS text) FROM next WHERE id NOT IN (SELECT id FROM marked)
        {few}
    )
    UPDATE job_runs SET order_mark = given.order_mark FROM given
    WHERE {d.any_of("job_runs.id", "SELECT id FROM given")} AND job_runs.id = given.id
    RETURNING job_runs.id AS id, job_runs.order_mark AS order_mark
    """)


@lru_cache(maxsize=2)
def _make_way(d: Dialect) -> TextClause:
    """Return the UPDATE by which a run that has the turn of its key gives way to an earlier one.

    An operator has retried that one; or its id is lower, but its transaction committed later.
    """
    new = f"""
        SELECT concurrency_key AS key FROM job_runs WHERE {UNPLACED}
        ORDER BY id LIMIT {RUNS_READ} {d.skip_locked}
    """
    late = "SELECT holder FROM queue WHERE first < holder"
    free = f"SELECT id FROM job_runs WHERE {d.any_of('id', late)} {d.skip_locked}"
    return text(f"""
    WITH queue AS MATERIALIZED ({_queue(f"SELECT DISTINCT key FROM ({new}) AS found")})
    UPDATE job_runs SET order_mark = 'waits'
    WHERE {d.any_of("id", free)} AND (finished_at IS NULL AND order_mark IS NULL) IS TRUE
    RETURNING id
    """)


def _mend(d: Dialect) -> TextClause:
    """Return the UPDATE that marks the first run of each key whose turn nobody has.

    Somebody has deleted or changed runs by hand. It goes from key to key, at one step each.
    """
    lost = "SELECT first FROM queue WHERE holder IS NULL"
    free = f"SELECT id FROM job_runs WHERE {d.any_of('id', lost)} {d.skip_locked}"
    return text(f"""
    WITH RECURSIVE {_HOPS},
    queue AS MATERIALIZED ({_queue("SELECT key FROM hop WHERE key IS NOT NULL")})
    UPDATE job_runs SET order_mark = 'new'
    WHERE {d.any_of("id", free)} AND (finished_at IS NULL AND order_mark = 'waits') IS TRUE
    RETURNING id
    """)


#: The CTE ``hop`` that goes from key to key of the runs that have a place; the last has none.
_LATER = f"SELECT concurrency_key FROM job_runs WHERE {ORDERED} AND concurrency_key > {{}}"
_HOPS = f"""
    hop(key) AS (
        SELECT ({_LATER.format("''")} ORDER BY concurrency_key LIMIT 1)
        UNION ALL SELECT ({_LATER.format("hop.key")} ORDER BY concurrency_key LIMIT 1) FROM hop
        WHERE hop.key IS NOT NULL
    )
"""


def _queue(keys: str) -> str:
    """Return the SELECT of *keys*, each with its first run and the one that has its turn.

    The ranges stand for equality: see `claim_statement`.
    """
    this = "concurrency_key >= keys.key AND concurrency_key <= keys.key"
    return f"""
    SELECT keys.*,
        (SELECT id FROM job_runs
         WHERE {ORDERED} AND {this} ORDER BY concurrency_key, id LIMIT 1) AS first,
        (SELECT id FROM job_runs
         WHERE {HAS_TURN} AND {this} ORDER BY concurrency_key LIMIT 1) AS holder
    FROM ({keys}) AS keys
    """


#: How often one call goes on at most, so that a worker also does other work.
_READS_A_CALL = 20


def give(books: Bookkeeping) -> bool:
    """Take up the marks of runs that came or ended; return whether anything was changed.

    1. Give the turn of each key to its first run. 2. If it is new and another has the turn, let
    that one wait, and begin again. A row that another transaction has locked keeps its mark.
    """
    changed, d = False, books.dialect
    for _ in range(_READS_A_CALL):
        # To look does not need SQLite's write lock.
        if d.one_writer and not books.rows(LOOK):
            break
        placed = books.rows(_place(d))
        passed_by = any(row.order_mark == "new" for row in placed)
        if passed_by and not books.rows(_make_way(d)):
            break
        changed = changed or bool(placed)
        if not passed_by and len(placed) < RUNS_READ:
            break
    return changed


def held_first(books: Bookkeeping, token: str) -> set[int]:
    """Return which runs claimed under *token* may begin: no earlier one must end before.

    An operator may have retried one since the claim, or its transaction have committed.
    """
    return {row.id for row in books.rows(HELD_FIRST, {"token": token})}


def mend(state: State, books: Bookkeeping) -> None:
    """Mark runs that nobody would give the turn, as `mend_turns` does."""
    mend_turns(books)


def mend_turns(books: Bookkeeping) -> bool:
    """Mark runs that nobody would give the turn, since somebody has deleted rows by hand."""
    return bool(books.rows(_mend(books.dialect)))
