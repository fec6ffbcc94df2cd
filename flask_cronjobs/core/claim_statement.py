"""The statement that claims runs, whole, and its conditions, which others share.

Its cost must not grow with the number of waiting runs, whether one busy key has ten thousand of
them, or there are ten thousand keys, or 300,000 come first that are of other tasks or not due.
"""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import TextClause, text

from ..db.dialect import Dialect
from ..models.conditions import KEYED, KEYED_GROUPS, RUNNABLE, UNKEYED, UNKEYED_GROUPS
from ..types import WORKER_LOST, PauseKind
from .columns import CLAIMED, NO_CLAIM, returned
from .gate import comes_first

#: How many runs beyond its limit the first window has.
WINDOW = 100
#: How many runs more than its limit a claim looks for: other claims may have locked some of them.
SPARE = 20

_ORDER = "priority DESC, run_at, id"
_GROUPED = "job_type, queue, priority, run_at, id"
#: Whether a run may be claimed together with others.
_IN_COMPANY = f"""
    (max_attempts - attempts > 1
        AND (attempts = 0 OR (:side_by_side AND COALESCE(error_type, '') <> '{WORKER_LOST}'))
        AND (rate_key IS NULL OR :side_by_side)
    ) AS in_company
"""
#: SQL for the next key after another that has runs.
_KEY_AFTER = f"""
    (SELECT concurrency_key FROM job_runs WHERE {KEYED} AND concurrency_key > {{}}
     ORDER BY concurrency_key LIMIT 1)
"""


