"""The values that one part of the package passes to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, TypeAlias, TypeGuard, get_args

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


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that a worker holds.

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended.

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
class ClaimRequest:
    """What a worker asks for.

    :ivar limit: how many runs at most.
    :ivar token: the token that they get.
    :ivar tasks: the tasks that this worker can run.
    :ivar queues: the queues to claim from; empty means all.
    :ivar lease: seconds that the claim holds without a heartbeat.
    :ivar alone: whether the worker holds nothing else, so that a retry may be claimed.
    :ivar after: the concurrency key after which a search from key to key begins.
    :ivar side_by_side: whether the runs are to run at the same time, as async handlers do. Then
        retries are claimed together with others, but for a last attempt, and for one after a lost
        worker; and unless *alone*, those are passed over.
    """

    limit: int
    token: str
    tasks: tuple[str, ...]
    queues: tuple[str, ...] = ()
    lease: float = 120.0
    alone: bool = True
    after: str = ""
    side_by_side: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """The result of `Claims.exchange`.

    :ivar recorded: the ids of the runs whose outcomes are recorded.
    :ivar claims: the runs newly claimed.
    :ivar cancelled: those of *recorded* that became cancelled instead of being retried, because a
        cancel was requested while they ran.
    :ivar locked: the ids of the runs that are held still, and whose outcomes cannot be recorded
        yet: another transaction has locked their rows.
    """

    recorded: frozenset[int] = frozenset()
    claims: tuple[Claim, ...] = ()
    cancelled: frozenset[int] = frozenset()
    locked: frozenset[int] = frozenset()

    def stored(self, outcome: Outcome) -> Outcome:
        """Return *outcome* as its row has it."""
        return replace(outcome, kind="cancelled") if outcome.id in self.cancelled else outcome


@dataclass(frozen=True, slots=True)
class Slot:
    """One instant that a definition's schedule names, to be recorded as a row of ``job_runs``.

    :ivar skipped: how many skipped slots the row stands for; 0 means that it runs.
    :ivar first: the first of the skipped slots; *at* is the last.
    :ivar reason: why they are skipped.
    :ivar kind: the same in a word, for ``error_type``: ``Missed``, ``Undeclared`` or ``Paused``.
    """

    definition_id: int
    at: datetime
    skipped: int = 0
    first: datetime | None = None
    reason: str | None = None
    kind: str = "Missed"


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
class DefinitionRow:
    """A definition as read from its row.

    :ivar now: the database's time when the row was read.
    :ivar considered_until: every slot up to here has been recorded, or was never owed.
    :ivar undeclared_since: from when on the code that ticked did not declare it.
    :ivar app: the name of the app whose code declared it.
    :ivar broken: which column cannot be read; *spec* or *next_run_at* then has an empty value.
    """

    id: int
    spec: DefinitionSpec
    origin: str
    paused: bool
    next_run_at: datetime | None
    now: datetime
    broken: str | None = None
    considered_until: datetime | None = None
    undeclared_since: datetime | None = None
    app: str | None = None

    @property
    def due(self) -> bool:
        """Whether a slot has to be recorded, or may have to be because the row cannot be read."""
        if self.next_run_at is None:
            return not self.paused and self.broken is not None
        return not self.paused and self.next_run_at <= self.now


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What to record for one due definition, all or nothing.

    :ivar expected: the watermark that the plan starts from; if the row has another by now, another
        tick was faster and the plan is dropped.
    :ivar following: the new watermark; None if no slot follows.
    :ivar considered: up to when slots were considered; None leaves what the row has.
    """

    definition_id: int
    expected: datetime
    following: datetime | None
    slots: tuple[Slot, ...]
    considered: datetime | None = None


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
