"""The rows of durable steps: what each came to, how far it is, and what its run waits for.

A step's row is written in the transaction of its work, whose last statement is `hold`: it checks
that the run is still the claim's. So no lock on the run is held while the step works. Whoever
writes a row and its run does so in this order, a step and a signal alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, text

from ..db import failpoints
from ..db.connection import Bookkeeping
from ..db.dialect import Dialect, dialect_of, json_text
from ..models.conditions import HOLDS_KEY, RUNNING
from ..text import clean
from ..types import JSON, Claim, stored_json

#: How many attempts of a run are forgiven, at most, so that none goes on for ever.
FORGIVEN = 1000


class StepRow(NamedTuple):
    """A row of ``job_steps``, as an attempt finds it.

    :ivar finished: whether the attempt passes it.
    """

    kind: str
    result: JSON
    chunks: int
    finished: bool


def read(books: Bookkeeping, run_id: int) -> dict[str, StepRow]:
    """Return the steps of a run, by name."""
    rows = books.rows(of_run(books.dialect), {"run_id": run_id})
    return {row.name: _step_row(row) for row in rows}


def write(
    connection: Connection,
    claim: Claim,
    name: str,
    kind: str,
    result: JSON,
    *,
    chunks: int = 0,
    finished: bool = True,
    seconds: float = 0.0,
) -> bool:
    """Write the row of a step that has ended, or of a chunk; return whether the name was free.

    :param seconds: for how long it was at work.
    """
    values = {
        **_of(claim, name, kind),
        "result": None if result is None else json_text(result),
        "chunks": chunks,
        "finished": finished,
        "since": -seconds,
    }
    return connection.execute(_write(dialect_of(connection.engine)), values).first() is not None


def pause(
    connection: Connection, claim: Claim, name: str, kind: str, seconds: float
) -> StepRow | None:
    """Write that the run sleeps, or waits; return the row, or None if the name is taken.

    It is finished if the time is over, or the signal was there first.
    """
    values = {**_of(claim, name, kind), "seconds": seconds}
    row = connection.execute(_pause(dialect_of(connection.engine)), values).one_or_none()
    return None if row is None else _step_row(row)


def hold(
    connection: Connection, claim: Claim, message: str | None = None, until: str | None = None
) -> Any:
    """Lock the run's row until the commit, if *claim* still holds it; None if it does not.

    An attempt in which a step has ended does not count, nor do those before it.

    :param message: shown as the run's progress.
    :param until: the step that the run waits for from now on; then the attempt is no progress.
    :returns: what counts, whether a cancel was requested, and whether its task or queue is paused.
    """
    values = {"id": claim.id, "token": claim.token, "message": clean(message), "name": until}
    statement = holding(dialect_of(connection.engine), until is not None)
    return connection.execute(statement, values).one_or_none()


def signal(connection: Connection, run_id: int, name: str, payload: JSON) -> bool:
    """Write the payload of a signal, and let the run go on; return False if it came too late."""
    d = dialect_of(connection.engine)
    values = {"id": run_id, "name": name, "payload": json_text(payload)}
    row = connection.execute(_signal(d), values).one_or_none()
    failpoints.reach("between-signal-and-run")
    if row is not None and row.due_at is not None:
        connection.execute(_let_go_on(d), {"id": run_id})
    return row is not None


def run_with(connection: Connection, run: int | str) -> int | None:
    """Return the id of a run, given by its id or its idempotency key; None if there is none."""
    which = f"idempotency_key = :run AND {HOLDS_KEY}" if isinstance(run, str) else "id = :run"
    found: int | None = connection.scalar(
        text(f"SELECT id FROM job_runs WHERE {which}"), {"run": run}
    )
    return found


def _of(claim: Claim, name: str, kind: str) -> dict[str, object]:
    return {
        "run_id": claim.id,
        "name": name,
        "kind": kind,
        "attempt": claim.attempt,
        "worker": claim.token,
    }


def _step_row(row: Any) -> StepRow:
    return StepRow(row.kind, stored_json(row.result), row.chunks, row.finished_at is not None)


def _columns(d: Dialect) -> str:
    result = d.unparsed("job_steps.result")
    return f"job_steps.kind, {result} AS result, job_steps.chunks, job_steps.finished_at"


@lru_cache(maxsize=2)
def of_run(d: Dialect) -> TextClause:
    """Return the query for the steps of a run."""
    return text(f"SELECT name, {_columns(d)} FROM job_steps WHERE run_id = :run_id")


def _insert(d: Dialect, values: Mapping[str, str]) -> str:
    own = {"run_id": "bigint", "name": "text", "kind": "text", "attempt": "int", "worker": "text"}
    columns = {**{each: d.typed(f":{each}", kind) for each, kind in own.items()}, **values}
    return f"INSERT INTO job_steps ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"


@lru_cache(maxsize=2)
def _write(d: Dialect) -> TextClause:
    values = {
        "result": d.json("CAST(:result AS text)"),
        "chunks": ":chunks",
        "started_at": d.clock_after(":since"),
        "finished_at": f"CASE WHEN {d.typed(':finished', 'boolean')} THEN {d.clock} END",
    }
    changed = ("result", "chunks", "attempt", "worker", "finished_at")
    return text(f"""
    {_insert(d, values)}
    ON CONFLICT (run_id, name) DO UPDATE
    SET {", ".join(f"{name} = excluded.{name}" for name in changed)}
    WHERE job_steps.kind = excluded.kind AND job_steps.finished_at IS NULL
    RETURNING id
    """)


@lru_cache(maxsize=2)
def _pause(d: Dialect) -> TextClause:
    values = {"started_at": d.clock, "due_at": d.clock_after(":seconds")}
    over = f"CASE WHEN job_steps.due_at <= {d.clock} THEN {d.clock} END"
    return text(f"""
    {_insert(d, values)}
    ON CONFLICT (run_id, name) DO UPDATE
    SET attempt = excluded.attempt, worker = excluded.worker,
        due_at = COALESCE(job_steps.due_at, excluded.due_at),
        finished_at = COALESCE(job_steps.finished_at, {over})
    WHERE job_steps.kind = excluded.kind
    RETURNING {_columns(d)}
    """)


@lru_cache(maxsize=4)
def holding(d: Dialect, waits: bool) -> TextClause:
    """Return the statement of `hold`.

    :param waits: whether the run waits from now on.
    """
    # The due time of its row: a signal that comes from now on finds both as they are.
    due = "(SELECT due_at FROM job_steps WHERE run_id = :id AND name = :name)"
    counts = f"attempts > forgiven AND attempts <= {FORGIVEN}"
    forgiven = f"""
        max_attempts = max_attempts + CASE WHEN {counts} THEN attempts - forgiven ELSE 0 END,
        forgiven = CASE WHEN {counts} THEN attempts ELSE forgiven END
    """
    paused = """
        (SELECT count(*) FROM job_pauses
         WHERE (kind = 'task' AND name = job_runs.job_type)
            OR (kind = 'queue' AND name = job_runs.queue)) > 0
    """
    # IS TRUE, as in `outcomes.held`: the planner must not choose the index of leases.
    # What is returned is compared in Python: SQLite 3.40 returns that a NULL column IS NOT NULL.
    return text(f"""
    UPDATE job_runs SET
        progress_message = COALESCE({d.typed(":message", "text")}, progress_message),
        {f"run_at = {due}" if waits else forgiven}
    WHERE id = :id AND locked_by = :token AND ({RUNNING}) IS TRUE
    RETURNING max_attempts, forgiven, cancel_requested_at,
        {paused} AS paused
    """)


@lru_cache(maxsize=2)
def _signal(d: Dialect) -> TextClause:
    return text(f"""
    INSERT INTO job_steps (run_id, name, kind, result, finished_at)
    SELECT id, {d.typed(":name", "text")}, 'wait', {d.json("CAST(:payload AS text)")}, {d.clock}
    FROM job_runs WHERE id = :id AND finished_at IS NULL
    ON CONFLICT (run_id, name) DO UPDATE
    SET result = excluded.result, finished_at = excluded.finished_at
    WHERE job_steps.kind = 'wait' AND job_steps.finished_at IS NULL
    RETURNING due_at
    """)


@lru_cache(maxsize=2)
def _let_go_on(d: Dialect) -> TextClause:
    return text(f"""
    UPDATE job_runs SET run_at = {d.now}, updated_at = {d.now}
    WHERE id = :id AND finished_at IS NULL AND run_at > {d.now}
    """)
