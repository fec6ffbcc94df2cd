"""The behavior of the store for a run, repeated in plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

LIVE = ("queued", "failed", "running")
TERMINAL = ("succeeded", "dead", "cancelled", "skipped")


@dataclass
class ModelStep:
    """A durable step of a run, or an early signal.

    :ivar placed: whether an attempt has reached it.
    :ivar ended: whether it is done: its work, its time, or its signal has come.
    :ivar due: after how many seconds a waiting step is over.
    """

    kind: str
    placed: bool = False
    ended: bool = False
    due: float | None = None

    @property
    def is_passed(self) -> bool:
        """Return whether later attempts continue after it."""
        return self.placed and self.ended


@dataclass
class ModelRun:
    """A run as the store should have it.

    :ivar due: in how many seconds it is due, by the clock of the history.
    :ivar key: the idempotency key that it has, or had.
    :ivar claims: how often it was claimed. For keys and payloads, a run begins with its first
        claim.
    :ivar rate: ``waits`` without a start, or ``ready`` to be claimed; None if it has no rate.
    :ivar waits_at: the step at which its last attempt stopped to wait.
    """

    max_attempts: int
    status: str = "queued"
    attempts: int = 0
    token: str | None = None
    cancel_requested: bool = False
    strict: bool = False
    batch: int | None = None
    concurrency: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    due: float = 0.0
    key: str | None = None
    unique_while: str | None = None
    claims: int = 0
    rate: str | None = None
    snoozes: int = 0
    forgiven: int = 0
    steps: dict[str, ModelStep] = field(default_factory=dict)
    waits_at: str | None = None
    failed_attempts: list[int] = field(default_factory=list)

    @property
    def has_place(self) -> bool:
        """Return whether later runs of a strict order wait for it."""
        return self.strict and self.status in LIVE

    @property
    def holds_key(self) -> bool:
        """Return whether other runs are refused its key."""
        if self.key is None or self.unique_while is None:
            return self.key is not None
        return self.status in LIVE and self.held_its_key

    @property
    def wants_key(self) -> bool:
        """Return whether a retry would take its key back."""
        given_up = self.key is not None and self.unique_while is not None
        return given_up and self.status not in LIVE and self.held_its_key

    @property
    def held_its_key(self) -> bool:
        """Return whether it would hold its key if it had not ended."""
        return self.unique_while == "pending" or not self.claims

    @property
    def is_due(self) -> bool:
        """Return whether its own values allow a claim."""
        waits = self.status in ("queued", "failed") and self.rate != "waits"
        return waits and self.due <= 0 and self.attempts < self.max_attempts

    def claim(self, token: str) -> None:
        """Claim the run."""
        assert self.status in ("queued", "failed")
        assert self.attempts < self.max_attempts
        assert self.rate != "waits"
        assert self.due <= 0
        self.status, self.token = "running", token
        self.attempts += 1
        self.claims += 1

    def finalize(self, kind: str, delay: float = 0.0) -> None:
        """Accept its holder's outcome."""
        assert self.status == "running"
        self.token = None
        self.snoozes += kind == "snoozed"
        if kind in ("failed", "dead"):
            self.failed_attempts.append(self.attempts)
        if kind in ("released", "snoozed"):
            if self.forgiven == self.attempts:
                self.forgiven -= 1
                self.max_attempts -= 1
            self.attempts -= 1
        if kind in ("failed", "snoozed"):
            self.due, self.waits_at = delay, None
        if kind in ("failed", "released", "snoozed") and self.cancel_requested:
            self.status = "cancelled"
        elif kind in ("released", "snoozed"):
            self.status = "failed" if self.attempts else "queued"
        else:
            self.status = kind
        self.rate = self.rate and ("waits" if self.status in LIVE else "ready")

    def cancel(self) -> None:
        """Cancel the run, as an operator does."""
        if self.status == "running":
            self.cancel_requested = True
        elif self.status in LIVE:
            self.status = "cancelled"
            self.rate = self.rate and "ready"

    def discard(self) -> None:
        """Discard the run, as an operator does."""
        if self.status == "dead":
            self.status = "cancelled"

    def retry(self, key_is_held: bool = False) -> bool:
        """Retry the run unless another has its key; return whether it was retried."""
        if self.status not in ("dead", "cancelled", "failed"):
            return False
        if self.wants_key and key_is_held:
            return False
        self.status, self.cancel_requested = "queued", False
        self.due, self.waits_at = 0.0, None
        self.rate = self.rate and "waits"
        self.max_attempts = max(self.max_attempts, self.attempts + 1)
        return True

    def replace(self, replace: object, given: ModelRun) -> None:
        """Replace its work or time, as an enqueue with its key does."""
        assert not self.claims
        if replace in (True, "payload"):
            self.payload, self.concurrency = given.payload, given.concurrency
            self.rate = given.rate
        if replace in (True, "run_at"):
            self.due = given.due

    def comes_to(self, name: str, kind: str, delay: float | None) -> ModelStep:
        """Let its attempt finish a step, or reach one that waits."""
        step = self.steps.setdefault(name, ModelStep(kind, ended=kind == "step"))
        assert step.kind == kind
        assert not step.is_passed
        step.ended = step.ended or (step.due is not None and step.due <= 0)
        step.due = delay if step.due is None else step.due
        step.placed = True
        if not step.ended:
            assert step.due is not None
            self.due, self.waits_at = step.due, name
        elif self.attempts > self.forgiven:
            self.max_attempts += self.attempts - self.forgiven
            self.forgiven = self.attempts
        return step

    def signal(self, name: str) -> bool:
        """Send it a signal; return whether the signal came in time."""
        step = self.steps.get(name)
        if self.status not in LIVE or (step is not None and step.ended):
            return False
        if step is None and self.waits_for is not None:
            return False
        step = self.steps.setdefault(name, ModelStep("wait"))
        step.ended = True
        if step.due is not None and self.due > 0:
            self.due, self.waits_at = 0.0, None
        return True

    @property
    def waits_for(self) -> str | None:
        """Return the signal that it waits for now."""
        waits = self.waits_at is not None and self.token is None and self.due > 0
        if not waits or self.steps[str(self.waits_at)].kind != "wait":
            return None
        return None if self.steps[str(self.waits_at)].ended else self.waits_at

    def clock_steps(self, seconds: float) -> None:
        """Move the clock ahead by *seconds*."""
        self.due -= seconds
        for step in self.steps.values():
            step.due = None if step.due is None else step.due - seconds


