"""A run with its attempts, steps and operations."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select

from ..core.outcome import FAILURES_KEPT
from ..errors import CronJobsError
from ..text.humanize import (
    Fact,
    Link,
    duration,
    known,
    plural,
    seconds_between,
    seconds_since,
    since,
)
from ..text.redaction import HIDDEN, redacted
from ..types import JSON, without_secret
from .operations import OperationView, operations_on
from .pauses import PauseView, stopping
from .reader import BATCHES, FAILURES, OUTPUTS, RUNS, Reader, Source, reading, record
from .run_rows import RunRow, run_row, with_definition
from .search import shown_keys
from .step_views import StepView, steps_of
from .wait_reasons import Wait, waits_of

#: The maximum number of outputs in a view, since each may have 64 kB.
OUTPUTS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a run.

    :ivar number: the number of the attempt, from 1.
    :ivar outcome: ``failed``; for the latest attempt, the run's status; or ``released``
        for an attempt that is not counted and has left output. The next attempt gets its number.
    :ivar worker: the worker, without the secret part of its token; None once it succeeded.
    :ivar output: its kept output, if it is among the run's latest `OUTPUTS_SHOWN` outputs.
    """

    number: int
    outcome: str
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    error_type: str | None = None
    error: str | None = None
    stack: str | None = None
    output: str | None = None

    @property
    def seconds(self) -> float | None:
        """Return how many seconds it took, if it ended."""
        return seconds_between(self.started_at, self.ended_at)


@dataclass(frozen=True, slots=True)
class RunView:
    """A run in full, redacted by ``CRONJOBS_REDACT``.

    :ivar row: the run as lists show it.
    :ivar attempts: the latest 50 attempts, newest first.
    :ivar now: the database's now.
    :ivar batch: the key of its batch.
    :ivar strict: whether it has a place in the strict order of its concurrency key.
    :ivar waits: the reasons why it has not begun, the main one first.
    :ivar pauses: the pauses of its task and its queue, if it waits.
    :ivar steps: its latest 50 durable steps, in order.
    :ivar forgiven: the number of attempts, from the first on, that do not count, since a step
        ended in the last of them.
    :ivar operations: the operations on it, latest first; see `operations_on`.
    """

    row: RunRow
    payload: JSON
    result: JSON
    last_error: str | None
    idempotency_key: str | None
    concurrency_key: str | None
    concurrency_limit: int | None
    progress_message: str | None
    cancel_requested_at: datetime | None
    snoozes: int
    created_at: datetime
    updated_at: datetime
    attempts: tuple[Attempt, ...]
    now: datetime
    batch: str | None = None
    strict: bool = False
    waits: tuple[Wait, ...] = ()
    pauses: tuple[PauseView, ...] = ()
    steps: tuple[StepView, ...] = ()
    forgiven: int = 0
    operations: tuple[OperationView, ...] = ()


def find_run(source: Source, run_id: int) -> RunView | None:
    """Return a run with its attempts, redacted; None if there is no such run."""
    with reading(source) as reader:
        batch = select(BATCHES.c.key).where(BATCHES.c.id == RUNS.c.batch_id).scalar_subquery()
        whole = with_definition(*RUNS.c, batch.label("batch"))
        rows = reader.rows(whole.where(RUNS.c.id == run_id))
        return _view(reader, rows[0]) if rows else None


def start_of(source: Source, run_id: int) -> str:
    """Return a sentence that says when a run that was just queued, due now, will begin."""
    with suppress(CronJobsError):  # The run is queued, even if it cannot be read now.
        run = find_run(source, run_id)
        for pause in () if run is None else run.pauses:
            return f"It waits until the {pause.kind} {pause.name} is resumed."
    return "The next tick runs it."


def facts_of(run: RunView) -> list[Fact]:
    """Return the facts about *run* in the command ``show``, in this order."""
    return known(
        Fact("label", run.row.label),
        Fact("attempts", f"{run.row.attempts} of {run.row.max_attempts}", _uncounted(run)),
        *own_facts(run),
        Fact("cancel requested", run.cancel_requested_at, run.cancel_requested_at),
        Fact("progress", _progress(run)),
        *(Fact("waits", wait.what, link=_run_link(wait)) for wait in run.waits),
        Fact("reason", _reason(run)),
        *(
            Fact(operation.what, f"by {operation.actor}", operation.started_at)
            for operation in run.operations
        ),
    )


