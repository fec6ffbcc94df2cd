"""The SQL that records outcomes, failures and output, with its parameters.

`record_success` writes a success in the handler's own transaction, for ``atomic=True``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

from sqlalchemy import Connection, TextClause, text

from ..db.connection import Bookkeeping
from ..db.dialect import Dialect, dialect_of
from ..models.conditions import RUNNING, sql_list
from ..text import clean
from ..types import (
    FAILED_KINDS,
    JSON,
    MAX_OUTPUT_BYTES,
    RETURNED_KINDS,
    TERMINAL,
    Claim,
    Outcome,
    json_text,
)
from .columns import assigned, ended, rate_gate

#: The columns of an outcome, and their types in PostgreSQL.
OUTCOME_COLUMNS = {
    "id": "bigint",
    **dict.fromkeys(("token", "result"), "text"),
    **dict.fromkeys(("kind", "error", "error_type", "stack", "fingerprint"), "text"),
    **dict.fromkeys(("attempt", "reclaimed"), "integer"),
    "delay": "double precision",
    "until": "timestamptz",
}

_TERMINAL = f"given.kind IN {sql_list(TERMINAL)}"
_ASKED_TO_STOP = "job_runs.cancel_requested_at IS NOT NULL"
_OF_SUCCESS = {name: OUTCOME_COLUMNS[name] for name in ("id", "token", "result")}
_RETURNED = f"given.kind IN {sql_list(RETURNED_KINDS)}"
_FAILED = f"kind IN {sql_list(FAILED_KINDS)}"

_FAILURE = """
    INSERT INTO job_failures
        (run_id, attempt, worker, started_at, failed_at, error_type, error, stack)
