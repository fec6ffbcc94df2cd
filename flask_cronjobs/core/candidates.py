"""CTEs for the runs that a claim may choose from: those without a concurrency key, and with one.

Their cost must not grow with the number of waiting runs, whether one busy key has ten thousand of
them or there are ten thousand keys. So a claim reads a first window of the queue, in its order.
Only if that has too few runs to claim, it looks into all groups: of a task, queue and priority.
Likewise from key to key, if the runs with keys that come first have no free share: one of the
places of their key, from 1 to its limit, that its runs hold while they are at work.
"""

from __future__ import annotations

from ..db.dialect import Dialect
from ..models.conditions import KEYED, KEYED_GROUPS, RUNNABLE, UNKEYED, UNKEYED_GROUPS
from ..types import WORKER_LOST, PauseKind

#: How many runs beyond its limit the first window has.
WINDOW = 100
#: How many runs more than its limit a claim looks for: other claims may have locked some of them.
SPARE = 20

_ORDER = "priority DESC, run_at, id"
#: Whether a run may be claimed together with others.
_IN_COMPANY = f"""
    (max_attempts - attempts > 1
        AND (attempts = 0 OR (:side_by_side AND COALESCE(error_type, '') <> '{WORKER_LOST}'))
        AND (rate_key IS NULL OR :side_by_side)
    ) AS in_company
"""


def candidates(d: Dialect) -> str:
    """Return CTEs that end in ``chosen``: the rows that a claim takes.

    1. ``unkeyed_in_order``, or else ``unkeyed_in_groups``, is the next runs without a concurrency
       key; ``with_share`` the next run of each key that has a free share.
    2. ``by_id`` locks those of them that are not locked yet, by their ids.
    3. ``candidate`` is the first of all these.

    A run on a later or its last attempt is claimed alone: if one is first in order, the claim takes
    only that, and only if the worker holds nothing else. Otherwise the claim takes first attempts,
    several at once. So a run that kills the process costs its neighbors one attempt at most, and
    never their last. So is a run with a rate, unless all begin at once, side by side: it must not
    wait behind others with a start that was taken for it.

    The CTEs must be materialized: a planner may run a subquery with LIMIT more than once, and then
    update more rows than the limit.
    """
    return f"""
    {_unkeyed(d)}, {_keyed(d)},
    found AS MATERIALIZED (
        SELECT id, NULL AS share FROM unkeyed_in_groups UNION ALL SELECT id, share FROM with_share
    ),
    by_id AS MATERIALIZED (
        SELECT r.id, {_IN_COMPANY}, r.priority, r.run_at, found.share
        FROM found CROSS JOIN job_runs r
        WHERE {same_id(d, "r", "found")} AND {_still_claimable(d)}
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT :limit
        {d.skip_locked.replace("UPDATE", "UPDATE OF r")}
    ),
    candidate AS MATERIALIZED (
        SELECT id, in_company, share, row_number() OVER (ORDER BY {_ORDER}) AS place
        FROM (SELECT * FROM unkeyed_in_order UNION ALL SELECT * FROM by_id) AS either
        ORDER BY {_ORDER} LIMIT :limit
    ),
    chosen AS MATERIALIZED (
        SELECT id, share FROM candidate
        WHERE CASE WHEN (:side_by_side AND NOT :idle)
                       OR (SELECT in_company FROM candidate WHERE place = 1)
                   THEN in_company ELSE :idle AND place = 1 END
    )
    """


def same_id(d: Dialect, run: str, cte: str) -> str:
    """Return the condition that joins *run* to its row in a *cte*, which has few.

    PostgreSQL is told to look them up: see `db.statements`.
    """
    joined = f"{run}.id = {cte}.id"
    looked_up = d.any_of(f"{run}.id", f"SELECT id FROM {cte}")
    return f"{looked_up} AND {joined}" if d.one_statement else joined


def _unkeyed(d: Dialect) -> str:
    """Return CTEs for the next runs without a key: in order, or in groups if those are too few.

    In order it locks them at once, and passes over what others have locked, however much that is.
    """
    suffices = "(SELECT yes FROM unkeyed_suffices)"
    if d.tests_once:  # And its planner needs a limit that it knows beforehand.
        condition, limit = f"AND {suffices}", ":limit"
    else:
        condition, limit = "", f"CASE WHEN {suffices} THEN :limit ELSE 0 END"
    return f"""
    {_first_window(d, "unkeyed", UNKEYED, "id")},
    unkeyed_in_order AS MATERIALIZED (
        SELECT id, {_IN_COMPANY}, priority, run_at, CAST(NULL AS integer) AS share
        FROM job_runs WHERE {UNKEYED} AND {claimable(d)} {condition}
        ORDER BY {_ORDER} LIMIT {limit} {d.skip_locked}
    ),
    {_in_groups(d, "unkeyed", UNKEYED_GROUPS, SPARE, ("priority", "run_at"))}
    """


