"""A clock to replace `time.monotonic`."""

from __future__ import annotations


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
