"""Put right what was written while the database's clock was ahead.

Definitions count as considered up to a time that is yet to come, so none of their slots would run
before that; and a tick that began in the future would look like the last one all the while.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from .dialect import Dialect

#: How far a time may be ahead of the clock that is now, in seconds. It waits for so long at most.
TOLERANCE = 60.0


def is_ahead(d: Dialect) -> str:
    """Return SQL for: there is a tick or a definition from the future."""
    future = d.later(str(TOLERANCE))
    return f"""
        EXISTS (SELECT 1 FROM job_ticks WHERE started_at > {future})
        OR EXISTS (SELECT 1 FROM job_definitions WHERE considered_until > {future})
    """


def put_right(connection: Connection, d: Dialect) -> None:
    """Let ticks from the future have begun now, and definitions go on.

    They go on from the last tick before, so that no slot since then is lost. None is recorded a
    second time, since `uq_job_runs_slot` refuses its row.
    """
    future = d.later(str(TOLERANCE))
    last = f"""
        SELECT max(started_at) FROM job_ticks
        WHERE started_at <= {d.now} AND finished_at IS NOT NULL
    """
    free = f"SELECT id FROM job_definitions WHERE considered_until > {future} {d.skip_locked}"
    for statement in (
        f"""
        UPDATE job_definitions SET next_run_at = COALESCE(({last}), {d.now}),
            considered_until = COALESCE(({last}), {d.now}), updated_at = {d.now}
        WHERE {d.any_of("id", free)}
        """,
        f"""
        UPDATE job_ticks SET started_at = {d.now}, seen_at = {d.now},
            finished_at = CASE WHEN finished_at IS NOT NULL THEN {d.now} END
        WHERE started_at > {future}
        """,
    ):
        connection.execute(text(statement))
