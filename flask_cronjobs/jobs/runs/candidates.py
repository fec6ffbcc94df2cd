"""CTEs for the runs that a claim may choose from: those without a concurrency key, and with one.

Their cost must not grow with the number of waiting runs, whether one busy key has ten thousand of
them or there are ten thousand keys.
"""

from __future__ import annotations

from ...db.dialect import Dialect
from ...models.conditions import KEYED, KEYED_GROUPS, RUNNABLE, UNKEYED, UNKEYED_GROUPS
from ...types import WORKER_LOST, PauseKind

#: How many runs beyond its limit a claim reads in order, before it goes from key to key, or from
#: group to group.
FRONT = 100
#: How many runs more than its limit a claim looks for: other claims may have locked some of them.
SPARE = 20

_ORDER = "priority DESC, run_at, id"
#: Whether a run may be claimed together with others.
_IN_COMPANY = f"""
    (max_attempts - attempts > 1
        AND (attempts = 0 OR (:side_by_side AND COALESCE(error_type, '') <> '{WORKER_LOST}'))
    ) AS in_company
"""
#: How many runs with keys a claim looks at.
_MOST_KEYED = f":limit + {FRONT}"


def candidates(d: Dialect) -> str:
    """Return CTEs that end in ``chosen``: the rows that a claim takes.

    A run on a later or its last attempt is claimed alone: if one is first in order, the claim takes
    only that, and only if the worker holds nothing else. Otherwise the claim takes first attempts,
    several at once. So a run that kills the process costs its neighbors one attempt at most, and
    never their last.
    """
    return f"""
    {_free(d)}, {_keyed(d)},
    candidate AS MATERIALIZED (
        SELECT id, in_company, share,
            row_number() OVER (ORDER BY priority DESC, run_at, id) AS place
        FROM (SELECT * FROM free UNION ALL SELECT * FROM keyed) AS either
        ORDER BY priority DESC, run_at, id LIMIT :limit
    ),
    chosen AS MATERIALIZED (
        SELECT id, share FROM candidate
        WHERE CASE WHEN (:side_by_side AND NOT :idle)
                       OR (SELECT in_company FROM candidate WHERE place = 1)
                   THEN in_company ELSE :idle AND place = 1 END
    )
    """


def _free(d: Dialect) -> str:
    """Return CTEs that end in ``free``: the next runs without a concurrency key.

    The CTEs must be materialized: a planner may run a subquery with LIMIT more than once, and then
    update more rows than the limit.
    """
    columns = f"{_IN_COMPANY}, priority, run_at, CAST(NULL AS integer) AS share"
    return f"""
    {_seen(d, "free", UNKEYED, ":limit")},
    free_near AS MATERIALIZED ({_near(d, "free", UNKEYED, ":limit", columns)} {d.skip_locked}),
    {_behind(d, "free", UNKEYED_GROUPS, ":limit")},
    free_far AS MATERIALIZED (
        SELECT id, {columns} FROM job_runs
        WHERE {d.any_of("id", "SELECT id FROM free_behind")} AND {_still_claimable(d, "job_runs")}
        ORDER BY {_ORDER} LIMIT :limit {d.skip_locked}
    ),
    free AS MATERIALIZED (SELECT * FROM free_near UNION ALL SELECT * FROM free_far)
    """


def _keyed(d: Dialect) -> str:
    """Return CTEs that end in ``keyed``: the next run of each concurrency key with a free share.

    1. ``front`` is the front of the queue, and ``ahead`` the first run of each key there, with the
       lowest free share of its key.
    2. If the front is full of keys without a free share, `_from_key_to_key` finds others.
    3. ``keyed`` is those whose share is within the limit of their key.
    """
    return f"""
    {_front(d)},
    ahead AS MATERIALIZED (
        SELECT id, most, {_share("first.key")} AS share
        FROM (SELECT id, key, most, row_number() OVER (PARTITION BY key ORDER BY {_ORDER}) AS place
              FROM front) AS first
        WHERE place = 1
    ),
    {_from_key_to_key(d)},
    shared AS MATERIALIZED (
        SELECT id, share FROM ahead WHERE share <= most
        UNION
        SELECT id, {_share("behind.key")} FROM behind WHERE id IS NOT NULL
    ),
    keyed AS MATERIALIZED (
        SELECT r.id, {_IN_COMPANY}, r.priority, r.run_at, shared.share
        FROM shared JOIN job_runs r ON r.id = shared.id
        WHERE {d.any_of("r.id", "SELECT id FROM shared")} AND {_still_claimable(d, "r")}
            AND (shared.share <= r.concurrency_limit AND r.order_mark IS NULL) IS TRUE
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT :limit
        {d.skip_locked_of("r")}
    )
    """