"""


def _values(d: Dialect) -> str:
    """Return the assignments of an outcome that ends a run or makes it due again."""
    # A run whose cancel was requested while it ran is cancelled instead of retried.
    status = f"""
        CASE WHEN {_ASKED_TO_STOP} AND NOT {_TERMINAL} THEN 'cancelled'
             WHEN NOT {_RETURNED} THEN given.kind
             WHEN job_runs.attempts > 1 THEN 'failed' ELSE 'queued' END
    """
    ends = f"{_TERMINAL} OR {_ASKED_TO_STOP}"
    # An attempt that was released or snoozed does not count, and the next attempt gets its number.
    # Attempts up to the number ``forgiven`` do not count either: a step ended in the last of them,
    # and ``max_attempts`` was raised by one for each. If this attempt is that last one, take back
    # its one: otherwise the next attempt, which gets its number, would not count.
    is_forgiven = f"{_RETURNED} AND job_runs.forgiven = job_runs.attempts"
    replaces_error = "given.kind <> 'released'"
    errors = (
        _if(replaces_error, "last_error", "given.error"),
        _if(replaces_error, "error_type", "given.error_type"),
        _if(replaces_error, "fingerprint", "given.fingerprint"),
    )
    later = d.clock_after("given.delay")
    values = ended(status, d.clock, *errors) | {
        "gate": f"CASE WHEN NOT ({ends}) THEN {rate_gate('job_runs.rate_key')} END",
        "finished_at": _if(ends, "finished_at", d.clock),
        "failed_at": _if(f"given.{_FAILED}", "failed_at", d.clock),
        "attempts": _if(_RETURNED, "attempts", "job_runs.attempts - 1"),
        "forgiven": _if(is_forgiven, "forgiven", "job_runs.forgiven - 1"),
        "max_attempts": _if(is_forgiven, "max_attempts", "job_runs.max_attempts - 1"),
        "snoozes": _if("given.kind = 'snoozed'", "snoozes", "job_runs.snoozes + 1"),
        "run_at": f"CASE WHEN given.kind = 'failed' THEN {later}"
        f" WHEN given.kind = 'snoozed' THEN {d.latest('given.until', later)}"
        " ELSE job_runs.run_at END",
        "result": d.json("given.result"),
    }
    return assigned(values)


def _if(condition: str, name: str, value: str) -> str:
    """Return the new value of the column *name*: *value* if *condition* holds, else the old one."""
    return f"CASE WHEN {condition} THEN {value} ELSE job_runs.{name} END"


def _values_of_success(d: Dialect, result: str = "given.result") -> str:
    values = ended("'succeeded'", d.clock, "NULL", "NULL")
    return assigned({**values, "result": d.json(result)})


def ours(d: Dialect, table: str) -> str:
    """Return CTEs that end in ``ours``: the runs in ``given`` that their worker may write now.

    A row that another transaction has locked, such as an operator's in psql, must not hold up
    other rows. So PostgreSQL skips it; the caller learns from `watch` that its run is still held.

    ``IS TRUE`` keeps the planner from using the index of leases. Until the next vacuum, that index
    has an entry for each run of the past minutes.

    :param table: SQL for a table with ids and tokens. It is named ``given`` from here on.
    """
    if not d.skip_locked:
        return f"given AS MATERIALIZED {table}, ours AS MATERIALIZED (SELECT id FROM given)"
    return f"""
    given AS MATERIALIZED {table},
    ours AS MATERIALIZED (
        SELECT id FROM job_runs
        WHERE {d.any_of("id", "SELECT id FROM given")} AND ({RUNNING}) IS TRUE
            AND {d.any_of("locked_by", "SELECT DISTINCT token FROM given")}
        {d.skip_locked}
    )
    """


def is_ours(d: Dialect) -> str:
    """Return the conditions that join the rows of ``job_runs`` in ``ours`` to ``given``."""
    return f"""
        {d.any_of("job_runs.id", "SELECT id FROM ours")} AND job_runs.id = given.id
        AND job_runs.locked_by = given.token AND (job_runs.{RUNNING}) IS TRUE
    """


@lru_cache(maxsize=4)
def record_statement(d: Dialect, plain: bool) -> TextClause:
    """Return the statement that records outcomes, and returns the ids of runs by stored status.

    PostgreSQL's statement also inserts failures, and returns one row for each status, since reading
    a row for each run takes a tenth of a worker's time. SQLite's statement returns a row for each
    run; `failures_statement`, which is sent before it, inserts failures.

    :param plain: whether all are plain successes, as most are: they need a quarter of the values.
    """
    columns, values, returned = OUTCOME_COLUMNS, _values(d), "job_runs.started_at, given.*"
    if plain:
        columns, values, returned = _OF_SUCCESS, _values_of_success(d), "job_runs.id"
    table = d.table("outcomes", **columns)
    update = f"""
        UPDATE job_runs SET {values}
        FROM given WHERE {is_ours(d)} {"" if plain else f"AND {_not_renewed(d)}"}
        RETURNING"""
    if d.one_writer:
        return text(f"WITH {ours(d, table)} {update} job_runs.id AS ids, job_runs.status AS stored")
    failures = f"""
    , failures AS (
        {_FAILURE}
        SELECT id, attempt, token, started_at, {d.clock}, error_type, error, stack
        FROM recorded WHERE {_FAILED}
        ON CONFLICT DO NOTHING
    )"""
    return text(f"""
    WITH {ours(d, table)},
    recorded AS ({update} job_runs.status, {returned})
    {"" if plain else failures}
    SELECT string_agg(CAST(id AS text), ',') AS ids, status AS stored FROM recorded GROUP BY status
    """)


def _not_renewed(d: Dialect) -> str:
    """Return the condition that the lease of a run to be reclaimed was not renewed meanwhile."""
    return f"(COALESCE(given.reclaimed, 0) = 0 OR job_runs.locked_until <= {d.clock})"


@lru_cache(maxsize=2)
def failures_statement(d: Dialect) -> TextClause:
    """Return SQLite's INSERT of the failures among the outcomes that are recorded next."""
    return text(f"""
    WITH {ours(d, d.table("outcomes", **OUTCOME_COLUMNS))}
    {_FAILURE}
    SELECT given.id, given.attempt, given.token, job_runs.started_at, {d.now}, given.error_type,
        given.error, given.stack
    FROM given CROSS JOIN job_runs WHERE {is_ours(d)} AND {_not_renewed(d)} AND given.{_FAILED}
    ON CONFLICT DO NOTHING
    """)


