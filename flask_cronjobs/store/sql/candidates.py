"""CTEs for the runs that a claim may choose from: those without a concurrency key, and with one.

Their cost must not grow with the number of waiting runs, whether one busy key has ten thousand of
them or there are ten thousand keys.
"""

from __future__ import annotations

from ...models.tables import FREE, FREE_GROUPS, KEYED, KEYED_GROUPS, RUNNABLE
from ..dialect import Dialect

#: How many runs beyond its limit a claim reads in order, before it goes from key to key, or from
#: group to group.
FRONT = 100
#: How many runs more than its limit a claim looks for: other claims may have locked some of them.
SPARE = 20

_ORDER = "priority DESC, run_at, id"
#: What `error_type` says of a run whose worker died, or lost it.
LOST = "WorkerLost"
#: Whether a run may be claimed together with others.
_IN_COMPANY = f"""
    (max_attempts - attempts > 1
        AND (attempts = 0 OR (:side_by_side AND COALESCE(error_type, '') <> '{LOST}'))
    ) AS in_company
"""


def free(d: Dialect, far: bool) -> str:
    """Return CTEs that end in ``free``: the next runs without a concurrency key.

    :param far: whether to look beyond the front of the queue, if it has too few (see `_found`).

    The CTEs must be materialized: a planner may run a subquery with LIMIT more than once, and then
    update more rows than the limit.
    """
    columns = f"{_IN_COMPANY}, priority, run_at, CAST(NULL AS integer) AS share"
    found = f"""
    {_seen(d, "free", FREE, ":limit")},
    free_near AS MATERIALIZED ({_near(d, "free", FREE, ":limit", columns)} {d.skip_locked}),
    """
    if not far:
        return f"{found} free AS MATERIALIZED (SELECT * FROM free_near)"
    return f"""
    {found}
    {_behind(d, "free", FREE_GROUPS, ":limit")},
    free_far AS MATERIALIZED (
        SELECT id, {columns} FROM job_runs
        WHERE {d.any_of("id", "SELECT id FROM free_behind")} AND {_still_claimable(d, "job_runs")}
        ORDER BY {_ORDER} LIMIT :limit {d.skip_locked}
    ),
    free AS MATERIALIZED (SELECT * FROM free_near UNION ALL SELECT * FROM free_far)
    """


def keyed(d: Dialect, far: bool) -> str:
    """Return CTEs that end in ``keyed``: the next run of each concurrency key with a free share.

    1. ``front`` is the front of the queue, and ``ahead`` the first run of each key there.
    2. If the front is full of keys without a free share, ``hop`` goes from key to key until it has
       found enough keys that have one: each key costs one step, however many runs it has. It begins
       after the key where the worker's last claim ended, so that each key gets its turn.
    3. ``shared`` gives each of these runs the lowest free share of its key.

    :param far: as of `free`.
    """
    most = f"CASE WHEN :limit > 0 THEN :limit + {FRONT} ELSE 0 END"
    columns = "concurrency_key AS key, priority, run_at"
    behind, front = "", "SELECT * FROM keyed_near"
    if far:
        behind = f"{_behind(d, 'keyed', KEYED_GROUPS, most)},"
        ids = d.any_of("id", "SELECT id FROM keyed_behind")
        front += f" UNION ALL SELECT id, {columns} FROM job_runs WHERE {ids}"
    enough = "SELECT count(*) FROM ahead WHERE share IS NOT NULL"
    return f"""
    {_seen(d, "keyed", KEYED, most)},
    keyed_near AS MATERIALIZED ({_near(d, "keyed", KEYED, most, columns)}),
    {behind}
    front AS MATERIALIZED ({front}),
    ahead AS MATERIALIZED (
        SELECT id, {_share("first.key", "first.id")} AS share
        FROM (SELECT id, key, row_number() OVER (PARTITION BY key ORDER BY {_ORDER}) AS place
              FROM front) AS first
        WHERE place = 1
    ),
    hop(key, passed) AS (
        SELECT (SELECT min(concurrency_key) FROM job_runs
                WHERE {KEYED} AND concurrency_key > :after), 0
        WHERE (SELECT count(*) FROM front) = :limit + {FRONT} AND ({enough}) < :limit
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
        WHERE shared.share IS NOT NULL AND {_still_claimable(d, "r")}
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT :limit
        {d.skip_locked_of("r")}
    )
    """


