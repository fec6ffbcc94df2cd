"""The whole statement that claims runs, and its conditions, which other statements share.

Its cost must not grow with the number of waiting runs, even if ten thousand of them have the same
busy key, if there are ten thousand keys, or if the first 300,000 are of other tasks or not due.
"""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import TextClause, text

from ..db.dialect import Dialect
from ..models.conditions import READY, READY_GROUPS
from ..types import WORKER_LOST, PauseKind
from .columns import CLAIMED, assigned, claimed, returned
from .gate import comes_first

#: A claim first reads the *front* of the queue: as many runs as its limit plus
#: `ClaimRequest.beyond`, and this many more.
WINDOW = 100
#: A claim looks for this many claimable runs beyond its limit plus `ClaimRequest.beyond`, since
#: other claims may have locked some.
SPARE = 20

_ORDER = "priority DESC, run_at, id"
_GROUPED = "job_type, queue, priority, run_at, id"
#: The columns that a claim reads. ``most`` is the limit of the run's key.
_READ = """
    id, concurrency_key AS key, COALESCE(concurrency_limit, 0) AS most, strict, priority, run_at
"""
_RUN = "id, key, most, strict, priority, run_at"
#: Whether a run may be claimed together with others. A run that must run alone may not; see
#: `types.must_run_alone`. A retry may, and so may a run with a rate, but only if the runs will run
#: side by side.
_TOGETHER = f"""
    (max_attempts - attempts > 1
        AND (attempts = 0 OR (:side_by_side AND COALESCE(error_type, '') <> '{WORKER_LOST}'))
        AND (rate_key IS NULL OR :side_by_side)
    ) AS together
"""


@lru_cache(maxsize=8)
def claim_statement(d: Dialect, only_look: bool = False) -> TextClause:
    """Return the statement that claims the first runs that may begin, and parks those that may not.

    1. ``look`` reads the first ready runs, the *front*, including runs that this claim may not
       take. If enough of them may be taken, or if there are no others, only they are used.
    2. Otherwise the front is not used: ``grp`` steps through each task, queue and priority that has
       runs, and ``of_groups`` reads the next runs of all these groups.
    3. ``locked`` locks these runs. In the front, it skips any number of blocked rows. Of the
       groups, it tries only the few runs that come first.
    4. ``placed`` assigns the free shares of each key to the key's runs, in order. Blocked runs get
       shares, too, since most of them are being taken by another claim. In strict order, only the
       first run gets a share.
    5. ``takes`` has the first runs that may begin. A retry or a last attempt is claimed alone: if
       one comes first, the claim takes only that run, or nothing while a run that the worker holds
       has no outcome yet. If a first attempt comes first, the claim takes several first attempts.
       So a run that kills the process costs its neighbors one attempt at most, and never their
       last. A run with a rate is claimed alone, too: its claim uses up a start of its rate, so it
       must not wait for others to end. If the runs run side by side, retries and runs with a rate
       are taken together with others.
    6. ``parks`` has the runs ``behind`` others in strict order, and those whose key is full. A run
       is parked only behind a run whose end will open it. So if a run gets a share of a key and is
       not taken, no run of that key is parked as ``keys``. See `gate`.

    On PostgreSQL, one more row has the ids of the parked runs, and of the blocked runs that the
    next claim is to skip: those that leave another run of their key without a share, or all of them
    if the claim locked fewer runs than its limit.

    If two claims give the same share of a key to different runs, the unique index refuses the later
    one with a unique violation. `Bookkeeping.call` repeats that claim's whole transaction, which
    then sees that the share is taken.

    The CTEs must be materialized: otherwise the database may run a subquery with LIMIT more than
    once, and update more rows than the limit.

    :param only_look: claim nothing, and return the facts about the first run.
    """
    claimable_here, looked = claimable(d), ":looked"
    enough = f"count(*) < {looked} + {WINDOW} OR count(claimable) >= {looked} + {SPARE}"
    together = f", {_TOGETHER}" if d.one_writer else ""
    not_taken = "key IS NOT NULL AND id NOT IN (SELECT id FROM takes)"
    untaken = f"SELECT key FROM placed WHERE {_MAY_BEGIN} AND {not_taken}"
    return text(f"""
    WITH RECURSIVE
    look AS MATERIALIZED (
        SELECT {_READ} {together}, CASE WHEN {claimable_here} THEN 1 END AS claimable
        FROM job_runs WHERE {READY} ORDER BY {_ORDER} LIMIT {looked} + {WINDOW}
    ),
    enough AS MATERIALIZED (SELECT {enough} AS yes FROM look),
    grp(job_type, queue, priority) AS ({_groups(d)}),
    of_groups(id, key, most, strict, priority, run_at) AS MATERIALIZED ({_of_groups(d, looked)}),
    locked AS MATERIALIZED ({_lock(d, claimable_here, looked)}),
    placed AS MATERIALIZED ({_placed(d)}),
    candidate AS MATERIALIZED (
        SELECT id, share, together, row_number() OVER (ORDER BY {_ORDER}) AS nth
        FROM placed WHERE locked = 1 AND {_MAY_BEGIN} ORDER BY {_ORDER} LIMIT :limit
    ),
    takes AS MATERIALIZED (
        SELECT id, NULLIF(share, 0) AS share FROM candidate
        WHERE CASE WHEN (:side_by_side AND NOT :idle)
                       OR (SELECT together FROM candidate WHERE nth = 1)
                   THEN together ELSE :idle AND nth = 1 END
    ),
    parks AS MATERIALIZED (
        SELECT id, CASE WHEN behind THEN 'order' ELSE 'keys' END AS gate FROM placed
        WHERE locked = 1 AND NOT {_MAY_BEGIN} AND (behind OR key NOT IN ({untaken}))
    )
    {_look(d) if only_look else _take(d)}
    """)


