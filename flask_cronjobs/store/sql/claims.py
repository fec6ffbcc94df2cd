"""The statements of `Claims`."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import TextClause, text

from ...models.conditions import HOLDS_KEY, OPEN_BATCH, RUNNABLE, RUNNING, SPENT
from ..dialect import Dialect
from .exchange import NO_CLAIM
from .outcomes import ended, failures, held, is_held, record


class ClaimStatements(NamedTuple):
    """The statements for one dialect, beside those of `exchange`.

    ``record`` and ``failures`` are SQLite's: PostgreSQL records in the exchange.
    """

    record: TextClause
    failures: TextClause
    renew: TextClause
    watch: TextClause
    progress: TextClause
    claimed_under: TextClause
    already_recorded: TextClause
    restore_keys: TextClause
    expired: TextClause
    give_up_exhausted: TextClause


def _given(d: Dialect) -> str:
    return d.table("held", id="bigint", token="text")


def _renew(d: Dialect) -> str:
    return f"""
    WITH {held(d, _given(d))}
    UPDATE job_runs SET locked_until = {d.clock_after(":lease")}
    FROM given WHERE {is_held(d)}
    RETURNING job_runs.id, job_runs.cancel_requested_at
    """


def _watch(d: Dialect) -> str:
    return f"""
    WITH given AS MATERIALIZED {_given(d)}
    SELECT r.id, r.cancel_requested_at FROM job_runs r JOIN given ON r.id = given.id
    WHERE {d.any_of("r.id", "SELECT id FROM given")}
        AND r.locked_by = given.token AND (r.{RUNNING}) IS TRUE
    """


def _already_recorded(d: Dialect) -> str:
    outcomes = d.table("outcomes", id="bigint", kind="text", attempt="integer")
    return f"""
    WITH o AS MATERIALIZED {outcomes}
    SELECT r.id, r.status AS stored FROM job_runs r JOIN o ON r.id = o.id
    WHERE {d.any_of("r.id", "SELECT id FROM o")} AND (
        (r.status = o.kind AND r.attempts = o.attempt)
        OR (o.kind = 'failed' AND r.status = 'cancelled' AND r.attempts = o.attempt)
        OR (o.kind IN ('released', 'snoozed') AND r.attempts = o.attempt - 1)
    )
    """


def _progress(d: Dialect) -> str:
    held = f"id = :id AND locked_by = :token AND ({RUNNING}) IS TRUE"
    return f"""
    UPDATE job_runs SET progress = :fraction, progress_message = :message
    WHERE id = (SELECT id FROM job_runs WHERE {held} {d.skip_locked}) AND {held} RETURNING id
    """


_CLAIMED_UNDER = f"""
    SELECT id, job_type, attempts FROM job_runs WHERE {RUNNING} AND locked_by = :token
"""


def _restore_keys(d: Dialect) -> str:
    """Return the statement that gives runs their keys back that were claimed and did not begin.

    Not if another run has the key by now; and of several that want it back, the last gets it.
    """
    given = "SELECT id FROM given"
    # LIMIT keeps PostgreSQL from a join with all keys: it looks up one for each run.
    waits = f"{RUNNABLE} AND unique_while = 'waiting' AND started_at IS NOT NULL"
    never_begun = f"{waits} AND attempts = 0 AND snoozes = 0"
    free = f"""
        SELECT id FROM job_runs r WHERE {d.any_of("id", given)} AND {never_begun}
            AND (
                SELECT id FROM job_runs
                WHERE idempotency_key = r.idempotency_key AND {HOLDS_KEY} LIMIT 1
            ) IS NULL AND (
                SELECT id FROM job_runs WHERE {d.any_of("id", given)} AND {never_begun}
                    AND idempotency_key = r.idempotency_key AND id > r.id LIMIT 1
            ) IS NULL {d.skip_locked_of("r")}
    """
    return f"""
    WITH given AS MATERIALIZED {_given(d)}
    UPDATE job_runs SET started_at = NULL, updated_at = {d.now} WHERE {d.any_of("id", free)}
    RETURNING id
    """


def _expired(d: Dialect) -> str:
    """Return the query for expired leases, one waiting run that has no attempt left, and one batch.

    The run is held by nobody, and the batch, which has not ended, has no task either. One look for
    all: most ticks find none of them.
    """
    of_batch = """
        id, CAST(NULL AS text), CAST(NULL AS text), CAST(NULL AS integer), CAST(NULL AS integer),
        CAST(NULL AS bigint)
    """
    columns = "id, locked_by, job_type, attempts, max_attempts, definition_id"
    return f"""
    SELECT * FROM (
        SELECT {columns} FROM job_runs
        WHERE {RUNNING} AND locked_until <= {d.now} ORDER BY locked_until LIMIT :limit
    ) AS expired
    UNION ALL
    SELECT * FROM (SELECT {columns} FROM job_runs WHERE {SPENT} LIMIT 1) AS spent
    UNION ALL
    SELECT * FROM (
        SELECT {of_batch} FROM job_batches WHERE {OPEN_BATCH} ORDER BY id LIMIT 1
    ) AS unended
    """


def _give_up_exhausted(d: Dialect) -> str:
    # In no order: the primary key has one, too, but without the condition.
    spent = f"SELECT id FROM job_runs WHERE {SPENT} LIMIT :limit {d.skip_locked}"
    return f"""
    UPDATE job_runs SET status = 'dead', finished_at = {d.now}, updated_at = {d.now},
        turn = {ended()},
        last_error = 'no attempt is left: max_attempts is ' || max_attempts
            || COALESCE('. The last error: ' || last_error, ''),
        error_type = COALESCE(error_type, 'NoAttemptLeft')
    WHERE {d.any_of("id", spent)}
    RETURNING id, job_type, attempts, last_error, error_type
    """


@lru_cache(maxsize=2)
def claim_statements(d: Dialect) -> ClaimStatements:
    """Return the statements for one dialect."""
    return ClaimStatements(
        record=text(
            f"{record(d)} RETURNING job_runs.id AS id, {NO_CLAIM}, job_runs.status AS stored"
        ),
        failures=text(failures(d)),
        renew=text(_renew(d)),
        watch=text(_watch(d)),
        progress=text(_progress(d)),
        claimed_under=text(_CLAIMED_UNDER),
        already_recorded=text(_already_recorded(d)),
        restore_keys=text(_restore_keys(d)),
        expired=text(_expired(d)),
        give_up_exhausted=text(_give_up_exhausted(d)),
    )
