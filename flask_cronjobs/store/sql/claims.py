"""The statements of `Claims`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import TextClause, text

from ...models.tables import RUNNING, SPENT
from ..dialect import Dialect
from .candidates import free, keyed

#: Returned in place of a status: too few runs in the front of the queue may be claimed.
FAR = "far"


@dataclass(frozen=True)
class ClaimStatements:
    """The statements for one dialect.

    PostgreSQL uses ``exchange``, and ``claim`` after it only if the exchange returned `FAR`: a
    search beyond the front of the queue takes longer to plan than all the rest. SQLite, which keeps
    its plans, uses the steps ``record``, ``failures`` and ``claim``.
    """

    exchange: TextClause
    record: TextClause
    failures: TextClause
    claim: TextClause
    first: TextClause
    renew: TextClause
    watch: TextClause
    progress: TextClause
    claimed_under: TextClause
    already_recorded: TextClause
    expired: TextClause
    give_up_exhausted: TextClause


_OUTCOME_COLUMNS = {
    **dict.fromkeys(("token", "kind", "error", "error_type", "stack", "result"), "text"),
    **dict.fromkeys(("attempt", "reclaimed"), "integer"),
    "id": "bigint",
    "delay": "double precision",
}
# A run whose cancel was requested while it ran is cancelled instead of retried.
_STOPPED = "(o.kind IN ('failed', 'released') AND job_runs.cancel_requested_at IS NOT NULL)"


def _held_in(d: Dialect, table: str) -> str:
    """Return SQL for those rows of *table*, with ids and tokens, whose runs can be written now.

    A row that another transaction has locked, such as an operator's in psql, must not hold up the
    others. So PostgreSQL passes over it; the caller finds by `_watch` that it is held still.
    """
    if not d.skip_locked:
        return table
    return f"""(
        SELECT given.* FROM {table} AS given JOIN job_runs r ON r.id = given.id
        WHERE r.locked_by = given.token AND (r.{RUNNING}) IS TRUE
        {d.skip_locked_of("r")}
    )"""


def _record(d: Dialect) -> str:
    """Return the UPDATE that finalizes runs.

    ``IS TRUE`` hides the status from the planner. Otherwise it reads the lease index instead of the
    ids, and until a vacuum that index has an entry for each run of the past minutes.
    """
    return f"""
    UPDATE job_runs SET
        status = CASE WHEN {_STOPPED} THEN 'cancelled'
                      WHEN o.kind <> 'released' THEN o.kind
                      WHEN job_runs.attempts > 1 THEN 'failed' ELSE 'queued' END,
        attempts = job_runs.attempts - CASE WHEN o.kind = 'released' THEN 1 ELSE 0 END,
        run_at = CASE WHEN o.kind = 'failed' THEN {d.later("o.delay")} ELSE job_runs.run_at END,
        finished_at = CASE WHEN o.kind IN ('succeeded', 'dead', 'cancelled') OR {_STOPPED}
                           THEN {d.now} END,
        failed_at = CASE WHEN o.kind IN ('failed', 'dead') THEN {d.now}
                         ELSE job_runs.failed_at END,
        last_error = CASE WHEN o.kind = 'released' THEN job_runs.last_error ELSE o.error END,
        error_type = CASE WHEN o.kind = 'released' THEN job_runs.error_type ELSE o.error_type END,
        result = {d.json("o.result")},
        locked_by = NULL, locked_until = NULL, concurrency_share = NULL, updated_at = {d.now}
    FROM {_held_in(d, d.table("outcomes", **_OUTCOME_COLUMNS))} AS o
    WHERE job_runs.id = o.id AND job_runs.locked_by = o.token AND (job_runs.{RUNNING}) IS TRUE
        AND (COALESCE(o.reclaimed, 0) = 0 OR job_runs.locked_until <= {d.now})
    """


_FAILURE = """
    INSERT INTO job_failures
        (run_id, attempt, worker, started_at, failed_at, error_type, error, stack)
"""


def _failures_of_recorded(d: Dialect) -> str:
    """Return PostgreSQL's INSERT of failures: ``recorded`` returned all that their rows need."""
    return f"""
    {_FAILURE}
    SELECT id, attempt, token, started_at, {d.now}, error_type, error, stack
    FROM recorded WHERE kind IN ('failed', 'dead')
    ON CONFLICT DO NOTHING
    """


