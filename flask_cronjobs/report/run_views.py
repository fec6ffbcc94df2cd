"""What the reports hand out about runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..types import JSON, Status


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs; what is None does not matter.

    :ivar error: a part of the error's type or message, in any case.
    :ivar error_type: the error's type, exactly; empty: those without one.
    :ivar definition: the name of the definition whose slots the runs are.
    :ivar older_than: seconds since the run ended, or since it was due if it has not; at least.
    :ivar newer_than: the same; at most.
    :ivar overdue: only runnable runs due for longer than ``CRONJOBS_HEALTH_OVERDUE``.
    :ivar stale: only running runs whose lease ran out.
    """

    status: Status | None = None
    task: str | None = None
    queue: str | None = None
    error: str | None = None
    error_type: str | None = None
    definition: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    overdue: bool = False
    stale: bool = False


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run, as a list shows it: no payload, no stack, its error cut to one line."""

    id: int
    definition: str | None
    timezone: str | None
    task: str
    queue: str
    priority: int
    status: Status
    attempts: int
    max_attempts: int
    scheduled_for: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    locked_by: str | None
    locked_until: datetime | None
    error_type: str | None
    last_error: str | None
    progress: float | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, newest id first.

    :ivar before: the id to go on before, or None at the end.
    :ivar partial: the search stopped before it had a full page; go on to look further.
    :ivar now: the database's now.
    """

    rows: tuple[RunRow, ...]
    before: int | None
    partial: bool
    now: datetime


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a run.

    :ivar outcome: ``failed``, or the run's status for the latest attempt.
    :ivar worker: the token of its claim; unknown (None) once it succeeded.
    """

    number: int
    outcome: str
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    error_type: str | None = None
    error: str | None = None
    stack: str | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took, if it ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, (self.ended_at - self.started_at).total_seconds())


@dataclass(frozen=True, slots=True)
class RunView:
    """One run in full, redacted by ``CRONJOBS_REDACT``.

    :ivar row: what a list shows of it.
    :ivar attempts: the latest first, at most the latest 50.
    :ivar now: the database's now.
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
    created_at: datetime
    updated_at: datetime
    attempts: tuple[Attempt, ...]
    now: datetime
