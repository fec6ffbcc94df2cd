"""A clock for what reads `time.monotonic`."""

from __future__ import annotations


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