def _failures(d: Dialect) -> str:
    """Return SQLite's INSERT of failures: its RETURNING knows no other table, so join again."""
    return f"""
    {_FAILURE}
    SELECT o.id, o.attempt, o.token, r.started_at, {d.now}, o.error_type, o.error, o.stack
    FROM {d.table("outcomes", **_OUTCOME_COLUMNS)} AS o JOIN job_runs r ON r.id = o.id
    WHERE o.kind IN ('failed', 'dead') AND o.id IN (SELECT value FROM json_each(:recorded))
    ON CONFLICT DO NOTHING
    """


def _candidates(d: Dialect, far: bool) -> str:
    """Return CTEs that end in ``chosen``: the rows that a claim takes.

    A run on a later or its last attempt is claimed alone: if one is first in order, the claim takes
    only that, and only if the worker holds nothing else. Otherwise the claim takes first attempts,
    several at once. So a run that kills the process costs its neighbors one attempt at most, and
    never their last. Runs that are at work side by side are another matter: see `ClaimRequest`.

    :param far: whether to look beyond the front of the queue. If not, and the front has too few
        runs that may be taken, nothing is chosen, and ``is_near`` is false.
    """
    return f"""
    {free(d, far)}, {keyed(d, far)},
    is_near AS MATERIALIZED (
        SELECT (SELECT yes FROM free_is_near) AND (SELECT yes FROM keyed_is_near) AS yes
    ),
    candidate AS MATERIALIZED (
        SELECT id, in_company, share,
            row_number() OVER (ORDER BY priority DESC, run_at, id) AS place
        FROM (SELECT * FROM free UNION ALL SELECT * FROM keyed) AS either
        ORDER BY priority DESC, run_at, id LIMIT :limit
    ),
    chosen AS MATERIALIZED (
        SELECT id, share FROM candidate
        WHERE CASE WHEN (:side_by_side AND NOT :alone)
                       OR (SELECT in_company FROM candidate WHERE place = 1)
                   THEN in_company ELSE :alone AND place = 1 END
            {"" if far else "AND (SELECT yes FROM is_near)"}
    )
    """


_CLAIMED = (
    *("id", "job_type", "payload", "attempts", "max_attempts", "scheduled_for"),
    *("idempotency_key", "definition_id", "concurrency_key", "priority", "run_at", "error_type"),
)
_NO_CLAIM = ", ".join(f"NULL AS {name}" for name in _CLAIMED[1:])


def _claim(d: Dialect) -> str:
    # These two are only for sorting, and one odd value must not make the rows unsortable.
    sorting = {
        "priority": "CAST(job_runs.priority AS integer)",
        "run_at": d.sortable("job_runs.run_at"),
    }
    returned = ", ".join(f"{sorting.get(name, f'job_runs.{name}')} AS {name}" for name in _CLAIMED)
    return f"""
    UPDATE job_runs SET
        status = 'running', attempts = job_runs.attempts + 1,
        locked_by = :token, locked_until = {d.later(":lease")},
        concurrency_share = chosen.share, started_at = {d.now}, updated_at = {d.now},
        progress = NULL, progress_message = NULL
    FROM chosen WHERE job_runs.id = chosen.id
    RETURNING {returned}, NULL AS stored
    """


def _first(d: Dialect) -> str:
    """Return the query for the run that an idle worker would claim first; it claims nothing."""
    return f"""
    WITH RECURSIVE {_candidates(d, far=True)}
    SELECT job_type, attempts + 1 AS attempts, max_attempts, error_type FROM job_runs
    WHERE id IN (SELECT id FROM chosen)
    """


def _exchange(d: Dialect) -> str:
    return f"""
    WITH RECURSIVE
    recorded AS (
        {_record(d)}
        RETURNING job_runs.id, job_runs.status, job_runs.started_at,
            o.kind, o.attempt, o.token, o.error_type, o.error, o.stack
    ),
    failures AS ({_failures_of_recorded(d)}),
    {_candidates(d, far=False)},
    claimed AS ({_claim(d)})
    SELECT {", ".join(_CLAIMED)}, NULL AS stored FROM claimed
    UNION ALL
    SELECT id, {_NO_CLAIM}, status AS stored FROM recorded
    UNION ALL
    SELECT NULL AS id, {_NO_CLAIM}, '{FAR}' AS stored FROM is_near WHERE NOT yes
    """


