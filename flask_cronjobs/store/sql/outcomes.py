"""The SQL that records outcomes: `recorded` for PostgreSQL, the others for SQLite."""

from __future__ import annotations

from ...models.conditions import RUNNING
from ..dialect import Dialect

#: The columns of an outcome, and their types in PostgreSQL.
OUTCOME_COLUMNS = {
    "id": "bigint",
    **dict.fromkeys(("token", "result"), "text"),
    **dict.fromkeys(("kind", "error", "error_type", "stack"), "text"),
    **dict.fromkeys(("attempt", "reclaimed"), "integer"),
    "delay": "double precision",
    "until": "timestamptz",
}
#: Those that a plain success has: it recorded no error.
PLAIN_COLUMNS = ("id", "token", "result")

# A run whose cancel was requested while it ran is cancelled instead of retried.
_STOPPED = """
    (given.kind IN ('failed', 'released', 'snoozed') AND job_runs.cancel_requested_at IS NOT NULL)
"""
#: The attempt is not counted.
_GIVEN_BACK = "given.kind IN ('released', 'snoozed')"

_FAILURE = """
    INSERT INTO job_failures
        (run_id, attempt, worker, started_at, failed_at, error_type, error, stack)
"""


def ended(run: str = "") -> str:
    """Return SQL for the column ``turn`` of a run that ends: in a strict order, the next's comes.

    :param run: the table's name with a dot, where others are at hand.
    """
    return f"CASE WHEN {run}on_dead IS NOT NULL THEN 'over' END"


def _values(d: Dialect) -> str:
    ends = f"given.kind IN ('succeeded', 'dead', 'cancelled') OR {_STOPPED}"
    later = d.clock_after("given.delay")
    return f"""
        status = CASE WHEN {_STOPPED} THEN 'cancelled'
                      WHEN NOT {_GIVEN_BACK} THEN given.kind
                      WHEN job_runs.attempts > 1 THEN 'failed' ELSE 'queued' END,
        attempts = job_runs.attempts - CASE WHEN {_GIVEN_BACK} THEN 1 ELSE 0 END,
        snoozes = job_runs.snoozes + CASE WHEN given.kind = 'snoozed' THEN 1 ELSE 0 END,
        run_at = CASE WHEN given.kind = 'failed' THEN {later}
                      WHEN given.kind = 'snoozed' THEN {d.latest("given.until", later)}
                      ELSE job_runs.run_at END,
        finished_at = CASE WHEN {ends} THEN {d.clock} END,
        turn = CASE WHEN {ends} THEN {ended("job_runs.")} ELSE job_runs.turn END,
        failed_at = CASE WHEN given.kind IN ('failed', 'dead') THEN {d.clock}
                         ELSE job_runs.failed_at END,
        last_error = CASE WHEN given.kind = 'released' THEN job_runs.last_error
                          ELSE given.error END,
        error_type = CASE WHEN given.kind = 'released' THEN job_runs.error_type
                          ELSE given.error_type END,
        result = {d.json("given.result")},
        locked_by = NULL, locked_until = NULL, concurrency_share = NULL, updated_at = {d.clock}
    """


def _values_of_success(d: Dialect) -> str:
    return f"""
        status = 'succeeded', finished_at = {d.clock}, last_error = NULL, error_type = NULL,
        turn = {ended("job_runs.")}, result = {d.json("given.result")},
        locked_by = NULL, locked_until = NULL, concurrency_share = NULL, updated_at = {d.clock}
    """


