"""How tasks run, how runs are enqueued, and what a worker does: frozen options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from .errors import MAX_DELAY, TaskError
from .retry import Retry, RetryCallable, check_attempts
from .types import Outcome

if TYPE_CHECKING:
    from .store import Bookkeeping


@dataclass(frozen=True)
class TaskOptions:
    """How a task's runs are queued, limited and tried again; see `CronJobs.task`."""

    queue: str = "default"
    priority: int = 0
    retry: Retry | RetryCallable | int | bool | None = None
    timeout: float | None = None
    concurrency: int | None = None
    concurrency_key: str | None = None
    atomic: bool = False


class Upkeep(Protocol):
    """What a resident worker does beside its runs."""

    def each_minute(
        self, books: Bookkeeping, counts: Counter[str], wake: Callable[[], None]
    ) -> None:
        """Do what is due each minute; the first is when work begins.

        :param counts: how many attempts came to which outcome, to be reset at will.
        :param wake: lets the worker look for runs at once. May be called from any thread.
        """

    def end(self, books: Bookkeeping, counts: Counter[str]) -> None:
        """Close the last minute, when the worker has stopped."""

    def leave(self) -> None:
        """Let go of all else, when the worker has ended, however it did."""

    def of_worker(self, number: int) -> Upkeep:
        """The upkeep of that worker of a crew of several, from 0."""
        ...


@dataclass(frozen=True)
class WorkOptions:
    """What one worker does, and until when.

    :ivar worker: its name, ``host:pid``, at the head of its tokens.
    :ivar until: `time.monotonic` after which nothing is claimed.
    :ivar upkeep: what a resident worker does beside its runs. A worker that has it waits for more
        work when nothing is claimable.
    :ivar may_kill: whether the process is ours to end when a handler will not.
    """

    worker: str
    until: float = float("inf")
    max_runs: int | None = None
    queues: tuple[str, ...] = ()
    upkeep: Upkeep | None = None
    may_kill: bool = False
    on_outcome: Callable[[Outcome], None] | None = None
    on_beat: Callable[[Bookkeeping], None] | None = None


@dataclass(frozen=True)
class EnqueueOptions:
    """How runs are enqueued; see `Task.using`. None: as the task says."""

    run_at: datetime | None = None
    delay: float | None = None
    idempotency_key: str | None = None
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    commit: bool = False

    def check(self) -> None:
        """Check the values.

        :raises TaskError: one cannot be right.
        """
        if self.run_at is not None and self.delay is not None:
            raise TaskError("run_at and delay were both given. Give one of them.")
        if self.run_at is not None and getattr(self.run_at, "tzinfo", None) is None:
            raise TaskError(
                f"run_at is {str(self.run_at)!r}, not a time with a time zone. Give an aware time, "
                "such as datetime.now(timezone.utc) + timedelta(hours=1)."
            )
        if self.delay is not None and not _is_delay(self.delay):
            raise TaskError(
                f"delay is {self.delay!r}. Give seconds from 0 to {MAX_DELAY} (a year)."
            )
        if self.max_attempts is not None:
            check_attempts(self.max_attempts, "max_attempts")
        if self.priority is not None and not _is_small_int(self.priority):
            raise TaskError(f"priority is {self.priority!r}. Give a whole number, -32768 to 32767.")
        for name, text, most in (
            ("queue", self.queue, 100),
            ("idempotency_key", self.idempotency_key, 500),
        ):
            if text is not None and not is_key(text, most):
                raise TaskError(
                    f"{name} is {text!r}. Give a text of 1 to {most} printable characters."
                )


def _is_delay(value: object) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_DELAY
    )


def _is_small_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -32768 <= value <= 32767


def is_key(value: object, most: int) -> bool:
    """Whether *value* is a text of 1 to *most* printable characters."""
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable()