def outcome_parameters(
    dialect: Dialect, outcomes: Sequence[Outcome], plain: bool
) -> dict[str, object]:
    """Return *outcomes* as the JSON array that `record_statement` reads.

    :param plain: whether all are plain successes. A thousand may come at once, so of these, only
        results and the few different tokens go through the JSON encoder.
    """
    if not plain:
        return {"outcomes": json.dumps([_outcome_row(dialect, outcome) for outcome in outcomes])}
    tokens = {token: json.dumps(token) for token in {outcome.token for outcome in outcomes}}
    rows = [
        f'{{"id":{outcome.id},"token":{tokens[outcome.token]}'
        f"{'' if outcome.result is None else _result_member(outcome.result)}}}"
        for outcome in outcomes
    ]
    return {"outcomes": f"[{','.join(rows)}]"}


def _result_member(result: JSON) -> str:
    return f',"result":{json.dumps(json_text(result))}'


def is_plain(outcome: Outcome) -> bool:
    """Return whether *outcome* is a success without a warning, as most are."""
    return outcome.kind == "succeeded" and outcome.error is None


def _outcome_row(dialect: Dialect, outcome: Outcome) -> dict[str, object]:
    """Return *outcome* as the statements read it; a plain success needs few keys."""
    row: dict[str, object] = {"id": outcome.id, "token": outcome.token, "kind": outcome.kind}
    if outcome.result is not None:
        row["result"] = json_text(outcome.result)
    if outcome.error is not None:
        row |= {"error": clean(outcome.error), "error_type": clean(outcome.error_type)}
    if outcome.kind != "succeeded":
        row |= {
            "attempt": outcome.attempt,
            "stack": clean(outcome.stack),
            "delay": outcome.delay,
            "until": None if outcome.until is None else dialect.instant(outcome.until),
            "reclaimed": int(outcome.reclaimed),
        }
    if outcome.kind in FAILED_KINDS:
        parts = outcome.job_type, outcome.error_type, outcome.error
        row["fingerprint"] = fingerprint(*parts)
    return row


def record_success(connection: Connection, claim: Claim, result: JSON) -> bool | None:
    """Write ``succeeded`` in *connection*'s transaction, if *claim*'s token still holds the run.

    The handler's own writes and its outcome must commit together, so this runs on the app's
    session. `record_and_claim` writes all other outcomes on the bookkeeping connection, many at a
    time, with SQL that also covers failures and releases.

    :returns: True if it was written, False if the run is no longer held, None if it is held but
        another transaction has locked its row, so that nothing is written yet.
    """
    result_text = None if result is None else json_text(result)
    d = dialect_of(connection.engine)
    own = f"SELECT id FROM job_runs WHERE id = :id AND locked_by = :token AND ({RUNNING}) IS TRUE"
    statement = f"""
        UPDATE job_runs SET {_values_of_success(d, "CAST(:result AS text)")}
        WHERE {d.any_of("id", f"{own} {d.skip_locked}")} RETURNING id
    """
    values = {"id": claim.id, "token": claim.token, "result": result_text}
    if connection.execute(text(statement), values).first() is not None:
        return True
    return None if connection.execute(text(own), values).first() is not None else False


#: How many failures of a run are kept, and how many outputs: the latest ones, as many as its page
#: shows.
FAILURES_KEPT = 50


def forget_failures(books: Bookkeeping, outcomes: Iterable[Outcome]) -> None:
    """Make room for the failures in *outcomes*: delete the oldest ones of runs that have many.

    Call it before the outcomes are recorded. If one is not recorded, since its lease was lost, the
    deletion is right nevertheless: the run has begun that many attempts.
    """
    for outcome in outcomes:
        if outcome.attempt > FAILURES_KEPT and outcome.kind in FAILED_KINDS:
            parameters = {"id": outcome.id, "attempt": outcome.attempt - FAILURES_KEPT}
            books.rows(delete_failures(books.dialect), parameters)


