"""What the store should do to a run, said again in plain Python."""

from __future__ import annotations

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
    failed_attempts: list[int] = field(default_factory=list)

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

    def retry(self, key_is_held: bool = False) -> None:
        """An operator tries it again, unless another run has its key."""
        if self.unique and key_is_held and not self.holds_key:
            return
        if self.status in ("dead", "cancelled", "failed"):
            self.status, self.cancel_requested = "queued", False
            self.max_attempts = max(self.max_attempts, self.attempts + 1)