def _front(d: Dialect) -> str:
    """Return CTEs that end in ``front``: the next runs with keys, with shares or without."""
    columns = "concurrency_key AS key, concurrency_limit AS most, priority, run_at"
    return f"""
    {_seen(d, "keyed", KEYED, _MOST_KEYED)},
    keyed_near AS MATERIALIZED ({_near(d, "keyed", KEYED, _MOST_KEYED, columns)}),
    {_behind(d, "keyed", KEYED_GROUPS, _MOST_KEYED)},
    front AS MATERIALIZED (
        SELECT * FROM keyed_near
        UNION ALL
        SELECT id, {columns} FROM job_runs WHERE {d.any_of("id", "SELECT id FROM keyed_behind")}
    )
    """


def _from_key_to_key(d: Dialect) -> str:
    """Return CTEs that end in ``behind``: keys, each with its next run or NULL.

    ``hop`` goes from key to key, at one step each, however many runs a key has, until it has found
    enough keys with a free share. It begins after the key where the worker's last claim ended, so
    that each key gets its turn.
    """
    enough = "SELECT count(*) FROM ahead WHERE share <= most"
    is_free = f"{_share('hop.key')} <= {_head(d, 'hop.key', 'concurrency_limit')}"
    return f"""
    hop(key, passed) AS (
        SELECT {_key_after(":after")}, 0
        WHERE (SELECT count(*) FROM front) = {_MOST_KEYED} AND ({enough}) < :limit
        UNION ALL
        SELECT {_key_after("hop.key")},
            hop.passed + CASE WHEN {is_free} THEN 1 ELSE 0 END
        FROM hop WHERE hop.key IS NOT NULL AND hop.passed < :limit
    ),
    behind AS MATERIALIZED (
        SELECT key, {_head(d, "hop.key", "id")} AS id FROM hop WHERE key IS NOT NULL
    )
    """


def _seen(d: Dialect, name: str, rows: str, limit: str) -> str:
    """Return CTEs that look at the front of the queue, also at runs that this claim may not take.

    There may be 300,000 runs before the next *limit* ones: of other tasks or queues, or of a higher
    priority but not due yet. They must not be read one by one.

    1. ``…_seen`` is the front of the queue.
    2. ``…_is_near`` is whether enough runs there may be taken, or whether it is the whole queue.
       Then `_near` reads the queue in order. Otherwise `_behind` goes from group to group.

    :param rows: `UNKEYED` or `KEYED`.
    """
    return f"""
    {name}_seen AS MATERIALIZED (
        SELECT CASE WHEN {claimable(d)} THEN 1 END AS claimable FROM job_runs WHERE {rows}
        ORDER BY {_ORDER} LIMIT {limit} + {FRONT}
    ),
    {name}_is_near AS MATERIALIZED (
        SELECT count(*) < {limit} + {FRONT} OR count(claimable) >= {limit} + {SPARE} AS yes
        FROM {name}_seen
    )
    """


def _near(d: Dialect, name: str, rows: str, limit: str, columns: str) -> str:
    """Return the SELECT of the next *limit* runs in order; it reads nothing if they are far."""
    near = f"(SELECT yes FROM {name}_is_near)"
    if d.tests_once:  # And its planner needs a limit that it knows beforehand.
        condition = f"AND {near}"
    else:
        condition, limit = "", f"CASE WHEN {near} THEN {limit} ELSE 0 END"
    return f"""
    SELECT id, {columns} FROM job_runs WHERE {rows} AND {claimable(d)} {condition}
    ORDER BY {_ORDER} LIMIT {limit}
    """


def _behind(d: Dialect, name: str, groups: str, limit: str) -> str:
    """Return CTEs that end in ``…_behind``: the ids of the next *limit* runs, if they are far.

    It takes the next due runs of each group (see `_groups`).

    :param groups: `UNKEYED_GROUPS` or `KEYED_GROUPS`.
    """
    group = f"{name}_group"
    first_of_group = f"""
        FROM job_runs
        WHERE {groups} AND job_type = {group}.job_type AND queue = {group}.queue
            AND priority = {group}.priority AND run_at <= {d.now} AND attempts < max_attempts
        ORDER BY {_UP} LIMIT {limit} + {SPARE}
    """
    return f"""
    {_groups(d, name, groups)},
    {name}_behind AS MATERIALIZED (
        SELECT r.id FROM {group} {d.join_each("r", "priority, run_at", first_of_group)}
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT {limit} + {SPARE}
    )
    """


