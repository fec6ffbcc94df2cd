"""The values that one part of the package passes to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias, TypeGuard, get_args

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None
Payload: TypeAlias = Mapping[str, JSON]

Status: TypeAlias = Literal[
    "queued", "running", "succeeded", "failed", "dead", "cancelled", "skipped"
]
STATUSES: tuple[Status, ...] = get_args(Status)
TERMINAL: tuple[Status, ...] = ("succeeded", "dead", "cancelled", "skipped")

Catchup: TypeAlias = Literal["latest", "all", "none"]
Overlap: TypeAlias = Literal["skip", "allow"]
InDoubt: TypeAlias = Literal["skip", "redo", "raise"]


class RunIds(list[int]):
    """The ids of the runs that `Task.enqueue_many` was asked for, in the order of its argument.

    :ivar is_new: for each of them, whether the call inserted the run; False if an idempotency key
        made it take a run that there was.
    """

    def __init__(self, ids: Iterable[int] = (), is_new: Iterable[bool] = ()) -> None:
        super().__init__(ids)
        self.is_new: list[bool] = list(is_new)

    @property
    def new(self) -> list[int]:
        """The ids of the runs that the call inserted."""
        return [run for run, is_new in zip(self, self.is_new, strict=True) if is_new]


class Claim(NamedTuple):
    """A run that a worker holds.

    One is made for each run, and a named tuple is three times as fast as a frozen dataclass.

    :ivar id: the run's id.
    :ivar token: ``host:pid:random``, new for each claim. A write with it matches no row once
        another worker has claimed the run.
    :ivar job_type: the task's name.
    :ivar attempt: the number of this attempt, from 1.
    :ivar max_attempts: how many attempts the run has in all.
    :ivar scheduled_for: the slot, or the time that enqueue asked for; aware, UTC.
    :ivar definition_id: the definition whose slot this is; None for an enqueued run.
    :ivar broken: why the row could not be read; the attempt then fails without a call.
    :ivar alone: whether nothing else may be at work in its process: it is the last attempt, or the
        one before was lost with its worker.
    """

    id: int
    token: str
    job_type: str
    payload: dict[str, JSON]
    attempt: int
    max_attempts: int
    scheduled_for: datetime
    idempotency_key: str | None = None
    definition_id: int | None = None
    concurrency_key: str | None = None
    broken: str | None = None
    alone: bool = False

    def __str__(self) -> str:
        """Return the run's task and id, without the payload, which is never logged."""
        return f"task {self.job_type}, run {self.id}"


#: How an attempt ended. ``released`` returns the run to the queue without counting the attempt.
OutcomeKind: TypeAlias = Literal["succeeded", "failed", "dead", "cancelled", "released"]


class Outcome(NamedTuple):
    """How one attempt ended. A named tuple for the same reason as `Claim`.

    :ivar id: the run's id.
    :ivar token: the claim's token.
    :ivar kind: the outcome; ``failed`` will be retried, ``dead`` will not.
    :ivar attempt: the number of the attempt, from 1.
    :ivar job_type: the task's name.
    :ivar error: the message, shortened and without credentials; of a success a warning, or None.
    :ivar error_type: the name of the exception's type, or the kind of the warning.
    :ivar stack: the stack, shortened; None where it would not help.
    :ivar result: what the handler returned, if JSON and small.
    :ivar delay: seconds until the next attempt; only for ``failed``.
    :ivar seconds: how long the attempt took.
    :ivar reclaimed: the lease ran out; it is recorded only if the lease is still expired.
    :ivar finalized: the row has it already, written in the handler's own transaction.
    """

    id: int
    token: str
    kind: OutcomeKind
    attempt: int
    job_type: str
    error: str | None = None
    error_type: str | None = None
    stack: str | None = None
    result: JSON = None
    delay: float = 0.0
    seconds: float = 0.0
    reclaimed: bool = False
    finalized: bool = False

    @property
    def begun(self) -> bool:
        """Whether the handler began: a claim may be released while it waits behind a long run."""
        return self.kind != "released" or self.seconds > 0


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did, as in its row of ``job_ticks``.

    The numbers count attempts, except *recorded* (runs inserted for due slots), *skipped* (rows of
    skipped slots) and *pruned* (runs deleted). *seconds* is how long the tick took.
    """

    worker: str
    recorded: int = 0
    skipped: int = 0
    reclaimed: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    released: int = 0
    lost: int = 0
    pruned: int = 0
    seconds: float = 0.0

    @property
    def attempts(self) -> int:
        """How many attempts ended in this tick."""
        return self.succeeded + self.failed + self.dead + self.cancelled + self.released


@dataclass(frozen=True, slots=True)
class DefinitionSpec:
    """A definition as code or `add_definition` gives it."""

    name: str
    job_type: str
    schedule: str
    timezone: str
    payload: dict[str, JSON]
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 10
    catchup: Catchup = "latest"
    overlap: Overlap = "skip"
    concurrency_key: str | None = None
    concurrency_limit: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedSlot:
    """The row of ``job_runs`` for a slot that runs, or for skipped ones.

    :ivar run_id: the row's id.
    :ivar job_type: the task's name.
    :ivar at: the slot, or the last one of several skipped; aware, UTC.
    :ivar skipped: how many skipped slots the row stands for; 0 means that it runs.
    :ivar reason: why they were skipped; None for a run.
    """

    run_id: int
    definition_id: int
    job_type: str
    at: datetime
    skipped: int
    reason: str | None


def is_whole(value: object, least: int, most: int) -> TypeGuard[int]:
    """Return whether *value* is a whole number in this range; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, least: float, most: float) -> TypeGuard[float]:
    """Return whether *value* is a number in this range; True and False are not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return least <= value <= most
