"""Whether a worker is to stop, and why."""

from __future__ import annotations

import time
from collections.abc import Callable


class StopFlag:
    """Whether a worker is to stop: its keeper, its signals and what is beside it share one.

    Any thread may use it, and a signal handler.

    :param wake: lets the keeper look at once.
    :ivar at: when somebody asked the worker to stop, by `time.monotonic`; None: nobody has.
    :ivar error: what makes all further work useless.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.at: float | None = None
        self.error: BaseException | None = None
        self._wake = wake

    def stop(self) -> None:
        """Let the worker claim nothing more."""
        self.at = self.at or time.monotonic()
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Stop, since *error* makes all further work useless."""
        self.error = self.error or error
        self.stop()