@lru_cache(maxsize=8)
def claim_statement(d: Dialect, only_look: bool = False) -> TextClause:
    """Return the statement that claims the first runs that it may.

    1. ``…_window`` is the first of the queue, also runs that this claim may not take. It suffices
       if enough of them may be taken, or if it is the whole queue.
    2. ``unkeyed_in_order`` is the next runs without a concurrency key. It locks them at once, and
       passes over what others have locked, however much that is.
    3. If a window does not suffice, ``…_group`` is each task, queue and priority that has runs, at
       one step each, and the next runs of each group are read.
    4. ``first_of_key`` is the next run of each key, with the lowest free share of its key. If they
       are many and few have one, ``key_walk`` goes from key to key, at one step each, from where
       the worker's last claim ended, so that each key gets its turn. What is met of a strict order
       but does not come first in it is parked.
    5. ``by_id`` locks those of ``found`` that are not locked yet. PostgreSQL returns the others in
       one row, if it has got fewer than it looks for: the next claim is to look behind them.
    6. ``chosen`` is the first of all. A run on a later or its last attempt is claimed alone: if one
       is first in order, the claim takes only that, and only if the worker holds nothing else.
       Otherwise it takes first attempts, several at once. So a run that kills the process costs its
       neighbors one attempt at most, and never their last. So is a run with a rate, unless all
       begin side by side: it must not wait behind others with a start that was taken for it.

    The CTEs must be materialized: a planner may run a subquery with LIMIT more than once, and then
    update more rows than the limit.

    :param only_look: claim nothing, and return what the first run is like.
    """
    mine, of_key = claimable(d), "concurrency_key, concurrency_limit, priority, run_at, strict"
    mark = f"CASE WHEN {mine} THEN 1 END AS claimable"
    enough = f"count(*) < :limit + {WINDOW} OR count(claimable) >= :limit + {SPARE}"
    in_order = f"AND (SELECT unkeyed FROM suffices) ORDER BY {_ORDER} LIMIT :limit"
    if not d.tests_once:  # But then its planner needs no limit that it knows beforehand.
        in_order = f"ORDER BY {_ORDER} LIMIT (SELECT unkeyed * :limit FROM suffices)"
    of_r = d.skip_locked.replace("UPDATE", "UPDATE OF r")
    walked = "walked + CASE WHEN id IS NULL THEN 0 ELSE 1 END"
    # No "=": then the order by key would mean nothing, and PostgreSQL might walk along the runs of
    # all keys, in the other columns' order.
    this_key = "concurrency_key >= following AND concurrency_key <= following"
    may_begin = f"{free_share('following')} <= concurrency_limit"
    # Without a look for each: most are behind one that is met, too.
    behind_met = "strict AND id > min(CASE WHEN strict THEN id END) OVER of_key"
    walked_first = f"(SELECT {comes_first('r')} FROM job_runs AS r WHERE r.id = key_walk.id)"
    behind = f"""SELECT id FROM next_keyed WHERE NOT comes_first
        UNION SELECT id FROM key_walk WHERE NOT {walked_first}"""
    return text(f"""
    WITH RECURSIVE
    unkeyed_window AS MATERIALIZED (
        SELECT id, {mark} FROM job_runs WHERE {UNKEYED} ORDER BY {_ORDER} LIMIT :limit + {WINDOW}
    ),
    keyed_window AS MATERIALIZED (
        SELECT id, {of_key}, {mark} FROM job_runs
        WHERE {KEYED} ORDER BY {_ORDER} LIMIT :limit + {WINDOW}
    ),
    suffices AS MATERIALIZED (
        SELECT (SELECT {enough} FROM unkeyed_window) AS unkeyed,
            (SELECT {enough} FROM keyed_window) AS keyed
    ),
    unkeyed_in_order AS MATERIALIZED (
        SELECT id, {_IN_COMPANY}, priority, run_at, CAST(NULL AS integer) AS share
        FROM job_runs WHERE {UNKEYED} AND {mine} {in_order} {d.skip_locked}
    ),
    unkeyed_group(job_type, queue, priority) AS ({_groups(d, "unkeyed", UNKEYED_GROUPS)}),
    keyed_group(job_type, queue, priority) AS ({_groups(d, "keyed", KEYED_GROUPS)}),
    next_keyed AS MATERIALIZED (
        SELECT *, CASE WHEN {behind_met} THEN 1 = 0 ELSE {comes_first("met")} END AS comes_first
        FROM (
            SELECT id, {of_key} FROM keyed_window
            WHERE claimable = 1 AND (SELECT keyed FROM suffices)
            UNION ALL
            SELECT * FROM ({_of_groups(d, "keyed", KEYED_GROUPS, WINDOW, of_key)}) AS of_groups
        ) AS met
        WINDOW of_key AS (PARTITION BY concurrency_key)
    ),
    first_of_key AS MATERIALIZED (
        SELECT id, concurrency_limit AS most, {free_share("first.concurrency_key")} AS share
        FROM (
            SELECT *, row_number() OVER (PARTITION BY concurrency_key ORDER BY {_ORDER}) AS place
            FROM next_keyed WHERE comes_first
        ) AS first
        WHERE place = 1
    ),
    key_walk(key, id, following, walked) AS (
        SELECT CAST('' AS varchar), CAST(NULL AS bigint), {_KEY_AFTER.format(":after")}, 0
        WHERE (SELECT count(*) FROM next_keyed) >= :limit + {SPARE}
            AND (SELECT count(*) FROM first_of_key WHERE share <= most) < :limit
        UNION ALL
        SELECT following,
            (SELECT CASE WHEN {may_begin} THEN id END FROM job_runs
             WHERE {KEYED} AND {this_key} AND {mine} ORDER BY concurrency_key, {_ORDER} LIMIT 1),
            {_KEY_AFTER.format("following")}, {walked}
        FROM key_walk WHERE following IS NOT NULL AND {walked} < :limit
    ),
    found AS MATERIALIZED (
        SELECT id, CAST(NULL AS bigint) AS share
        FROM ({_of_groups(d, "unkeyed", UNKEYED_GROUPS, SPARE, "priority, run_at")}) AS of_groups
        UNION ALL SELECT id, share FROM first_of_key WHERE share <= most
        UNION SELECT id, {free_share("key_walk.key")} FROM key_walk WHERE {walked_first}
    ),
    by_id AS MATERIALIZED (
        SELECT r.id, {_IN_COMPANY}, r.priority, r.run_at, found.share
        FROM found CROSS JOIN job_runs AS r
        WHERE {_same_id(d, "r", "found")} AND {_still_claimable(d)}
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT :limit {of_r}
    ),
    candidate AS MATERIALIZED (
        SELECT id, in_company, share, row_number() OVER (ORDER BY {_ORDER}) AS place
        FROM (SELECT * FROM unkeyed_in_order UNION ALL SELECT * FROM by_id) AS either
        ORDER BY {_ORDER} LIMIT :limit
    ),
    chosen AS MATERIALIZED (
        SELECT id, share, 1 AS takes FROM candidate
        WHERE CASE WHEN (:side_by_side AND NOT :idle)
                       OR (SELECT in_company FROM candidate WHERE place = 1)
                   THEN in_company ELSE :idle AND place = 1 END
        UNION ALL
        SELECT id, NULL, 0 FROM (
            SELECT id FROM job_runs
            WHERE {d.any_of("id", behind)} AND (gate IS NULL AND {RUNNABLE}) IS TRUE {d.skip_locked}
        ) AS parked
    )
    {_look(d) if only_look else _take(d)}
    """)


def _look(d: Dialect) -> str:
    """Return the end of a claim that takes nothing."""
    taken = d.any_of("id", "SELECT id FROM chosen WHERE takes = 1")
    return f"SELECT job_type, attempts + 1, max_attempts, error_type FROM job_runs WHERE {taken}"