def _keyed(d: Dialect) -> str:
    """Return CTEs that end in ``with_share``: the next run of each key with a free share.

    1. ``next_keyed`` is the next runs with keys, with free shares or not; ``first_of_key`` the
       first of them of each key, with the lowest free share of its key.
    2. If those are many and their keys have no free share, `_from_key_to_key` finds others.
    """
    columns = ("concurrency_key", "concurrency_limit", "priority", "run_at")
    listed = f"id, {', '.join(columns)}"
    return f"""
    {_first_window(d, "keyed", KEYED, listed)},
    {_in_groups(d, "keyed", KEYED_GROUPS, WINDOW, columns)},
    next_keyed AS MATERIALIZED (
        SELECT {listed} FROM keyed_window
        WHERE claimable = 1 AND (SELECT yes FROM keyed_suffices)
        UNION ALL
        SELECT {listed} FROM keyed_in_groups
    ),
    first_of_key AS MATERIALIZED (
        SELECT id, concurrency_limit AS most, {free_share("first.concurrency_key")} AS share
        FROM (
            SELECT *, row_number() OVER (PARTITION BY concurrency_key ORDER BY {_ORDER}) AS place
            FROM next_keyed
        ) AS first
        WHERE place = 1
    ),
    {_from_key_to_key(d)},
    with_share AS MATERIALIZED (
        SELECT id, share FROM first_of_key WHERE share <= most
        UNION
        SELECT id, {free_share("key_walk.key")} FROM key_walk WHERE id IS NOT NULL
    )
    """


def _from_key_to_key(d: Dialect) -> str:
    """Return the CTE ``key_walk``: keys, each with its next run, if that may be claimed.

    It goes from key to key, at one step each, however many runs a key has, until it has found
    enough runs. It begins after the key where the worker's last claim ended, so that each key gets
    its turn.
    """
    enough = "SELECT count(*) FROM first_of_key WHERE share <= most"
    found = "found + CASE WHEN id IS NULL THEN 0 ELSE 1 END"
    return f"""
    key_walk(key, id, following, found) AS (
        SELECT CAST('' AS varchar), CAST(NULL AS bigint), {_key_after(":after")}, 0
        WHERE (SELECT count(*) FROM next_keyed) >= :limit + {SPARE} AND ({enough}) < :limit
        UNION ALL
        SELECT following, {_next_of_key(d, "following")}, {_key_after("following")}, {found}
        FROM key_walk WHERE following IS NOT NULL AND {found} < :limit
    )
    """


def _first_window(d: Dialect, name: str, rows: str, columns: str) -> str:
    """Return CTEs that look at the first window, also at runs that this claim may not take.

    There may be 300,000 runs before the next that it may: of other tasks or queues, or of a higher
    priority but not due yet. They must not be read one by one.

    1. ``…_window`` is the window.
    2. ``…_suffices`` is whether enough runs there may be taken, or whether it is the whole queue.
       Otherwise `_in_groups` goes from group to group.

    :param rows: `UNKEYED` or `KEYED`.
    """
    return f"""
    {name}_window AS MATERIALIZED (
        SELECT {columns}, CASE WHEN {claimable(d)} THEN 1 END AS claimable FROM job_runs
        WHERE {rows} ORDER BY {_ORDER} LIMIT :limit + {WINDOW}
    ),
    {name}_suffices AS MATERIALIZED (
        SELECT count(*) < :limit + {WINDOW} OR count(claimable) >= :limit + {SPARE} AS yes
        FROM {name}_window
    )
    """


def _in_groups(d: Dialect, name: str, groups: str, more: int, columns: tuple[str, ...]) -> str:
    """Return CTEs that end in ``…_in_groups``: the next runs, if the first window is too small.

    It takes the next due runs of each group (see `_groups`).

    :param groups: `UNKEYED_GROUPS` or `KEYED_GROUPS`.
    :param more: how many runs beyond its limit.
    :param columns: those beside the id.
    """
    group = f"{name}_group"
    first_of_group = f"""
        FROM job_runs
        WHERE {groups} AND job_type = {group}.job_type AND queue = {group}.queue
            AND priority = {group}.priority AND run_at <= {d.now} AND attempts < max_attempts
            {_not_locked(d)}
        ORDER BY {_IN_GROUPS} LIMIT :limit + {more}
    """
    return f"""
    {_groups(d, name, groups)},
    {name}_in_groups AS MATERIALIZED (
        SELECT r.id, {", ".join(f"r.{column}" for column in columns)}
        FROM (SELECT * FROM {group} WHERE {of_queues(d)}) AS {group}
            {d.join_each(", ".join(columns), first_of_group)}
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT :limit + {more}
    )
    """


