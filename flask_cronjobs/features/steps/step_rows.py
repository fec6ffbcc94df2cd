"""The rows of durable steps: their results, their progress, and the events they wait for.

A step's row is written in the transaction of its work, whose last statement checks that the claim
still holds the run. So the run's row is not locked while the step works. Steps and signals both
write the step's row before the run's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, TextClause, text

from ...core.claim_statement import unpaused
from ...db import failpoints
from ...db.connection import Bookkeeping
from ...db.dialect import Dialect, dialect_of
from ...models.conditions import HOLDS_KEY, RUNNING
from ...text import clean, pattern
from ...types import JSON, Claim, json_text, stored_json

#: The maximum number of attempts of a run that are forgiven, so that no run continues forever.
MAX_FORGIVEN_ATTEMPTS = 1000


#: The words for what a run does at an unfinished step, by the step's kind.
WAITS = {"sleep": "sleeps", "wait": "waits for a signal"}


class StepRow(NamedTuple):
    """A row of ``job_steps`` that existed before an attempt, or that the attempt inserts.

    :ivar result: what a step returned, the last id of the last chunk, or a signal's payload.
    :ivar finished: whether the step has ended.
    :ivar due_at: the time until which the run waits at the step, as the database returned it.
    """

    name: str
    kind: str
    result: JSON = None
    chunks: int = 0
    finished: bool = False
    due_at: Any = None

    def __str__(self) -> str:
        return f"{self.kind}({self.name!r})"

    @property
    def waits(self) -> bool:
        """Whether the run waits at the step."""
        return not self.finished and self.kind in WAITS


@dataclass
class AttemptSteps:
    """The durable steps of a run, as the current attempt knows them.

    :ivar rows: the existing rows, by the step's name.
    :ivar lines: the line at which the handler reached each step, by the step's name.
    :ivar at_work: the name of the step that is running.
    :ivar unbegun: a description and the coroutine of each step that was called, but not awaited or
        iterated.
    :ivar left: a warning for each loop that was left inside a chunk.
    """

    rows: dict[str, StepRow]
    lines: dict[str, str] = field(default_factory=dict[str, str])
    at_work: str | None = None
    unbegun: dict[str, tuple[str, Any]] = field(default_factory=dict[str, "tuple[str, Any]"])
    left: dict[str, str] = field(default_factory=dict[str, str])
    _seen: dict[str, set[str]] = field(default_factory=dict[str, "set[str]"])
    _doubted: set[str] = field(default_factory=set[str])

    def unordered(self, row: StepRow, ids: Sequence[Any]) -> tuple[Any, Any] | None:
        """Return two ids of a chunk of *row* that are not in ascending order, or None.

        Only the database knows the order of some texts. For these, check only that none of them was
        in the previous chunk.
        """
        pairs = list(pairwise(ids)) if row.result is None else [*pairwise([row.result, *ids])]
        for number, (before, after) in enumerate(pairs):
            is_first = number == 0 and row.result is not None
            if ascends(before, after) is False or (is_first and before == after):
                return before, after
        previous_ids, self._seen[row.name] = self._seen.get(row.name, set()), set(map(repr, ids))
        again = next((id_ for id_ in ids if repr(id_) in previous_ids), None)
        return None if again is None else (row.result, again)

    def doubts(self, name: str, ids: Sequence[Any]) -> bool:
        """Return whether a chunk's texts are not in Python's order; True at most once per step."""
        unjudged = (pair for pair in pairwise(ids) if ascends(*pair) is None)
        if name in self._doubted or all(str(first) <= str(second) for first, second in unjudged):
            return False
        self._doubted.add(name)
        return True

    def warnings(self) -> list[str]:
        """Return a warning for each step that the ended handler did not do or finish."""
        warnings = list(self.left.values())
        for call, coroutine in self.unbegun.values():
            if coroutine is None:
                warnings.append(
                    f"{call} was called, but nothing iterated over it: use it in a for loop."
                )
            else:
                coroutine.close()  # Otherwise Python would warn about a line of ours.
                warnings.append(
                    f"{call} was not awaited, so it was not done. Write: await jobs.step(…)"
                )
        return warnings


#: Texts of equal length that every collation orders alike: UUIDs, hex digits, times.
_PLAIN = pattern(r"[0-9A-F:TZ. +-]*|[0-9a-f:. +-]*")


def ascends(before: Any, after: Any) -> bool | None:
    """Return whether two ids ascend or are equal; None if only the database can tell."""
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        ids = cast("Sequence[Any]", before), cast("Sequence[Any]", after)
        pairs = zip(*ids, strict=False)
        return next((ascends(*pair) for pair in pairs if pair[0] != pair[1]), True)
    if isinstance(before, str) and isinstance(after, str):
        plain = len(before) == len(after) and _PLAIN().fullmatch(before + after)
        return before <= after if plain else None
    try:
        return bool(before <= after)
    except TypeError:
        return None


def read(books: Bookkeeping, run_id: int) -> AttemptSteps:
    """Return the steps of a run."""
    rows = books.rows(of_run(books.dialect), {"run_id": run_id})
    return AttemptSteps({row.name: _step_row(row) for row in rows})


def write(
    connection: Connection,
    claim: Claim,
    row: StepRow,
    seconds: float = 0.0,
    delay: float | None = None,
    message: str | None = None,
) -> tuple[StepRow | None, Any]:
    """Write *row* for a finished step, a chunk, a sleep or a wait, and lock its run's row.

    A sleep or a wait is finished if its time is over, or if the signal came first. If it is not,
    the run becomes due when the time is over. If the run need not wait, this attempt and those
    before it no longer count.

    :param seconds: how long the step has worked.
    :param delay: seconds for which the run waits, from when it first reached the step.
    :param message: the text that is shown as the run's progress.
    :returns: (step row or None if the name is taken, run row or None if the lease is lost). The run
        row has the attempts that count, ``cancel_requested_at``, and whether its task or queue is
        paused.
    """
    d = dialect_of(connection.engine)
    values = {**row._asdict(), "id": claim.id, "token": claim.token, "attempt": claim.attempt}
    values["result"] = None if row.result is None else json_text(row.result)
    values |= {"since": -seconds, "delay": delay, "message": clean(message), "due_at": None}
    stored_row = connection.execute(_write(d), values).one_or_none()
    written_row = None if stored_row is None else _step_row(stored_row)
    if written_row is not None and written_row.waits:
        values |= {"due_at": written_row.due_at, "message": None}
    return written_row, connection.execute(holding(d), values).one_or_none()


def is_written(books: Bookkeeping, claim: Claim, row: StepRow) -> bool:
    """Return whether *claim* has written *row* and committed it."""
    rows = books.rows(_WRITTEN, {"id": claim.id, "name": row.name})
    return any(
        (stored_row.worker, stored_row.attempt, stored_row.chunks)
        == (claim.token, claim.attempt, row.chunks)
        and (stored_row.finished_at is not None) == row.finished
        for stored_row in rows
    )


_WRITTEN = text(
    "SELECT worker, attempt, chunks, finished_at FROM job_steps WHERE run_id = :id AND name = :name"
)
#: SQL for the signal that a run is waiting for.
_WAIT = """
    SELECT other.name FROM job_steps other JOIN job_runs waits ON waits.id = other.run_id
    WHERE other.run_id = :id AND other.kind = 'wait' AND other.finished_at IS NULL
        AND waits.locked_by IS NULL AND waits.run_at = other.due_at AND waits.run_at > {now}
