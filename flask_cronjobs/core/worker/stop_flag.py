"""Whether a worker is to stop, and why."""

from __future__ import annotations

import time
from collections.abc import Callable


class StopFlag:
    """Tells whether a worker must stop; its keeper, signal handlers and threads share one.

    Any thread and any signal handler may use it.

    :param wake: wakes the keeper.
    :ivar at: when the worker was asked to stop, by `time.monotonic`; None if it was not.
    :ivar error: the error that makes further work useless.
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