#: The condition that a row of ``placed`` has a share, or needs none.
_MAY_BEGIN = "share <= most"


def _lock(d: Dialect, claimable_here: str, looked: str) -> str:
    """Return the SELECT that locks the runs, or on SQLite, which has no row locks, reads them."""
    read = f"SELECT {_READ}, {_TOGETHER} FROM job_runs"
    front = f"SELECT {_RUN}, together FROM look WHERE claimable = 1 AND (SELECT yes FROM enough)"
    if not d.one_writer:
        front = f"""
            {read} WHERE {READY} AND {claimable_here} AND (SELECT yes FROM enough)
            ORDER BY {_ORDER} LIMIT {looked} {d.skip_locked}
        """
    # `IS TRUE` hides the conditions from the planner. Otherwise it might search an index for them,
    # instead of looking up the few runs by id.
    is_still_due = f"({READY} AND run_at <= {d.clock}) IS TRUE {d.skip_locked}"
    others = f"{read} WHERE {d.any_of('id', 'SELECT id FROM of_groups')} AND {is_still_due}"
    return f"SELECT * FROM ({front}) AS front UNION ALL SELECT * FROM ({others}) AS others"


def _placed(d: Dialect) -> str:
    """Return the SELECT that numbers the runs of each key, and gives each place its share.

    If no share is free, the share is a number above ``most``. A run without a key gets the share 0.
    """
    seen = "SELECT *, 1 AS locked FROM locked"
    if not d.one_writer:
        not_locked = "id NOT IN (SELECT id FROM locked)"
        place = "-CAST(priority AS bigint), run_at, id"
        last = f"SELECT {place} FROM locked ORDER BY priority, run_at DESC, id DESC LIMIT 1"
        # The query that locks the front stops after ``looked`` runs. It has not tried to lock the
        # rows after them, so these may be free.
        was_tried = f"((SELECT count(*) FROM locked) < :looked OR ({place}) < ({last}))"
        seen += f"""
            UNION ALL SELECT {_RUN}, NULL, 0 FROM look
            WHERE claimable = 1 AND key IS NOT NULL AND (SELECT yes FROM enough) AND {not_locked}
                AND {was_tried}
            UNION ALL SELECT *, NULL, 0 FROM of_groups WHERE {not_locked}
        """
    return f"""
        SELECT *, CASE WHEN key IS NULL THEN 0 WHEN behind OR place > most THEN most + 1
            ELSE {free_share("run.key", "run.place")} END AS share
        FROM (
            SELECT *, row_number() OVER (PARTITION BY key, behind ORDER BY {_ORDER}) AS place
            FROM (
                SELECT *, NOT {comes_first("run", "run.key")} AS behind FROM ({seen}) AS run
            ) AS run
        ) AS run
    """