_IN_GROUPS = "job_type, queue, priority, run_at, id"


def _groups(d: Dialect, name: str, rows: str) -> str:
    """Return the CTE ``…_group``: each task, queue and priority that has runs, at one step each.

    It begins with a group of each task that comes before all others.
    """
    group = f"{name}_group"
    # Not ">": SQLite would read the whole of the old group. And of a column beside a column it
    # searches the index for the first alone.
    # A priority that is a text, of an odd row on SQLite, has no next: go on with the next queue.
    is_number = f"{group}.priority + 0 = {group}.priority"
    further = f"CASE WHEN {is_number} THEN '' ELSE ' ' END" if d.one_writer else "''"
    is_after = f"(queue, priority) >= ({group}.queue || {further}, {group}.priority + 1)"
    is_next = f"""
        FROM job_runs WHERE {rows} AND job_type = {group}.job_type AND {is_after}
        ORDER BY {_IN_GROUPS} LIMIT 1
    """
    return f"""
    {group}(job_type, queue, priority) AS (
        SELECT task, CAST('' AS varchar), {-(2**31)} FROM {d.each("tasks", "task")}
        WHERE {unpaused("task", "task")} AND NOT (SELECT yes FROM {name}_suffices)
        UNION ALL
        SELECT {group}.job_type, r.queue, r.priority
        FROM {group} {d.join_each("queue, priority", is_next)}
    )
    """


#: The columns that `claimable` names.
CLAIMABLE = "id, job_type, queue, run_at, attempts, max_attempts"


def claimable(d: Dialect) -> str:
    """Return the conditions of every claim beside those of its partial index."""
    return (
        f"run_at <= {d.clock} AND attempts < max_attempts"
        f" AND {d.one_of('job_type', 'tasks')} AND {unpaused('job_type', 'task')}"
        f" AND {of_queues(d)} {_not_locked(d)}"
    )


def _not_locked(d: Dialect) -> str:
    """Return the condition that a run is none of those that the claims before found locked.

    Not to be known from a row: it is locked in the choice, or passed over by the next claim. To
    lock in the choice all that may be chosen would keep them from other workers.
    """
    return "AND NOT id = ANY(CAST(:locked AS bigint[]))" if d.skip_locked else ""


def of_queues(d: Dialect) -> str:
    """Return the condition that the queue is not paused, and is one of ``:queues``.

    With ``:but_queues`` that it is none of them.
    """
    wanted = f"(({d.one_of('queue', 'queues')}) <> :but_queues)"
    return f"{wanted} AND {unpaused('queue', 'queue')}"


def unpaused(name: str, kind: PauseKind) -> str:
    """Return the condition that the task or queue *name* (SQL) is not paused."""
    return f"{name} NOT IN (SELECT name FROM job_pauses WHERE kind = '{kind}')"


def _still_claimable(d: Dialect) -> str:
    """Return conditions for a run ``r`` that is ``found`` by its id: somebody may have changed it.

    ``IS TRUE`` hides them from the planner, which otherwise would not look up the few rows by id.
    """
    return f"""
    (r.{RUNNABLE} AND r.run_at <= {d.clock} AND CASE
        WHEN found.share IS NULL THEN r.concurrency_key IS NULL
        ELSE found.share <= r.concurrency_limit AND r.order_mark IS NULL END) IS TRUE
    """


def _key_after(key: str) -> str:
    """Return SQL for the next key that has runs."""
    later = f"SELECT concurrency_key FROM job_runs WHERE {KEYED} AND concurrency_key > {key}"
    return f"({later} ORDER BY concurrency_key LIMIT 1)"


def _next_of_key(d: Dialect, key: str) -> str:
    """Return SQL for the id of the next run of *key*, or NULL if the key has no free share.

    It does not say ``=``: then the order by key would mean nothing, and PostgreSQL might walk along
    the runs of all keys, in the other columns' order.
    """
    return f"""
    (SELECT CASE WHEN {free_share(key)} <= concurrency_limit THEN id END FROM job_runs
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
