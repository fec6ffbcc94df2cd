"""CTEs for the runs that a claim may choose from: those without a concurrency key, and with one.

Their cost must not grow with the number of waiting runs, whether one busy key has ten thousand of
them or there are ten thousand keys. So a claim reads a first window of the queue, in its order.
Only if that has too few runs to claim, it looks into all groups: of a task, queue and priority.
Likewise from key to key, if the runs with keys that come first have no free share: one of the
places of their key, from 1 to its limit, that its runs hold while they are at work.
"""

from __future__ import annotations

from ...db.dialect import Dialect
from ...models.conditions import KEYED, KEYED_GROUPS, RUNNABLE, UNKEYED, UNKEYED_GROUPS
from ...types import WORKER_LOST, PauseKind

#: How many runs beyond its limit the first window has.
WINDOW = 100
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
_MOST_KEYED = f":limit + {WINDOW}"


def candidates(d: Dialect) -> str:
    """Return CTEs that end in ``chosen``: the rows that a claim takes.

    A run on a later or its last attempt is claimed alone: if one is first in order, the claim takes
    only that, and only if the worker holds nothing else. Otherwise the claim takes first attempts,
    several at once. So a run that kills the process costs its neighbors one attempt at most, and
    never their last.
    """
    return f"""
    {_unkeyed(d)}, {_keyed(d)},
    candidate AS MATERIALIZED (
        SELECT id, in_company, share,
            row_number() OVER (ORDER BY priority DESC, run_at, id) AS place
        FROM (SELECT * FROM unkeyed UNION ALL SELECT * FROM keyed) AS either
        ORDER BY priority DESC, run_at, id LIMIT :limit
    ),
    chosen AS MATERIALIZED (
        SELECT id, share FROM candidate
        WHERE CASE WHEN (:side_by_side AND NOT :idle)
                       OR (SELECT in_company FROM candidate WHERE place = 1)
                   THEN in_company ELSE :idle AND place = 1 END
    )
    """


def _unkeyed(d: Dialect) -> str:
    """Return CTEs that end in ``unkeyed``: the next runs without a concurrency key.

    The CTEs must be materialized: a planner may run a subquery with LIMIT more than once, and then
    update more rows than the limit.
    """
    columns = f"{_IN_COMPANY}, priority, run_at, CAST(NULL AS integer) AS share"
    in_order = _in_order(d, "unkeyed", UNKEYED, ":limit", columns)
    in_groups = "SELECT id FROM unkeyed_in_groups"
    return f"""
    {_first_window(d, "unkeyed", UNKEYED, ":limit")},
    unkeyed_in_order AS MATERIALIZED ({in_order} {d.skip_locked}),
    {_in_groups(d, "unkeyed", UNKEYED_GROUPS, ":limit")},
    unkeyed AS MATERIALIZED (
        SELECT * FROM unkeyed_in_order
        UNION ALL
        SELECT * FROM (
            SELECT id, {columns} FROM job_runs
            WHERE {d.any_of("id", in_groups)} AND {_still_claimable(d, "job_runs")}
            ORDER BY {_ORDER} LIMIT :limit {d.skip_locked}
        ) AS grouped
    )
    """


def _keyed(d: Dialect) -> str:
    """Return CTEs that end in ``keyed``: the next run of each concurrency key with a free share.

    1. ``next_keyed`` is the next runs with keys, and ``first_of_key`` the first of them of each
       key, with the lowest free share of its key.
    2. If those are many and their keys have no free share, `_from_key_to_key` finds others.
    3. ``keyed`` is those whose share is within the limit of their key.
    """
    return f"""
    {_next_keyed(d)},
    first_of_key AS MATERIALIZED (
        SELECT id, most, {free_share("first.key")} AS share
        FROM (SELECT id, key, most, row_number() OVER (PARTITION BY key ORDER BY {_ORDER}) AS place
              FROM next_keyed) AS first
        WHERE place = 1
    ),
    {_from_key_to_key(d)},
    with_share AS MATERIALIZED (
        SELECT id, share FROM first_of_key WHERE share <= most
        UNION
        SELECT id, {free_share("of_other_key.key")} FROM of_other_key WHERE id IS NOT NULL
    ),
    keyed AS MATERIALIZED (
        SELECT r.id, {_IN_COMPANY}, r.priority, r.run_at, with_share.share
        FROM with_share JOIN job_runs r ON r.id = with_share.id
        WHERE {d.any_of("r.id", "SELECT id FROM with_share")} AND {_still_claimable(d, "r")}
            AND (with_share.share <= r.concurrency_limit AND r.order_mark IS NULL) IS TRUE
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT :limit
        {d.skip_locked_of("r")}
    )
    """