def _take(d: Dialect) -> str:
    """Return the end of a claim, which takes or parks what is ``chosen``.

    PostgreSQL returns the ids of all that are parked in one row, SQLite a row for each.
    """
    taken = {
        "status": "'running'",
        "locked_by": d.typed(":token", "text"),
        "locked_until": d.clock_after(":lease"),
        "started_at": d.clock,
        **dict.fromkeys(("progress", "progress_message"), "NULL"),
    }
    values = ", ".join(
        f"{name} = CASE WHEN takes = 1 THEN {value} ELSE job_runs.{name} END"
        for name, value in taken.items()
    )
    update = f"""
        UPDATE job_runs SET
            gate = CASE WHEN takes = 0 THEN 'order' END, attempts = job_runs.attempts + takes,
            concurrency_share = chosen.share, updated_at = {d.clock}, {values}
        FROM chosen WHERE {_same_id(d, "job_runs", "chosen")}
        RETURNING {returned(d)}, job_runs.id AS ids, job_runs.gate AS why
    """
    if not d.one_statement:
        return update
    return f"""
    , claimed AS ({update})
    SELECT {", ".join(CLAIMED)}, NULL AS ids, NULL AS why FROM claimed WHERE why IS NULL
    UNION ALL
    SELECT {NO_CLAIM}, string_agg(CAST(id AS text), ','), 'order' FROM claimed
    WHERE why IS NOT NULL HAVING count(*) > 0
    UNION ALL
    SELECT {NO_CLAIM}, string_agg(CAST(id AS text), ','), 'locked' FROM found
    WHERE id NOT IN (SELECT id FROM by_id) AND (SELECT count(*) FROM by_id) < :limit
    HAVING count(*) > 0
    """


def _groups(d: Dialect, name: str, rows: str) -> str:
    """Return the CTE ``…_group``: each task, queue and priority that has *rows*.

    It begins with a group of each task that comes before all others.

    :param name: ``keyed`` or ``unkeyed``.
    """
    # Not ">": SQLite would read the whole of the old group. And of a column beside a column it
    # searches the index for the first alone.
    # A priority that is a text, of an odd row on SQLite, has no next: go on with the next queue.
    further = "CASE WHEN grp.priority + 0 = grp.priority THEN '' ELSE ' ' END"
    is_after = f"""(queue, priority) >=
        (grp.queue || {further if d.one_writer else "''"}, grp.priority + 1)"""
    is_next = f"""
        FROM job_runs WHERE {rows} AND job_type = grp.job_type AND {is_after}
        ORDER BY {_GROUPED} LIMIT 1
    """
    return f"""
        SELECT task, CAST('' AS varchar), {-(2**31)} FROM {d.each("tasks", "task")}
        WHERE {unpaused("task", "task")} AND NOT (SELECT {name} FROM suffices)
        UNION ALL
        SELECT grp.job_type, r.queue, r.priority
        FROM {name}_group AS grp {d.join_each("queue, priority", is_next)}
    """


def _of_groups(d: Dialect, name: str, rows: str, more: int, columns: str) -> str:
    """Return the SELECT of the next due runs of all groups: of *rows*, with *columns*.

    :param name: ``keyed`` or ``unkeyed``.
    :param more: how many runs beyond the claim's limit.
    """
    first = f"""
        FROM job_runs
        WHERE {rows} AND job_type = grp.job_type AND queue = grp.queue
            AND priority = grp.priority AND run_at <= {d.now} AND attempts < max_attempts
            {_not_locked(d)}
        ORDER BY {_GROUPED} LIMIT :limit + {more}
    """
    return f"""
        SELECT r.id, {", ".join(f"r.{column}" for column in columns.split(", "))}
        FROM (SELECT * FROM {name}_group WHERE {of_queues(d)}) AS grp {d.join_each(columns, first)}
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT :limit + {more}
    """


def _same_id(d: Dialect, run: str, cte: str) -> str:
    """Return the condition that joins *run* to its row in a *cte*, which has few.

    PostgreSQL is told to look them up: see `db.statements`.
    """
    joined = f"{run}.id = {cte}.id"
    looked_up = d.any_of(f"{run}.id", f"SELECT id FROM {cte}")
    return f"{looked_up} AND {joined}" if d.one_statement else joined


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
        ELSE found.share <= r.concurrency_limit AND r.gate IS NULL END) IS TRUE
    """


def free_share(key: str) -> str:
    """Return SQL for the lowest free share of *key*, whatever its limit.

    With the shares that are taken in order, it is the first place whose share is another number.
    Where nothing is taken, as mostly, one look is enough.
    """
    of_key = f"FROM job_runs WHERE concurrency_key = {key}"
    return f"""
    (CASE WHEN (SELECT id {of_key} AND concurrency_share = 1 LIMIT 1) IS NULL THEN 1 ELSE (
        SELECT COALESCE(min(CASE WHEN share <> place THEN place END), count(*) + 1) FROM (
            SELECT concurrency_share AS share,
                row_number() OVER (ORDER BY concurrency_share) AS place
            {of_key} AND concurrency_share IS NOT NULL
        ) AS taken
    ) END)
    """