"""


def waits_for(connection: Connection, run_id: int, name: str) -> str | None:
    """Return the signal that a run is waiting for, unless it is *name*."""
    d = dialect_of(connection.engine)
    signal_name: str | None = connection.scalar(text(_WAIT.format(now=d.now)), {"id": run_id})
    return None if signal_name == name else signal_name


def sees_the_end(connection: Connection) -> bool:
    """Return whether a transaction sees concurrent commits, such as the end of a run."""
    if dialect_of(connection.engine).one_writer:  # On SQLite, a writer has the newest snapshot.
        return True
    level: str = connection.scalars(text("SHOW transaction_isolation")).one()
    return level == "read committed"


def has_ended(books: Bookkeeping, run_id: int) -> bool:
    """Return whether a run has ended by now."""
    query = text("SELECT id FROM job_runs WHERE id = :id AND finished_at IS NOT NULL")
    return bool(books.rows(query, {"id": run_id}))


def signal(connection: Connection, run_id: int, name: str, payload: JSON) -> bool:
    """Write the payload of a signal, and make the run due.

    :returns: False if the signal came too late, or if the run waits for another one.
    """
    d = dialect_of(connection.engine)
    insert = f"""
        INSERT INTO job_steps (run_id, name, kind, result, finished_at)
        SELECT id, {d.typed(":name", "text")}, 'wait', {d.json("CAST(:payload AS text)")}, {d.clock}
        FROM job_runs WHERE id = :id AND finished_at IS NULL AND (
            NOT EXISTS ({_WAIT.format(now=d.now)})
            OR EXISTS (SELECT 1 FROM job_steps own WHERE own.run_id = :id AND own.name = :name)
        )
        ON CONFLICT (run_id, name) DO UPDATE
        SET result = excluded.result, finished_at = excluded.finished_at
        WHERE job_steps.kind = 'wait' AND job_steps.finished_at IS NULL
        RETURNING due_at
    """
    make_due = f"""
        UPDATE job_runs SET run_at = {d.now}, updated_at = {d.now}
        WHERE id = :id AND finished_at IS NULL AND run_at > {d.now}
    """
    values = {"id": run_id, "name": name, "payload": json_text(payload)}
    row = connection.execute(text(insert), values).one_or_none()
    failpoints.reach("between-signal-and-run")
    if row is not None and row.due_at is not None:
        connection.execute(text(make_due), values)
    return row is not None


def run_with(connection: Connection, run: int | str) -> int | None:
    """Return the id of the run with this id or idempotency key; None if there is none."""
    condition = f"idempotency_key = :run AND {HOLDS_KEY}" if isinstance(run, str) else "id = :run"
    run_id: int | None = connection.scalar(
        text(f"SELECT id FROM job_runs WHERE {condition}"), {"run": run}
    )
    return run_id


def _step_row(row: Any) -> StepRow:
    # If the signal came first, the wait has no place among the steps yet.
    finished = row.finished_at is not None and row.attempt is not None
    return StepRow(row.name, row.kind, stored_json(row.result), row.chunks, finished, row.due_at)


def _columns(d: Dialect) -> str:
    result = d.unparsed("job_steps.result")
    return f"name, kind, {result} AS result, chunks, attempt, finished_at, due_at"


@lru_cache(maxsize=2)
def of_run(d: Dialect) -> TextClause:
    """Return the query for the steps of a run."""
    return text(f"SELECT {_columns(d)} FROM job_steps WHERE run_id = :run_id")


@lru_cache(maxsize=2)
def _write(d: Dialect) -> TextClause:
    delay = d.typed(":delay", "double precision")
    values = {
        **{column: f":{column}" for column in ("name", "kind", "chunks", "attempt")},
        "run_id": ":id",
        "worker": ":token",
        "result": d.json("CAST(:result AS text)"),
        "started_at": d.clock_after(":since"),
        "due_at": f"CASE WHEN {delay} IS NOT NULL THEN {d.clock_after(delay)} END",
        "finished_at": f"CASE WHEN {d.typed(':finished', 'boolean')} THEN {d.clock} END",
    }
    # A signal may have inserted the row of its wait. Then the payload is kept, and the row gets its
    # place among the steps now.
    is_over = f"CASE WHEN job_steps.due_at <= {d.clock} THEN {d.clock} END"
    return text(f"""
    INSERT INTO job_steps ({", ".join(values)}) VALUES ({", ".join(values.values())})
    ON CONFLICT (run_id, name) DO UPDATE
    SET id = CASE WHEN job_steps.attempt IS NULL THEN excluded.id ELSE job_steps.id END,
        attempt = excluded.attempt, worker = excluded.worker, chunks = excluded.chunks,
        result = COALESCE(excluded.result, job_steps.result),
        due_at = COALESCE(job_steps.due_at, excluded.due_at),
        finished_at = COALESCE(job_steps.finished_at, excluded.finished_at, {is_over})
    WHERE job_steps.kind = excluded.kind
        AND (job_steps.kind = 'wait' OR job_steps.finished_at IS NULL)
    RETURNING {_columns(d)}
    """)


@lru_cache(maxsize=2)
def holding(d: Dialect) -> TextClause:
    """Return the statement that locks the run's row until the commit, if the claim holds it."""
    due_at = d.typed(":due_at", "timestamptz")
    counts = f"{due_at} IS NULL AND attempts > forgiven AND attempts <= {MAX_FORGIVEN_ATTEMPTS}"
    unpaused_now = f"{unpaused('job_type', 'task')} AND {unpaused('queue', 'queue')}"
    # IS TRUE keeps the planner from using the index of leases, as in `core.outcome.ours`. RETURNING
    # has no IS NOT NULL, since SQLite 3.40 evaluates it to true there for a NULL column.
    return text(f"""
    UPDATE job_runs SET
        progress_message = COALESCE({d.typed(":message", "text")}, progress_message),
        run_at = COALESCE({due_at}, run_at),
        max_attempts = max_attempts + CASE WHEN {counts} THEN attempts - forgiven ELSE 0 END,
        forgiven = CASE WHEN {counts} THEN attempts ELSE forgiven END
    WHERE id = :id AND locked_by = :token AND ({RUNNING}) IS TRUE
    RETURNING max_attempts, forgiven, cancel_requested_at,
        NOT ({unpaused_now}) AS paused
    """)