def _next_keyed(d: Dialect) -> str:
    """Return CTEs that end in ``next_keyed``: the next runs with keys, with free shares or not."""
    columns = "concurrency_key AS key, concurrency_limit AS most, priority, run_at"
    in_groups = "SELECT id FROM keyed_in_groups"
    return f"""
    {_first_window(d, "keyed", KEYED, _MOST_KEYED)},
    keyed_in_order AS MATERIALIZED ({_in_order(d, "keyed", KEYED, _MOST_KEYED, columns)}),
    {_in_groups(d, "keyed", KEYED_GROUPS, _MOST_KEYED)},
    next_keyed AS MATERIALIZED (
        SELECT * FROM keyed_in_order
        UNION ALL
        SELECT id, {columns} FROM job_runs WHERE {d.any_of("id", in_groups)}
    )
    """


def _from_key_to_key(d: Dialect) -> str:
    """Return CTEs that end in ``of_other_key``: keys, each with its next run or NULL.

    ``key_walk`` goes from key to key, at one step each, however many runs a key has, until it has
    found enough keys with a free share. It begins after the key where the worker's last claim
    ended, so that each key gets its turn.
    """
    enough = "SELECT count(*) FROM first_of_key WHERE share <= most"
    most = _of_next_run(d, "key_walk.key", "concurrency_limit")
    is_free = f"{free_share('key_walk.key')} <= {most}"
    return f"""
    key_walk(key, found) AS (
        SELECT {_key_after(":after")}, 0
        WHERE (SELECT count(*) FROM next_keyed) >= {_MOST_KEYED} AND ({enough}) < :limit
        UNION ALL
        SELECT {_key_after("key_walk.key")},
            key_walk.found + CASE WHEN {is_free} THEN 1 ELSE 0 END
        FROM key_walk WHERE key_walk.key IS NOT NULL AND key_walk.found < :limit
    ),
    of_other_key AS MATERIALIZED (
        SELECT key, {_of_next_run(d, "key_walk.key", "id")} AS id
        FROM key_walk WHERE key IS NOT NULL
    )
    """


def _first_window(d: Dialect, name: str, rows: str, limit: str) -> str:
    """Return CTEs that look at the first window, also at runs that this claim may not take.

    There may be 300,000 runs before the next *limit* ones: of other tasks or queues, or of a higher
    priority but not due yet. They must not be read one by one.

    1. ``…_window`` is the window.
    2. ``…_suffices`` is whether enough runs there may be taken, or whether it is the whole queue.
       Then `_in_order` reads the queue in its order. Otherwise `_in_groups` goes from group to
       group.

    :param rows: `UNKEYED` or `KEYED`.
    """
    return f"""
    {name}_window AS MATERIALIZED (
        SELECT CASE WHEN {claimable(d)} THEN 1 END AS claimable FROM job_runs WHERE {rows}
        ORDER BY {_ORDER} LIMIT {limit} + {WINDOW}
    ),
    {name}_suffices AS MATERIALIZED (
        SELECT count(*) < {limit} + {WINDOW} OR count(claimable) >= {limit} + {SPARE} AS yes
        FROM {name}_window
    )
    """


def _in_order(d: Dialect, name: str, rows: str, limit: str, columns: str) -> str:
    """Return the SELECT of the next *limit* runs; it reads nothing if the window is too small."""
    suffices = f"(SELECT yes FROM {name}_suffices)"
    if d.tests_once:  # And its planner needs a limit that it knows beforehand.
        condition = f"AND {suffices}"
    else:
        condition, limit = "", f"CASE WHEN {suffices} THEN {limit} ELSE 0 END"
    return f"""
    SELECT id, {columns} FROM job_runs WHERE {rows} AND {claimable(d)} {condition}
    ORDER BY {_ORDER} LIMIT {limit}
    """


def _in_groups(d: Dialect, name: str, groups: str, limit: str) -> str:
    """Return CTEs that end in ``…_in_groups``: the next *limit* ids, if the window is too small.

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
    {name}_in_groups AS MATERIALIZED (
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
        WHERE {unpaused("task", "task")} AND NOT (SELECT yes FROM {name}_suffices)
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


#: The columns that `claimable` names.
CLAIMABLE = "job_type, queue, run_at, attempts, max_attempts"


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


def _of_next_run(d: Dialect, key: str, column: str) -> str:
    """Return SQL for a *column* of the next run of *key*.

    It does not say ``=``: then the order by key would mean nothing, and PostgreSQL might walk along
    the runs of all keys, in the other columns' order.
    """
    return f"""
    (SELECT {column} FROM job_runs
     WHERE {KEYED} AND concurrency_key >= {key} AND concurrency_key <= {key} AND {claimable(d)}
     ORDER BY concurrency_key, {_ORDER} LIMIT 1)
    """


def free_share(key: str) -> str:
    """Return SQL for the lowest free share of *key*, whatever its limit.

    With the shares that are taken in order, it is the first place whose share is another number.
    """
    return f"""
    (SELECT COALESCE(min(CASE WHEN share <> place THEN place END), count(*) + 1) FROM (
        SELECT concurrency_share AS share, row_number() OVER (ORDER BY concurrency_share) AS place
        FROM job_runs WHERE concurrency_key = {key} AND concurrency_share IS NOT NULL
     ) AS taken)
    """
