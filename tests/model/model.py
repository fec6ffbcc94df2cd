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
    on_dead: str | None = None
    """In a strict order, what those behind it do if it ends dead."""
    batch: int | None = None
    failed_attempts: list[int] = field(default_factory=list)

    @property
    def has_place(self) -> bool:
        """Whether those behind it in a strict order wait for it."""
        stops = self.status == "dead" and self.on_dead == "stop"
        return self.on_dead is not None and (self.status in LIVE or stops)

    @property
    def may_be_pruned(self) -> bool:
        """Whether it goes once it is old."""
        return self.status in TERMINAL and not self.has_place

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

    key: str
    on_dead: str
    parent: int | None
    closed: bool = False
    finished: bool = False
    then_run: int | None = None
    pruned: Counter[str] = field(default_factory=Counter)
    """How many of its runs are gone, by status."""


@dataclass
class Model:
    """All runs and batches."""

    runs: dict[int, ModelRun] = field(default_factory=dict)
    batches: dict[int, ModelBatch] = field(default_factory=dict)

    def comes_first(self, id_: int) -> bool:
        """Whether no earlier run of the one strict order is to end before."""
        earlier = (run for other, run in self.runs.items() if other < id_)
        return self.runs[id_].on_dead is None or not any(run.has_place for run in earlier)

    def members(self, id_: int) -> list[ModelRun]:
        """The runs of a batch that are still there."""
        return [run for run in self.runs.values() if run.batch == id_]

    def counts(self, id_: int) -> Counter[str]:
        """How many members of a batch have which status; one inside it counts as one member."""
        counts = Counter(run.status for run in self.members(id_)) + self.batches[id_].pruned
        counts.update(
            self._inner_status(inner)
            for inner, batch in self.batches.items()
            if batch.parent == id_
        )
        return counts

    def _inner_status(self, id_: int) -> str:
        if not self.batches[id_].finished:
            return "open"
        counts = self.counts(id_)
        if counts["dead"]:
            return "dead"
        return "cancelled" if counts and counts["cancelled"] == counts.total() else "succeeded"

    def is_live(self, id_: int) -> bool:
        """Whether a batch has a member that has not ended."""
        counts = self.counts(id_)
        return any(counts[status] for status in (*LIVE, "open"))

    def has_dead(self, id_: int) -> bool:
        """Whether a member of a batch died whose row is still there."""
        inside = (inner for inner, batch in self.batches.items() if batch.parent == id_)
        return any(run.status == "dead" for run in self.members(id_)) or any(
            self._inner_status(inner) == "dead" for inner in inside
        )

    def around(self, id_: int | None) -> list[int]:
        """A batch and those around it, from the inside out."""
        found: list[int] = []
        while id_ in self.batches:
            found.append(id_)
            id_ = self.batches[id_].parent
        return found

    def family(self, id_: int) -> list[int]:
        """A batch and those inside it that have not ended."""
        inside = [b for b, batch in self.batches.items() if batch.parent == id_]
        return [id_, *(f for b in inside if not self.batches[b].finished for f in self.family(b))]

    def retry(self, id_: int, key_is_held: bool) -> None:
        """An operator tries a run again; its batches go on, whoever dies in them from now on."""
        run = self.runs[id_]
        around = self.around(run.batch)
        halted = [batch for batch in around if self.batches[batch].finished or self.has_dead(batch)]
        if run.retry(key_is_held):
            for batch in around:
                self.batches[batch].finished = False
            for batch in halted:
                self.batches[batch].on_dead = "continue"

    def stop(self) -> list[int]:
        """Cancel what waits in batches that a death stops; return those runs."""
        stopped = [
            member
            for id_, batch in self.batches.items()
            if not batch.finished and batch.on_dead == "stop" and self.has_dead(id_)
            for member in self.family(id_)
        ]
        waiting = [
            id_
            for id_, run in self.runs.items()
            if run.batch in stopped and run.status in ("queued", "failed")
        ]
        for id_ in waiting:
            self.runs[id_].cancel()
        return waiting

    def may_end(self, id_: int) -> bool:
        """Whether a batch ends once somebody looks."""
        batch = self.batches[id_]
        return batch.closed and not batch.finished and not self.is_live(id_)

    def end(self, id_: int, then_run: int) -> None:
        """A batch ends, and its ``then`` is enqueued, unless it was before."""
        batch = self.batches[id_]
        batch.finished = True
        if batch.then_run is None:
            batch.then_run = then_run
            self.runs[then_run] = ModelRun(2, batch=batch.parent)
        assert batch.then_run == then_run

    def prune(self, marked: set[int]) -> None:
        """All that has ended is old, and goes, but for those whose turn nobody has given on."""
        for id_, run in list(self.runs.items()):
            if run.may_be_pruned and id_ not in marked:
                del self.runs[id_]
                if run.batch in self.batches:
                    self.batches[run.batch].pruned[run.status] += 1
        while gone := [id_ for id_, batch in self.batches.items() if self._may_go(id_, batch)]:
            for id_ in gone:
                del self.batches[id_]

    def _may_go(self, id_: int, batch: ModelBatch) -> bool:
        kept = self.members(id_) or batch.then_run in self.runs or batch.parent in self.batches
        return batch.finished and not kept