def _seen(d: Dialect, name: str, rows: str, limit: str) -> str:
    """Return CTEs that look at the front of the queue, also at runs that this claim may not take.

    There may be 300,000 runs before the next *limit* ones: of other tasks or queues, or of a higher
    priority but not due yet. They must not be read one by one.

    1. ``…_seen`` is the front of the queue.
    2. ``…_is_near`` is whether enough runs there may be taken, or whether it is the whole queue.
       Then `_near` reads the queue in order. Otherwise `_behind` goes from group to group.

    :param rows: `FREE` or `KEYED`.
    """
    return f"""
    {name}_seen AS MATERIALIZED (
        SELECT CASE WHEN {_claimable(d)} THEN 1 END AS claimable FROM job_runs WHERE {rows}
        ORDER BY {_ORDER} LIMIT CASE WHEN :limit > 0 THEN {limit} + {FRONT} ELSE 0 END
    ),
    {name}_is_near AS MATERIALIZED (
        SELECT count(*) < {limit} + {FRONT} OR count(claimable) >= {limit} + {SPARE} AS yes
        FROM {name}_seen
    )
    """


def _behind(d: Dialect, name: str, groups: str, limit: str) -> str:
    """Return CTEs that end in ``…_behind``: the ids of the next *limit* runs, if they are far.

    1. ``…_queue`` and ``…_group`` find each task, queue and priority that has runs, at one step
       each.
    2. ``…_behind`` takes the next due runs of each.

    :param groups: `FREE_GROUPS` or `KEYED_GROUPS`.
    """
    queue, group = f"{name}_queue", f"{name}_group"

    def first(column: str, conditions: str, order: str) -> str:
        return f"""
            (SELECT {column} FROM job_runs
             WHERE {groups} AND {conditions} ORDER BY {order} LIMIT 1)
        """

    in_queue = "job_type = {0}.job_type AND queue = {0}.queue"
    down, up = (
        "job_type DESC, queue DESC, priority DESC, run_at DESC, id DESC",
        "job_type, queue, priority, run_at, id",
    )
    first_of_group = f"""
        SELECT id, priority, run_at FROM job_runs
        WHERE {groups} AND {in_queue.format(group)} AND priority = {group}.priority
            AND run_at <= {d.now} AND attempts < max_attempts
        ORDER BY {up} LIMIT {limit} + {SPARE}
    """
    return f"""
    {queue}(job_type, queue) AS (
        SELECT task, {first("queue", "job_type = task", up)}
        FROM {d.each("tasks", "task")} WHERE NOT (SELECT yes FROM {name}_is_near)
        UNION ALL
        SELECT job_type,
            {first("queue", f"job_type = {queue}.job_type AND queue > {queue}.queue", up)}
        FROM {queue} WHERE queue IS NOT NULL
    ),
    {group}(job_type, queue, priority) AS (
        SELECT job_type, queue, {first("priority", in_queue.format(queue), down)}
        FROM {queue} WHERE queue IS NOT NULL AND {_of_queues(d)}
        UNION ALL
        SELECT job_type, queue,
            {first("priority", f"{in_queue.format(group)} AND priority < {group}.priority", down)}
        FROM {group} WHERE priority IS NOT NULL
    ),
    {name}_behind AS MATERIALIZED (
        SELECT r.id FROM {group} {d.join_each("r", first_of_group)}
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT {limit} + {SPARE}
    )
    """


def _near(d: Dialect, name: str, rows: str, limit: str, columns: str) -> str:
    """Return the SELECT of the next *limit* runs in order; it reads nothing if they are far."""
    near = f"(SELECT yes FROM {name}_is_near)"
    # SQLite would test a condition at each row. PostgreSQL needs a limit that it knows beforehand.
    if d.name == "sqlite":
        condition, limit = "", f"CASE WHEN {near} THEN {limit} ELSE 0 END"
    else:
        condition = f"AND {near}"
    return f"""
    SELECT id, {columns} FROM job_runs WHERE {rows} AND {_claimable(d)} {condition}
    ORDER BY {_ORDER} LIMIT {limit}
    """


def _claimable(d: Dialect) -> str:
    """Return the conditions of every claim beside those of its partial index.

    ``IS TRUE`` hides the time from the planner, which could otherwise find all due runs by it, and
    sort them for each claim.
    """
    return (
        f"(run_at <= {d.now}) IS TRUE AND attempts < max_attempts"
        f" AND {d.one_of('job_type', 'tasks')} AND {_of_queues(d)}"
    )


def _of_queues(d: Dialect) -> str:
    return f"(:any_queue OR {d.one_of('queue', 'queues')})"


def _still_claimable(d: Dialect, run: str) -> str:
    """Return conditions for a *run* found by its id: another claim may have changed it meanwhile.

    ``IS TRUE`` hides them from the planner, which otherwise would not look up the few rows by id.
    """
    return f"({run}.{RUNNABLE} AND {run}.run_at <= {d.now}) IS TRUE"


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
