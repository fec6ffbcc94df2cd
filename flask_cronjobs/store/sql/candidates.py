"""CTEs for the runs that a claim may choose from: those without a concurrency key, and with one.

Their cost must not grow with the number of waiting runs, whether one busy key has ten thousand of
them or there are ten thousand keys.
"""

from __future__ import annotations

from ...models.tables import FREE, KEYED, RUNNABLE
from ..dialect import Dialect

#: How many runs beyond its limit a claim reads in order, before it goes from key to key.
FRONT = 100

_ORDER = "priority DESC, run_at, id"
#: Whether a run may be claimed together with others.
_IN_COMPANY = "(attempts = 0 AND max_attempts > 1) AS in_company"


def free(d: Dialect) -> str:
    """Return the CTE ``free``: the next runs without a concurrency key.

    The CTE must be materialized: a planner may run a subquery with LIMIT more than once, and then
    update more rows than the limit.
    """
    return f"""
    free AS MATERIALIZED (
        SELECT id, {_IN_COMPANY}, priority, run_at, CAST(NULL AS integer) AS share FROM job_runs
        WHERE {FREE} AND {_claimable(d)}
        ORDER BY {_ORDER} LIMIT :limit {d.skip_locked}
    )
    """


def keyed(d: Dialect) -> str:
    """Return CTEs that end in ``keyed``: the next run of each concurrency key with a free share.

    1. ``front`` is the front of the queue, and ``ahead`` the first run of each key there.
    2. If the front is full of keys without a free share, ``hop`` goes from key to key until it has
       found enough keys that have one: each key costs one step, however many runs it has. It begins
       after the key where the worker's last claim ended, so that each key gets its turn.
    3. ``shared`` gives each of these runs the lowest free share of its key.

    The last CTE checks the status once more. ``IS TRUE`` hides that condition from the planner,
    which otherwise would not look up the few rows by their ids.
    """
    enough = "SELECT count(*) FROM ahead WHERE share IS NOT NULL"
    return f"""
    front AS MATERIALIZED (
        SELECT id, concurrency_key AS key, priority, run_at FROM job_runs
        WHERE {KEYED} AND {_claimable(d)}
        ORDER BY {_ORDER} LIMIT CASE WHEN :limit > 0 THEN :limit + {FRONT} ELSE 0 END
    ),
    ahead AS MATERIALIZED (
        SELECT id, {_share("first.key", "first.id")} AS share
        FROM (SELECT id, key, row_number() OVER (PARTITION BY key ORDER BY {_ORDER}) AS place
              FROM front) AS first
        WHERE place = 1
    ),
    hop(key, passed) AS (
        SELECT min(concurrency_key), 0 FROM job_runs
        WHERE {KEYED} AND concurrency_key > :after
            AND (SELECT count(*) FROM front) = :limit + {FRONT} AND ({enough}) < :limit
        UNION ALL
        SELECT (SELECT min(concurrency_key) FROM job_runs
                WHERE {KEYED} AND concurrency_key > hop.key),
            hop.passed + CASE WHEN {_share("hop.key", _head(d, "hop.key"))} IS NULL
                              THEN 0 ELSE 1 END
        FROM hop WHERE hop.key IS NOT NULL AND hop.passed < :limit
    ),
    behind AS MATERIALIZED (
        SELECT key, {_head(d, "hop.key")} AS id FROM hop WHERE key IS NOT NULL
    ),
    shared AS MATERIALIZED (
        SELECT id, share FROM ahead WHERE share IS NOT NULL
        UNION
        SELECT id, {_share("behind.key", "behind.id")} FROM behind WHERE id IS NOT NULL
    ),
    keyed AS MATERIALIZED (
        SELECT r.id, {_IN_COMPANY}, r.priority, r.run_at, shared.share
        FROM shared JOIN job_runs r ON r.id = shared.id
        WHERE shared.share IS NOT NULL AND (r.{RUNNABLE}) IS TRUE
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT :limit
        {d.skip_locked_of("r")}
    )
    """


def _claimable(d: Dialect) -> str:
    """Return the conditions of every claim beside those of its partial index."""
    return (
        f"run_at <= {d.now} AND attempts < max_attempts AND {d.one_of('job_type', 'tasks')}"
        f" AND (:any_queue OR {d.one_of('queue', 'queues')})"
    )


def _head(d: Dialect, key: str) -> str:
    """Return SQL for the id of the next run of *key*."""
    return f"""
    (SELECT id FROM job_runs WHERE {KEYED} AND concurrency_key = {key} AND {_claimable(d)}
     ORDER BY {_ORDER} LIMIT 1)
    """


def _share(key: str, run: str) -> str:
    """Return SQL for the lowest free share of *key* within the limit of *run*, or NULL."""
    return f"""
    (SELECT min(share) FROM (
        SELECT 1 AS share
        UNION ALL
        SELECT concurrency_share + 1 FROM job_runs
        WHERE concurrency_key = {key} AND concurrency_share IS NOT NULL
     ) AS possible
     WHERE share <= (SELECT concurrency_limit FROM job_runs WHERE id = {run})
        AND NOT EXISTS (
            SELECT 1 FROM job_runs AS taken
            WHERE taken.concurrency_key = {key} AND taken.concurrency_share = share
        ))
    """
