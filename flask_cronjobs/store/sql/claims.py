"""The statements of `Claims`."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import TextClause, text

from ...models.conditions import HOLDS_KEY, RUNNABLE, RUNNING
from ..dialect import Dialect
from ..leases import given
from .exchange import NO_CLAIM
from .outcomes import failures, record


class ClaimStatements(NamedTuple):
    """The statements for one dialect, beside those of `exchange`.

    ``record`` and ``failures`` are SQLite's: PostgreSQL records in the exchange.
    """

    record: TextClause
    failures: TextClause
    claimed_under: TextClause
    already_recorded: TextClause
    restore_keys: TextClause


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


_CLAIMED_UNDER = f"""
    SELECT id, job_type, attempts FROM job_runs WHERE {RUNNING} AND locked_by = :token
"""


def _restore_keys(d: Dialect) -> str:
    """Return the statement that gives runs their keys back that were claimed and did not begin.

    Not if another run has the key by now; and of several that want it back, the last gets it.
    """
    ids = "SELECT id FROM given"
    # LIMIT keeps PostgreSQL from a join with all keys: it looks up one for each run.
    waits = f"{RUNNABLE} AND unique_while = 'waiting' AND started_at IS NOT NULL"
    never_begun = f"{waits} AND attempts = 0 AND snoozes = 0"
    free = f"""
        SELECT id FROM job_runs r WHERE {d.any_of("id", ids)} AND {never_begun}
            AND (
                SELECT id FROM job_runs
                WHERE idempotency_key = r.idempotency_key AND {HOLDS_KEY} LIMIT 1
            ) IS NULL AND (
                SELECT id FROM job_runs WHERE {d.any_of("id", ids)} AND {never_begun}
                    AND idempotency_key = r.idempotency_key AND id > r.id LIMIT 1
            ) IS NULL {d.skip_locked_of("r")}
    """
    return f"""
    WITH given AS MATERIALIZED {given(d)}
    UPDATE job_runs SET started_at = NULL, updated_at = {d.now} WHERE {d.any_of("id", free)}
    RETURNING id
    """


@lru_cache(maxsize=2)
def claim_statements(d: Dialect) -> ClaimStatements:
    """Return the statements for one dialect."""
    return ClaimStatements(
        record=text(
            f"{record(d)} RETURNING job_runs.id AS id, {NO_CLAIM}, job_runs.status AS stored"
        ),
        failures=text(failures(d)),
        claimed_under=text(_CLAIMED_UNDER),
        already_recorded=text(_already_recorded(d)),
        restore_keys=text(_restore_keys(d)),
    )