def delete_failures(d: Dialect) -> TextClause:
    """Return the DELETE of a run's failures up to ``attempt``, except for locked rows."""
    old = f"SELECT id FROM job_failures WHERE run_id = :id AND attempt <= :attempt {d.skip_locked}"
    return text(f"DELETE FROM job_failures WHERE {d.any_of('id', old)}")


_OLD_OUTPUTS = "SELECT id FROM job_outputs WHERE run_id = :id AND attempt <= :attempt"


def write_output(books: Bookkeeping, outcome: Outcome) -> None:
    """Write what the handler of *outcome* has printed and logged.

    If the lease was lost or the run has ended, the output is still written, unless another claim
    has written output of the same attempt. The output of an atomic success, which is recorded
    already, is written in any case. If another transaction has locked the run's row, the outcome is
    retried, and the output is not written a second time.
    """
    if outcome.attempt > FAILURES_KEPT:
        old = f"{_OLD_OUTPUTS} {books.dialect.skip_locked}"
        delete = text(f"DELETE FROM job_outputs WHERE {books.dialect.any_of('id', old)}")
        books.rows(delete, {"id": outcome.id, "attempt": outcome.attempt - FAILURES_KEPT})
    names = ("id", "attempt", "token", "output", "finalized")
    books.rows(_write_output(books.dialect), {name: getattr(outcome, name) for name in names})


@lru_cache(maxsize=2)
def _write_output(d: Dialect) -> TextClause:
    # The check of the foreign key takes the same lock, but would wait for it.
    lock = "FOR KEY SHARE SKIP LOCKED" if d.skip_locked else ""
    both = "job_outputs.output || excluded.output"
    last = (
        f"substr({both}, -{MAX_OUTPUT_BYTES})"
        if d.one_writer
        else f"right({both}, {MAX_OUTPUT_BYTES})"
    )
    return text(f"""
    INSERT INTO job_outputs (run_id, attempt, worker, output, written_at)
    SELECT id, :attempt, :token, :output, {d.clock} FROM job_runs WHERE id = :id {lock}
    ON CONFLICT (run_id, attempt) DO UPDATE
    -- After a release, for example for a sleep, the attempt's output is continued.
    SET worker = excluded.worker, written_at = excluded.written_at, output = {last}
    WHERE job_outputs.worker <> excluded.worker AND ({d.typed(":finalized", "boolean")} OR EXISTS (
        SELECT 1 FROM job_runs AS r WHERE r.id = excluded.run_id AND r.locked_by = excluded.worker
    ))
    RETURNING run_id
    """)


#: How many characters of a message's first line decide which group its error belongs to.
_HEAD_CHARACTERS = 300


@cache
def _varying() -> re.Pattern[str]:
    """Return the pattern of the parts that differ between similar errors.

    It is compiled when first needed, since most processes never need it.
    """
    return re.compile(
        r"""(?x)
        '[^']{0,200}' | "[^"]{0,200}" | `[^`]{0,200}`  # Quoted.
        | \b [0-9a-fA-F]{8} (?: -[0-9a-fA-F]{4} ){3} -[0-9a-fA-F]{12} \b  # A UUID.
        | 0[xX][0-9a-fA-F]+
        | \b (?=[0-9a-fA-F]*[0-9]) [0-9a-fA-F]{6,} \b  # Hex: a digest, an id.
        | [0-9]+ (?: [.,:][0-9]+ )*"""
    )


def pattern_of(error: str | None) -> str:
    """Return the first line of the message *error*, with ``…`` for numbers, hex and quoted text.

    Errors with the same pattern, task and type form a group.
    """
    head = (error or "").strip().partition("\n")[0][:_HEAD_CHARACTERS]
    return " ".join(_varying().sub("…", head).split())


def fingerprint(task: str, error_type: str | None, error: str | None) -> str:
    """Return the fingerprint of an error: 16 hex digits."""
    parts = "\0".join((task, error_type or "", pattern_of(error)))
    return hashlib.blake2b(parts.encode(errors="replace"), digest_size=8).hexdigest()
