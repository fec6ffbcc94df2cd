"""What the store should do to a run, said again in plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

LIVE = ("queued", "failed", "running")
TERMINAL = ("succeeded", "dead", "cancelled", "skipped")


@dataclass
class ModelRun:
    """A run as the store should have it."""

    max_attempts: int
    status: str = "queued"
    attempts: int = 0
    token: str | None = None
    cancel_requested: bool = False
    unique: bool = False
    """Whether it has a key that no other run may have while it is pending."""
    strict: bool = False
    batch: int | None = None
    failed_attempts: list[int] = field(default_factory=list)

    @property
    def has_place(self) -> bool:
        """Whether those behind it in a strict order wait for it."""
        return self.strict and self.status in LIVE

    @property
    def holds_key(self) -> bool:
        """Whether nobody else may have its key."""
        return self.unique and self.status in LIVE

    def claim(self, token: str) -> None:
        """It is claimed."""
        assert self.status in ("queued", "failed")
        assert self.attempts < self.max_attempts
        self.status, self.token = "running", token
        self.attempts += 1

    def finalize(self, kind: str) -> None:
        """Its holder's outcome is accepted."""
        assert self.status == "running"
        self.token = None
        if kind in ("failed", "dead"):
            self.failed_attempts.append(self.attempts)
        if kind in ("released", "snoozed"):
            self.attempts -= 1
        if kind in ("failed", "released", "snoozed") and self.cancel_requested:
            self.status = "cancelled"
        elif kind in ("released", "snoozed"):
            self.status = "failed" if self.attempts else "queued"
        else:
            self.status = kind

    def cancel(self) -> None:
        """An operator cancels it."""
        if self.status == "running":
            self.cancel_requested = True
        elif self.status in LIVE:
            self.status = "cancelled"

    def discard(self) -> None:
        """An operator wants no more of it."""
        if self.status == "dead":
            self.status = "cancelled"

    def retry(self, key_is_held: bool = False) -> bool:
        """An operator tries it again, unless another run has its key; return whether that is so."""
        if self.unique and key_is_held and not self.holds_key:
            return False
        if self.status not in ("dead", "cancelled", "failed"):
            return False
        self.status, self.cancel_requested = "queued", False
        self.max_attempts = max(self.max_attempts, self.attempts + 1)
        return True


@dataclass
class ModelBatch:
    """A batch as the store should have it."""

    closed: bool = False
    counts: Counter[str] | None = None
    """How many of its runs had which status when it ended."""
    then_run: int | None = None


@dataclass
class Model:
    """All runs and batches."""

    runs: dict[int, ModelRun] = field(default_factory=dict)
    batches: dict[int, ModelBatch] = field(default_factory=dict)

    def comes_first(self, id_: int) -> bool:
        """Whether no earlier run of the one strict order is to end before."""
        earlier = (run for other, run in self.runs.items() if other < id_)
        return not self.runs[id_].strict or not any(run.has_place for run in earlier)

    def members(self, id_: int) -> dict[int, ModelRun]:
        """The runs of a batch."""
        return {run_id: run for run_id, run in self.runs.items() if run.batch == id_}

    def may_end(self, id_: int) -> bool:
        """Whether a batch ends once somebody looks."""
        batch = self.batches[id_]
        live = any(run.status in LIVE for run in self.members(id_).values())
        return batch.closed and batch.counts is None and not live

    def end(self, id_: int, then_run: int) -> None:
        """A batch ends, and its ``then`` is enqueued."""
        batch = self.batches[id_]
        batch.counts = Counter(run.status for run in self.members(id_).values())
        batch.then_run = then_run
        self.runs[then_run] = ModelRun(2)

    def prune(self, marked: set[int]) -> None:
        """All that has ended is old, and goes, but for those whose turn nobody has given on."""
        old = {id_ for id_, run in self.runs.items() if run.status in TERMINAL} - marked
        for id_ in old:
            if self.runs[id_].batch is None:
                del self.runs[id_]
        for id_, batch in list(self.batches.items()):
            members = self.members(id_).keys()
            if batch.counts is not None and batch.then_run not in self.runs and members <= old:
                del self.batches[id_]
                for member in members:
                    del self.runs[member]