@dataclass
class ModelBatch:
    """A batch as the store should have it."""

    closed: bool = False
    counts: Counter[str] | None = None
    """The counts of its runs by status when it ended."""
    then_run: int | None = None


@dataclass
class Model:
    """All runs and batches."""

    runs: dict[int, ModelRun] = field(default_factory=dict)
    batches: dict[int, ModelBatch] = field(default_factory=dict)

    def comes_first(self, id_: int) -> bool:
        """Return whether no earlier run of the strict order is unfinished."""
        earlier = (run for other_id, run in self.runs.items() if other_id < id_)
        return not self.runs[id_].strict or not any(run.has_place for run in earlier)

    def is_busy(self, concurrency: str | None) -> bool:
        """Return whether the one share of a concurrency key is taken."""
        at_work = (run.concurrency for run in self.runs.values() if run.status == "running")
        return concurrency is not None and concurrency in at_work

    def holder(self, key: str | None, but: int | None = None) -> int | None:
        """Return the run that has an idempotency key, except *but*."""
        for id_, run in self.runs.items():
            if key is not None and id_ != but and run.key == key and run.holds_key:
                return id_
        return None

    def enqueue(self, given: ModelRun, replace: object) -> tuple[str, int | None]:
        """Enqueue a run; return the result, and the run that then has its key.

        The result is ``refused`` if it would leave its strict order.
        """
        id_ = self.holder(given.key)
        if id_ is None:
            return "new", None
        run = self.runs[id_]
        if not replace or run.claims or run.status not in LIVE:
            return "found", id_
        if run.strict and replace != "run_at" and run.concurrency != given.concurrency:
            return "refused", id_
        run.replace(replace, given)
        return "replaced", id_

    def members(self, id_: int) -> dict[int, ModelRun]:
        """Return the runs of a batch."""
        return {run_id: run for run_id, run in self.runs.items() if run.batch == id_}

    def may_end(self, id_: int) -> bool:
        """Return whether a batch ends when it is checked."""
        batch = self.batches[id_]
        live = any(run.status in LIVE for run in self.members(id_).values())
        return batch.closed and batch.counts is None and not live

    def end(self, id_: int, then_run: int) -> None:
        """End a batch, and enqueue its ``then``."""
        batch = self.batches[id_]
        batch.counts = Counter(run.status for run in self.members(id_).values())
        batch.then_run = then_run
        self.runs[then_run] = ModelRun(2)

    def prune(self) -> None:
        """Remove everything that has ended."""
        old = {id_ for id_, run in self.runs.items() if run.status in TERMINAL}
        for id_ in old:
            if self.runs[id_].batch is None:
                del self.runs[id_]
        for id_, batch in list(self.batches.items()):
            members = self.members(id_).keys()
            if batch.counts is not None and batch.then_run not in self.runs and members <= old:
                del self.batches[id_]
                for member in members:
                    del self.runs[member]
