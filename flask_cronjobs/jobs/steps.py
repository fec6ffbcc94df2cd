"""The rows of durable steps: what each came to, how far it is, and what its run waits for.

A step's row is written in the transaction of its work, whose last statement is `hold`: it checks
that the run is still the claim's. So no lock on the run is held while the step works. Whoever
writes a row and its run does so in this order, a step and a signal alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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


#: What a run does at a step that has not ended, by the step's kind.
WAITS = {"sleep": "sleeps", "wait": "waits for a signal"}


class StepRow(NamedTuple):
    """A row of ``job_steps``, as an attempt finds it, or makes it.

    :ivar result: as of the column.
    :ivar finished: whether the attempt passes it.
    :ivar due_at: until when the run waits at it, as the database says it.
    """

    kind: str
    result: JSON = None
    chunks: int = 0
    finished: bool = False
    due_at: Any = None

    @property
    def waits(self) -> bool:
        """Whether the run waits at it."""
        return not self.finished and self.kind in WAITS


@dataclass
class AttemptSteps:
    """What an attempt knows of its run's durable steps.

    :ivar rows: those that were there before, by name.
    :ivar lines: where the handler has come to each step, by name.
    :ivar at_work: the step whose work goes on.
    """

    rows: dict[str, StepRow]
    lines: dict[str, str] = field(default_factory=dict[str, str])
    at_work: str | None = None


def read(books: Bookkeeping, run_id: int) -> AttemptSteps:
    """Return the steps of a run."""
    rows = books.rows(of_run(books.dialect), {"run_id": run_id})
    return AttemptSteps({row.name: _step_row(row) for row in rows})


def write(
    connection: Connection,
    claim: Claim,
    name: str,
    row: StepRow,
    seconds: float = 0.0,
    delay: float | None = None,
) -> StepRow | None:
    """Write *row* of a step that has ended, of a chunk, or of a pause; return what is there then.

    A pause has ended if its time is over, or the signal was there first.

    :param seconds: for how long it was at work.
    :param delay: for how many seconds the run waits, counted from the first time.
    :returns: None if the name is taken.
    """
    values = {
        "run_id": claim.id,
        "name": name,
        "kind": row.kind,
        "result": None if row.result is None else json_text(row.result),
        "chunks": row.chunks,
        "attempt": claim.attempt,
        "worker": claim.token,
        "finished": row.finished,
        "since": -seconds,
        "delay": delay,
    }
    written = connection.execute(_write(dialect_of(connection.engine)), values).one_or_none()
    return None if written is None else _step_row(written)


def hold(
    connection: Connection, claim: Claim, row: StepRow | None = None, message: str | None = None
) -> Any:
    """Lock the run's row until the commit, if *claim* still holds it; None if it does not.

    An attempt in which a step has ended does not count, nor do those before it. If the run waits
    at *row*, it is due when that is; that is no progress.

    :param message: shown as the run's progress.
    :returns: what counts, whether a cancel was requested, and whether its task or queue is paused.
    """
    due_at = row.due_at if row is not None and row.waits else None
    values = {
        "id": claim.id,
        "token": claim.token,
        "message": clean(message) if due_at is None else None,
        "due_at": due_at,
    }
    return connection.execute(holding(dialect_of(connection.engine)), values).one_or_none()


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


def _step_row(row: Any) -> StepRow:
    finished = row.finished_at is not None
    return StepRow(row.kind, stored_json(row.result), row.chunks, finished, row.due_at)


def _columns(d: Dialect) -> str:
    result = d.unparsed("job_steps.result")
    return f"""
        job_steps.kind, {result} AS result, job_steps.chunks, job_steps.finished_at,
        job_steps.due_at
    """


@lru_cache(maxsize=2)
def of_run(d: Dialect) -> TextClause:
    """Return the query for the steps of a run."""
    return text(f"SELECT name, {_columns(d)} FROM job_steps WHERE run_id = :run_id")


@lru_cache(maxsize=2)
def _write(d: Dialect) -> TextClause:
    delay = d.typed(":delay", "double precision")
    values = {
        **{each: f":{each}" for each in ("run_id", "name", "kind", "chunks", "attempt", "worker")},
        "result": d.json("CAST(:result AS text)"),
        "started_at": d.clock_after(":since"),
        "due_at": f"CASE WHEN {delay} IS NOT NULL THEN {d.clock_after(delay)} END",
        "finished_at": f"CASE WHEN {d.typed(':finished', 'boolean')} THEN {d.clock} END",
    }
    # A wait's row may have come with its signal; then it keeps what that says.
    is_over = f"CASE WHEN job_steps.due_at <= {d.clock} THEN {d.clock} END"
    return text(f"""
    INSERT INTO job_steps ({", ".join(values)}) VALUES ({", ".join(values.values())})
    ON CONFLICT (run_id, name) DO UPDATE
    SET attempt = excluded.attempt, worker = excluded.worker, chunks = excluded.chunks,
        result = COALESCE(excluded.result, job_steps.result),
        due_at = COALESCE(job_steps.due_at, excluded.due_at),
        finished_at = COALESCE(job_steps.finished_at, excluded.finished_at, {is_over})
    WHERE job_steps.kind = excluded.kind
        AND (job_steps.kind = 'wait' OR job_steps.finished_at IS NULL)
    RETURNING {_columns(d)}
    """)


@lru_cache(maxsize=2)
def holding(d: Dialect) -> TextClause:
    """Return the statement of `hold`."""
    due_at = d.typed(":due_at", "timestamptz")
    counts = f"{due_at} IS NULL AND attempts > forgiven AND attempts <= {FORGIVEN}"
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
        run_at = COALESCE({due_at}, run_at),
        max_attempts = max_attempts + CASE WHEN {counts} THEN attempts - forgiven ELSE 0 END,
        forgiven = CASE WHEN {counts} THEN attempts ELSE forgiven END
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