def _look(d: Dialect) -> str:
    """Return the last part of a statement that takes nothing."""
    is_taken = d.any_of("id", "SELECT id FROM takes")
    return f"SELECT job_type, attempts + 1, max_attempts, error_type FROM job_runs WHERE {is_taken}"


def _take(d: Dialect) -> str:
    """Return the last part, which takes the runs of ``takes``, and parks those of ``parks``.

    SQLite returns a row for every taken or parked run. PostgreSQL returns a row for every taken
    run, and one more with the ids of the parked runs, and of the blocked runs to skip next time.
    """
    if d.one_writer:
        return _take_in_one(d)
    values = assigned({**claimed(d), "concurrency_share": "takes.share"})
    ids = "SELECT string_agg(CAST(id AS text), ',') FROM"
    holds_up = f"SELECT key FROM placed WHERE locked = 1 AND NOT behind AND NOT {_MAY_BEGIN}"
    return f"""
    , parked AS (
        UPDATE job_runs SET gate = parks.gate FROM parks WHERE {_same_id(d, "job_runs", "parks")}
        RETURNING job_runs.id
    ), claimed AS (
        UPDATE job_runs SET {values}
        FROM takes WHERE {_same_id(d, "job_runs", "takes")}
        RETURNING {returned(d)}
    )
    SELECT *, NULL AS parked, NULL AS blocked FROM claimed
    UNION ALL
    SELECT {", ".join("NULL" for _ in CLAIMED)}, parked, blocked FROM (
        SELECT ({ids} parked) AS parked, (
            {ids} placed
            WHERE locked = 0 AND (key IN ({holds_up}) OR (SELECT count(*) FROM locked) < :limit)
        ) AS blocked
    ) AS others WHERE parked IS NOT NULL OR blocked IS NOT NULL
    """


def _take_in_one(d: Dialect) -> str:
    values = {
        name: f"CASE WHEN chosen.gate IS NULL THEN {value} ELSE job_runs.{name} END"
        for name, value in claimed(d).items()
    }
    return f"""
    , chosen AS MATERIALIZED (
        SELECT id, share, NULL AS gate FROM takes UNION ALL SELECT id, NULL, gate FROM parks
    )
    UPDATE job_runs SET gate = chosen.gate, concurrency_share = chosen.share, {assigned(values)}
    FROM chosen WHERE {_same_id(d, "job_runs", "chosen")}
    RETURNING {returned(d)}, CASE WHEN job_runs.status <> 'running' THEN job_runs.id END AS parked,
        NULL AS blocked
    """


def _groups(d: Dialect) -> str:
    """Return the SELECT that steps through each task, queue and priority that has runs.

    For every task, it begins with an empty group that sorts before all real ones.
    """
    # With ">" and a plain `grp.priority`, SQLite would search the index by the queue alone, and so
    # read the whole group that it has just left.
    # On SQLite, an odd row may have a text as its priority. There is no next priority then, so
    # continue with the next queue.
    queue_suffix = "CASE WHEN grp.priority + 0 = grp.priority THEN '' ELSE ' ' END"
    is_after = f"""(queue, priority) >=
        (grp.queue || {queue_suffix if d.one_writer else "''"}, grp.priority + 1)"""
    is_next = f"""
        FROM job_runs WHERE {READY_GROUPS} AND job_type = grp.job_type AND {is_after}
        ORDER BY {_GROUPED} LIMIT 1
    """
    return f"""
        SELECT task, CAST('' AS varchar), {-(2**31)} FROM {d.each("tasks", "task")}
        WHERE {unpaused("task", "task")} AND NOT (SELECT yes FROM enough)
        UNION ALL
        SELECT grp.job_type, r.queue, r.priority FROM grp {d.join_each("queue, priority", is_next)}
    """


