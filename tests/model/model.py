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
    failed_attempts: list[int] = field(default_factory=list)

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
        if kind == "released":
            self.attempts -= 1
        if kind in ("failed", "released") and self.cancel_requested:
            self.status = "cancelled"
        elif kind == "released":
            self.status = "failed" if self.attempts else "queued"
        else:
            self.status = kind

    def cancel(self) -> None:
        """An operator cancels it."""
        if self.status == "running":
            self.cancel_requested = True
        elif self.status in LIVE:
            self.status = "cancelled"

    def retry(self) -> None:
        """An operator tries it again."""
        if self.status in ("dead", "cancelled", "failed"):
            self.status, self.cancel_requested = "queued", False
            self.max_attempts = max(self.max_attempts, self.attempts + 1)