def _held(d: Dialect) -> str:
    return d.table("held", id="bigint", token="text")


def _renew(d: Dialect) -> str:
    return f"""
    UPDATE job_runs SET locked_until = {d.later(":lease")} FROM {_held_in(d, _held(d))} AS h
    WHERE job_runs.id = h.id AND job_runs.locked_by = h.token AND job_runs.{RUNNING}
    RETURNING job_runs.id, job_runs.cancel_requested_at
    """


def _watch(d: Dialect) -> str:
    return f"""
    SELECT r.id, r.cancel_requested_at FROM job_runs r JOIN {_held(d)} AS h ON r.id = h.id
    WHERE r.locked_by = h.token AND r.{RUNNING}
    """


def _already_recorded(d: Dialect) -> str:
    outcomes = d.table("outcomes", id="bigint", kind="text", attempt="integer")
    return f"""
    SELECT r.id, r.status AS stored FROM job_runs r JOIN {outcomes} AS o ON r.id = o.id
    WHERE (r.status = o.kind AND r.attempts = o.attempt)
        OR (o.kind = 'failed' AND r.status = 'cancelled' AND r.attempts = o.attempt)
        OR (o.kind = 'released' AND r.attempts = o.attempt - 1)
    """


def _progress(d: Dialect) -> str:
    held = f"id = :id AND locked_by = :token AND {RUNNING}"
    return f"""
    UPDATE job_runs SET progress = :fraction, progress_message = :message
    WHERE id = (SELECT id FROM job_runs WHERE {held} {d.skip_locked}) AND {held} RETURNING id
    """


_CLAIMED_UNDER = f"""
    SELECT id, job_type, attempts FROM job_runs WHERE {RUNNING} AND locked_by = :token
"""


def _expired(d: Dialect) -> str:
    """Return the query for expired leases, and for one waiting run that has no attempt left.

    The last is held by nobody. One look for both: most ticks find neither.
    """
    columns = "id, locked_by, job_type, attempts, max_attempts"
    return f"""
    SELECT * FROM (
        SELECT {columns} FROM job_runs
        WHERE {RUNNING} AND locked_until <= {d.now} ORDER BY locked_until LIMIT :limit
    ) AS expired
    UNION ALL
    SELECT * FROM (SELECT {columns} FROM job_runs WHERE {SPENT} LIMIT 1) AS spent
    """


def _give_up_exhausted(d: Dialect) -> str:
    return f"""
    UPDATE job_runs SET status = 'dead', finished_at = {d.now}, updated_at = {d.now},
        last_error = 'no attempt is left: max_attempts is ' || max_attempts
            || COALESCE('. The last error: ' || last_error, ''),
        error_type = COALESCE(error_type, 'NoAttemptLeft')
    WHERE id IN (SELECT id FROM job_runs WHERE {SPENT} ORDER BY id LIMIT :limit {d.skip_locked})
    RETURNING id, job_type, attempts, last_error, error_type
    """


@lru_cache(maxsize=2)
def claim_statements(d: Dialect) -> ClaimStatements:
    """Return the statements for one dialect."""
    return ClaimStatements(
        exchange=text(_exchange(d)),
        record=text(
            f"{_record(d)} RETURNING job_runs.id AS id, {_NO_CLAIM}, job_runs.status AS stored"
        ),
        failures=text(_failures(d)),
        claim=text(f"WITH RECURSIVE {_candidates(d, far=True)} {_claim(d)}"),
        first=text(_first(d)),
        renew=text(_renew(d)),
        watch=text(_watch(d)),
        progress=text(_progress(d)),
        claimed_under=text(_CLAIMED_UNDER),
        already_recorded=text(_already_recorded(d)),
        expired=text(_expired(d)),
        give_up_exhausted=text(_give_up_exhausted(d)),
    )