def own_facts(run: RunView) -> list[Fact]:
    """Return the facts about *run* that the banner of its page does not show."""
    row, now = run.row, run.now
    waits = row.status in ("queued", "failed")
    lease_ends, order = since(row.locked_until, now), "strict" if run.strict else None
    latest = f"in attempt {row.attempts}" if row.attempts > 1 else None
    is_over = row.locked_until is not None and row.locked_until <= now
    can_look_up = run.concurrency_key is not None and HIDDEN not in run.concurrency_key
    return known(
        Fact("definition", row.definition, link=("definition", {"name": row.definition})),
        Fact("queue", row.queue, link=("runs", {"queue": row.queue})),
        Fact("priority", row.priority or None),
        Fact("scheduled for", row.scheduled_for),
        Fact("due", row.run_at if waits else None, row.run_at),
        Fact("last started", row.started_at, row.started_at),
        Fact("took", _took_and_waited(row, run.now), latest),
        Fact("finished", row.finished_at, row.finished_at),
        Fact(
            "handed to",
            row.handed_to,
            f"if it does not begin there, it is queued again {lease_ends}",
        ),
        Fact(
            "worker",
            row.locked_by if lease_ends and not is_over and row.handed_to is None else None,
            f"its lease ends {lease_ends}",
        ),
        Fact("snoozed", _snoozed(run)),
        Fact("batch", run.batch, link=("runs", {"batch": run.batch})),
        Fact("idempotency key", run.idempotency_key),
        Fact(
            *("concurrency key", run.concurrency_key, f"at most {run.concurrency_limit} at once"),
            link=("runs", {"key": run.concurrency_key}) if can_look_up else None,
        ),
        Fact("order", order),
    )


def _uncounted(run: RunView) -> str | None:
    if not 0 < run.forgiven <= run.row.attempts:
        return None
    if run.forgiven == 1:
        return "the first does not count, since a step ended in it"
    return f"the first {run.forgiven} do not count, since a step ended in the last of them"


def _took_and_waited(row: RunRow, now: datetime) -> str | None:
    if row.waited is None:
        return None
    took = None if row.took is None else duration(row.took)
    if row.status == "running" and row.started_at is not None:
        took = f"{duration(seconds_since(row.started_at, now))} so far"
    waited = f"waited {duration(row.waited)}"
    return waited if took is None else f"{took}, {waited}"


def _progress(run: RunView) -> str:
    fraction = run.row.progress if run.row.status == "running" else None
    parts = (None if fraction is None else f"{fraction:.0%}", run.progress_message)
    return ", ".join(str(part) for part in parts if part)


def _run_link(wait: Wait) -> Link | None:
    return None if wait.run_id is None else ("run", {"run_id": wait.run_id})


def _snoozed(run: RunView) -> str | None:
    if not run.snoozes:
        return None
    why = f": {run.last_error}" if run.row.error_type == "Snooze" else ""
    return f"{plural(run.snoozes, 'time')}{why}"


def _reason(run: RunView) -> str | None:
    """Return the reason for its status, unless an attempt or a snooze gives it."""
    if run.attempts and run.row.status not in ("cancelled", "skipped"):
        return None
    return None if run.row.error_type == "Snooze" and run.snoozes else run.last_error


def _outputs(reader: Reader, run_id: int) -> dict[int, Row[Any]]:
    """Return the latest outputs of a run, by attempt."""
    c = OUTPUTS.c
    newest = select(OUTPUTS).where(c.run_id == run_id).order_by(c.attempt.desc())
    return {row.attempt: row for row in reader.rows(newest.limit(OUTPUTS_SHOWN))}


def _view(reader: Reader, row: Row[Any]) -> RunView:
    names = reader.state.settings.redact
    waits = row.status in ("queued", "failed")
    shown_row = run_row(row, row.label)
    reasons = waits_of(reader, [shown_row]).get(row.id, ())
    keys = shown_keys(reader.state, row)
    values: dict[str, Any] = {
        "row": shown_row,
        "idempotency_key": keys.idempotency,
        "concurrency_key": keys.concurrency,
        "payload": redacted(row.payload, names),
        "result": redacted(row.result, names),
        "attempts": _attempts(reader, row),
        "now": reader.now,
        "steps": steps_of(reader, row.id),
        "waits": reasons,
        "operations": operations_on(reader, row.id),
        "pauses": stopping(reader, row.job_type, row.queue) if waits else (),
    }
    return record(RunView, row, **values)


def _attempts(reader: Reader, row: Row[Any]) -> tuple[Attempt, ...]:
    """Return the attempts of a run, latest first. Only failed ones have their own rows."""
    of_run = select(FAILURES).where(FAILURES.c.run_id == row.id)
    failures = reader.rows(of_run.order_by(FAILURES.c.attempt.desc()).limit(FAILURES_KEPT))
    output_rows = _outputs(reader, row.id)
    outputs = {number: row.output for number, row in output_rows.items()}
    attempts = [
        record(
            Attempt,
            failure,
            number=failure.attempt,
            outcome="failed",
            worker=without_secret(failure.worker),
            ended_at=failure.failed_at,
            output=outputs.get(failure.attempt),
        )
        for failure in failures
    ]
    is_known = row.attempts == 0 or any(attempt.number == row.attempts for attempt in attempts)
    if not is_known and row.status in ("running", "succeeded", "cancelled"):
        latest = Attempt(
            row.attempts,
            row.status,
            without_secret(row.locked_by),
            row.started_at,
            row.finished_at,
            error_type=row.error_type if row.status == "succeeded" else None,
            error=row.last_error if row.status != "running" else None,
            output=outputs.get(row.attempts),
        )
        attempts.insert(0, latest)
    if (leftover := output_rows.get(row.attempts + 1)) is not None:
        worker = without_secret(leftover.worker)
        ended = leftover.written_at
        released = Attempt(
            leftover.attempt, "released", worker, None, ended, output=leftover.output
        )
        attempts.insert(0, released)
    return tuple(attempts)