def _of_groups(d: Dialect, looked: str) -> str:
    """Return the SELECT of the next due runs of all groups."""
    first = f"""
        FROM job_runs
        WHERE {READY_GROUPS} AND job_type = grp.job_type AND queue = grp.queue
            AND priority = grp.priority AND run_at <= {d.now} AND attempts < max_attempts
            {_not_blocked(d)}
        ORDER BY {_GROUPED} LIMIT {looked} + {SPARE}
    """
    columns = "concurrency_key, concurrency_limit, strict, priority, run_at"
    return f"""
        SELECT r.id, r.concurrency_key, COALESCE(r.concurrency_limit, 0), r.strict, r.priority,
            r.run_at
        FROM (SELECT * FROM grp WHERE {of_queues(d)}) AS grp {d.join_each(columns, first)}
        ORDER BY r.priority DESC, r.run_at, r.id LIMIT {looked} + {SPARE}
    """


def _same_id(d: Dialect, run: str, cte: str) -> str:
    """Return the condition that joins the row *run* to its row in *cte*, a CTE with few rows.

    On PostgreSQL it forces a look-up of each run by its id; see `db.statements`.
    """
    by_id = d.any_of(f"{run}.id", f"SELECT id FROM {cte}")
    return f"{run}.id = {cte}.id" if d.one_writer else f"{by_id} AND {run}.id = {cte}.id"


#: The columns that `claimable` names.
CLAIMABLE = "id, job_type, queue, run_at, attempts, max_attempts"


def claimable(d: Dialect) -> str:
    """Return the conditions of claimable runs besides those of their partial index."""
    return (
        f"run_at <= {d.clock} AND attempts < max_attempts"
        f" AND {d.one_of('job_type', 'tasks')} AND {unpaused('job_type', 'task')}"
        f" AND {of_queues(d)} {_not_blocked(d)}"
    )


def _not_blocked(d: Dialect) -> str:
    """Return the condition that earlier claims of this worker did not find the run blocked.

    A query cannot see that a row is blocked, unless it tries to lock it. Locking all rows that may
    be chosen would hide them from other workers.
    """
    return "AND NOT id = ANY(CAST(:blocked AS bigint[]))" if d.skip_locked else ""


def of_queues(d: Dialect) -> str:
    """Return the condition that the queue is not paused, and is one of ``:queues``.

    If ``:but_queues`` is true, the queue must be none of them.
    """
    served = f"(({d.one_of('queue', 'queues')}) <> :but_queues)"
    return f"{served} AND {unpaused('queue', 'queue')}"


def unpaused(name: str, kind: PauseKind) -> str:
    """Return the condition that the task or queue *name* (SQL) is not paused."""
    return f"{name} NOT IN (SELECT name FROM job_pauses WHERE kind = '{kind}')"


def free_share(key: str, place: str = "1") -> str:
    """Return SQL for the n-th free share of *key*, which may be above the key's limit.

    Below a taken share, the number of free shares is the taken share's number minus its rank among
    the taken shares. If that is less than n, the taken share is below the n-th free share. So the
    n-th free share is n plus the number of such taken shares.

    :param place: SQL for n.
    """
    return f"""
    (SELECT {place} + count(*) FROM (
        SELECT concurrency_share - row_number() OVER (ORDER BY concurrency_share) AS free
        FROM job_runs WHERE concurrency_key = {key} AND concurrency_share IS NOT NULL
     ) AS taken WHERE free < {place})
    """
