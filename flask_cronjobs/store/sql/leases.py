"""The statements of `HeldLeases` and `ExpiredLeases`."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import TextClause, text

from ...models.conditions import OPEN_BATCH, RUNNING, SPENT
from ..dialect import Dialect
from .outcomes import ended, held, is_held


class LeaseStatements(NamedTuple):
    """The statements for one dialect."""

    renew: TextClause
    watch: TextClause
    progress: TextClause
    expired: TextClause
    give_up_exhausted: TextClause


def given(d: Dialect) -> str:
    """Return the runs that a statement about held runs was given, as a table."""
    return d.table("held", id="bigint", token="text")


def _renew(d: Dialect) -> str:
    return f"""
    WITH {held(d, given(d))}
    UPDATE job_runs SET locked_until = {d.clock_after(":lease")}
    FROM given WHERE {is_held(d)}
    RETURNING job_runs.id, job_runs.cancel_requested_at
    """


def _watch(d: Dialect) -> str:
    return f"""
    WITH given AS MATERIALIZED {given(d)}
    SELECT r.id, r.cancel_requested_at FROM job_runs r JOIN given ON r.id = given.id
    WHERE {d.any_of("r.id", "SELECT id FROM given")}
        AND r.locked_by = given.token AND (r.{RUNNING}) IS TRUE
    """


def _progress(d: Dialect) -> str:
    held = f"id = :id AND locked_by = :token AND ({RUNNING}) IS TRUE"
    return f"""
    UPDATE job_runs SET progress = :fraction, progress_message = :message
    WHERE id = (SELECT id FROM job_runs WHERE {held} {d.skip_locked}) AND {held} RETURNING id
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
def lease_statements(d: Dialect) -> LeaseStatements:
    """Return the statements for one dialect."""
    return LeaseStatements(
        renew=text(_renew(d)),
        watch=text(_watch(d)),
        progress=text(_progress(d)),
        expired=text(_expired(d)),
        give_up_exhausted=text(_give_up_exhausted(d)),
    )
