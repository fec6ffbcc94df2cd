"""The words of this house as types: what one floor hands to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, TypeAlias

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None
Payload: TypeAlias = Mapping[str, JSON]

Status: TypeAlias = Literal[
    "queued", "running", "succeeded", "failed", "dead", "cancelled", "skipped"
]
STATUSES: tuple[Status, ...] = (
    "queued",
    "running",
    "succeeded",
    "failed",
    "dead",
    "cancelled",
    "skipped",
)
TERMINAL: tuple[Status, ...] = ("succeeded", "dead", "cancelled", "skipped")

Catchup: TypeAlias = Literal["latest", "all", "none"]
Overlap: TypeAlias = Literal["skip", "allow"]
InDoubt: TypeAlias = Literal["skip", "redo", "raise"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One run that a worker holds: what the runner needs, and the token that fences its writes.

    :ivar id: the run's id.
    :ivar token: ``host:pid:random``, fresh for each claim.
    :ivar job_type: the task's name.
    :ivar attempt: which attempt this is, from 1.
    :ivar max_attempts: how many attempts the run has in all.
    :ivar scheduled_for: the slot, or the time first asked for; aware, UTC.
    :ivar definition_id: the definition whose slot this is; None for what was enqueued.
    :ivar broken: why the row could not be read: then the attempt fails, and no handler is called.
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

    def __str__(self) -> str:
        """The run in a few words, without its payload, which is never logged."""
        return f"task {self.job_type}, run {self.id}"


#: What an attempt came to. ``released`` gives the run back with its attempt not counted.
OutcomeKind: TypeAlias = Literal["succeeded", "failed", "dead", "cancelled", "released"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attempt came to, ready to be finalized if *token* still holds the run.

    :ivar id: the run's id.
    :ivar token: the claim's token.
    :ivar kind: the outcome; ``failed`` will be tried again, ``dead`` was given up.
    :ivar attempt: which attempt it was, from 1.
    :ivar job_type: the task's name.
    :ivar error: the message, cut and stripped of credentials; None if it succeeded.
    :ivar error_type: the name of the exception's type.
    :ivar stack: the stack, bounded; None where it would say nothing.
    :ivar result: what the handler returned, if JSON and small.
    :ivar delay: seconds from the database's now to the next attempt; used by ``failed`` only.
    :ivar seconds: how long the attempt took.
    :ivar reclaimed: the lease ran out: the write also needs the lease to be still expired.
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
        """Whether the handler began: claims that wait behind a long run are given back before."""
        return self.kind != "released" or self.seconds > 0


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker asks for: how many runs, of which tasks and queues, for how long a lease.

    ``alone`` allows the one claim of a retry: true only while the worker holds nothing else.
    ``after`` is the concurrency key after which to go on where keys have to be looked through.
    """

    limit: int
    token: str
    tasks: tuple[str, ...]
    queues: tuple[str, ...] = ()
    lease: float = 120.0
    alone: bool = True
    after: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one statement of the keeper brought: runs recorded, and runs newly claimed.

    ``cancelled`` are those of the recorded whose cancel was asked for while they ran, so that they
    are not tried again, whatever the attempt came to.
    """

    recorded: frozenset[int] = frozenset()
    claims: tuple[Claim, ...] = ()
    cancelled: frozenset[int] = frozenset()

    def stored(self, outcome: Outcome) -> Outcome:
        """*outcome* as its row has it."""
        return replace(outcome, kind="cancelled") if outcome.id in self.cancelled else outcome


@dataclass(frozen=True, slots=True)
class Slot:
    """One instant that a definition's schedule names, and the run or the skip that it becomes.

    ``skipped`` counts the slots that the row stands for when it is not to run (0: it runs).
    """

    definition_id: int
    at: datetime
    skipped: int = 0
    first: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did: the counts that its row in ``job_ticks`` has.

    All but *recorded* (runs made of due slots), *skipped* (rows of slots not run) and *pruned*
    (runs) count attempts; *seconds* is how long the tick took.
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
        """How many attempts this tick brought to an outcome."""
        return self.succeeded + self.failed + self.dead + self.cancelled + self.released


@dataclass(frozen=True, slots=True)
class DefinitionSpec:
    """A definition as code or `add_definition` states it."""

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
    """A definition as its row stands, with the database's now of the same statement.

    ``broken`` says what of the row cannot be read, and stands in *spec* as if it were empty.
    """

    id: int
    spec: DefinitionSpec
    origin: str
    paused: bool
    next_run_at: datetime | None
    now: datetime
    broken: str | None = None

    @property
    def due(self) -> bool:
        """Whether a slot is waiting to be recorded, or might be for all that can be read."""
        if self.next_run_at is None:
            return not self.paused and self.broken is not None
        return not self.paused and self.next_run_at <= self.now


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What is to be recorded for one due definition, all or nothing.

    ``expected`` is the watermark that the plan was made from: if the row has moved on since,
    another tick was faster and the plan is dropped.
    """

    definition_id: int
    expected: datetime
    following: datetime | None
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class RecordedSlot:
    """A row of ``job_runs`` that a slot became: a run, or a skip with its reason.

    :ivar run_id: the row's id.
    :ivar job_type: the task's name.
    :ivar at: the slot; of a gap, its last one; aware, UTC.
    :ivar skipped: how many slots the row stands for that are not run; 0: it is a run.
    :ivar reason: why they were skipped; None of a run.
    """

    run_id: int
    definition_id: int
    job_type: str
    at: datetime
    skipped: int
    reason: str | None