def held(d: Dialect, given: str) -> str:
    """Return CTEs that end in ``held``: the ids of those runs in *given* that can be written now.

    A row that another transaction has locked, such as an operator's in psql, must not hold up the
    others. So PostgreSQL passes over it; the caller finds by `watch` that it is held still.

    ``IS TRUE`` hides the status from the planner: until a vacuum, the lease index has an entry for
    each run of the past minutes.

    :param given: SQL for a table with ids and tokens; ``given`` is its name from here on.
    """
    if not d.skip_locked:
        return f"given AS MATERIALIZED {given}, held AS MATERIALIZED (SELECT id FROM given)"
    return f"""
    given AS MATERIALIZED {given},
    held AS MATERIALIZED (
        SELECT id FROM job_runs
        WHERE {d.any_of("id", "SELECT id FROM given")} AND ({RUNNING}) IS TRUE
            AND {d.any_of("locked_by", "SELECT DISTINCT token FROM given")}
        {d.skip_locked}
    )
    """


def is_held(d: Dialect) -> str:
    """Return the conditions for a row of ``job_runs`` that goes with a row of ``given``."""
    return f"""
        {d.any_of("job_runs.id", "SELECT id FROM held")} AND job_runs.id = given.id
        AND job_runs.locked_by = given.token AND (job_runs.{RUNNING}) IS TRUE
    """


def recorded(d: Dialect, plain: bool) -> str:
    """Return PostgreSQL's CTEs that end in ``recorded``: the runs whose outcomes were recorded.

    Each column of the outcomes is an array. One that is empty stands for the column's usual value:
    ``:usual_token``, a success, or NULL.

    :param plain: whether all outcomes are plain successes.
    """
    columns = {name: OUTCOME_COLUMNS[name] for name in PLAIN_COLUMNS} if plain else OUTCOME_COLUMNS
    arrays = ", ".join(f"CAST(:{name}s AS {kind}[])" for name, kind in columns.items())
    usual = {"token": "COALESCE(token, :usual_token)", "kind": "COALESCE(kind, 'succeeded')"}
    given = ", ".join(f"{usual.get(name, name)} AS {name}" for name in columns)
    table = f"(SELECT {given} FROM unnest({arrays}) AS t({', '.join(columns)}))"
    expired = "" if plain else f"AND {_expired_if_reclaimed(d)}"
    more = ", ".join(f"given.{name}" for name in columns)
    failures = "" if plain else f", failures AS ({_failures_of_recorded(d)})"
    return f"""
    {held(d, table)},
    recorded AS (
        UPDATE job_runs SET {_values_of_success(d) if plain else _values(d)}
        FROM given WHERE {is_held(d)} {expired}
        RETURNING job_runs.status, job_runs.started_at, {more}
    )
    {failures}
    """


def _failures_of_recorded(d: Dialect) -> str:
    return f"""
    {_FAILURE}
    SELECT id, attempt, token, started_at, {d.clock}, error_type, error, stack
    FROM recorded WHERE kind IN ('failed', 'dead')
    ON CONFLICT DO NOTHING
    """


def _expired_if_reclaimed(d: Dialect) -> str:
    return f"(COALESCE(given.reclaimed, 0) = 0 OR job_runs.locked_until <= {d.clock})"


def record(d: Dialect) -> str:
    """Return SQLite's UPDATE that records outcomes."""
    return f"""
    UPDATE job_runs SET {_values(d)}
    FROM {d.table("outcomes", **OUTCOME_COLUMNS)} AS given
    WHERE job_runs.id = given.id AND job_runs.locked_by = given.token
        AND (job_runs.{RUNNING}) IS TRUE AND {_expired_if_reclaimed(d)}
    """


def failures(d: Dialect) -> str:
    """Return SQLite's INSERT of failures: its RETURNING knows no other table, so join again."""
    return f"""
    {_FAILURE}
    SELECT o.id, o.attempt, o.token, r.started_at, {d.now}, o.error_type, o.error, o.stack
    FROM {d.table("outcomes", **OUTCOME_COLUMNS)} AS o JOIN job_runs r ON r.id = o.id
    WHERE o.kind IN ('failed', 'dead') AND o.id IN (SELECT value FROM json_each(:recorded))
    ON CONFLICT DO NOTHING
    """