_UP = "job_type, queue, priority, run_at, id"
_DOWN = "job_type DESC, queue DESC, priority DESC, run_at DESC, id DESC"


def _groups(d: Dialect, name: str, rows: str) -> str:
    """Return CTEs that find each task, queue and priority that has runs, at one step each.

    ``…_queue`` goes from queue to queue of each task, ``…_group`` from priority to priority there.
    """
    queue, group = f"{name}_queue", f"{name}_group"

    def first(column: str, order: str, conditions: str) -> str:
        found = f"SELECT {column} FROM job_runs WHERE {rows} AND {conditions}"
        return f"({found} ORDER BY {order} LIMIT 1)"

    in_queue = "job_type = {0}.job_type AND queue = {0}.queue"
    next_queue = f"job_type = {queue}.job_type AND queue > {queue}.queue"
    next_priority = f"{in_queue.format(group)} AND priority < {group}.priority"
    return f"""
    {queue}(job_type, queue) AS (
        SELECT task, {first("queue", _UP, "job_type = task")}
        FROM {d.each("tasks", "task")}
        WHERE {unpaused("task", "task")} AND NOT (SELECT yes FROM {name}_is_near)
        UNION ALL
        SELECT job_type, {first("queue", _UP, next_queue)} FROM {queue} WHERE queue IS NOT NULL
    ),
    {group}(job_type, queue, priority) AS (
        SELECT job_type, queue, {first("priority", _DOWN, in_queue.format(queue))}
        FROM {queue} WHERE queue IS NOT NULL AND {of_queues(d)}
        UNION ALL
        SELECT job_type, queue, {first("priority", _DOWN, next_priority)}
        FROM {group} WHERE priority IS NOT NULL
    )
    """


def claimable(d: Dialect) -> str:
    """Return the conditions of every claim beside those of its partial index."""
    return (
        f"run_at <= {d.clock} AND attempts < max_attempts"
        f" AND {d.one_of('job_type', 'tasks')} AND {unpaused('job_type', 'task')}"
        f" AND {of_queues(d)}"
    )


def of_queues(d: Dialect) -> str:
    """Return the condition that the queue is not paused, and is one of ``:queues``.

    With ``:but_queues`` that it is none of them.
    """
    wanted = f"(({d.one_of('queue', 'queues')}) <> :but_queues)"
    return f"{wanted} AND {unpaused('queue', 'queue')}"


def unpaused(name: str, kind: PauseKind) -> str:
    """Return the condition that the task or queue *name* (SQL) is not paused."""
    return f"{name} NOT IN (SELECT name FROM job_pauses WHERE kind = '{kind}')"


def _still_claimable(d: Dialect, run: str) -> str:
    """Return conditions for a *run* found by its id: another claim may have changed it meanwhile.

    ``IS TRUE`` hides them from the planner, which otherwise would not look up the few rows by id.
    """
    return f"({run}.{RUNNABLE} AND {run}.run_at <= {d.clock}) IS TRUE"


def _key_after(key: str) -> str:
    """Return SQL for the next key that has runs."""
    later = f"SELECT concurrency_key FROM job_runs WHERE {KEYED} AND concurrency_key > {key}"
    return f"({later} ORDER BY concurrency_key LIMIT 1)"


def _head(d: Dialect, key: str, column: str) -> str:
    """Return SQL for a *column* of the next run of *key*.

    It does not say ``=``: then the order by key would mean nothing, and PostgreSQL might walk along
    the runs of all keys, in the other columns' order.
    """
    return f"""
    (SELECT {column} FROM job_runs
     WHERE {KEYED} AND concurrency_key >= {key} AND concurrency_key <= {key} AND {claimable(d)}
     ORDER BY concurrency_key, {_ORDER} LIMIT 1)
    """


def _share(key: str) -> str:
    """Return SQL for the lowest free share of *key*, whatever its limit.

    With the shares that are taken in order, it is the first place whose share is another number.
    """
    return f"""
    (SELECT COALESCE(min(CASE WHEN share <> place THEN place END), count(*) + 1) FROM (
        SELECT concurrency_share AS share, row_number() OVER (ORDER BY concurrency_share) AS place
        FROM job_runs WHERE concurrency_key = {key} AND concurrency_share IS NOT NULL
     ) AS taken)
    """
