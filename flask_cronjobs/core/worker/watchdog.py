"""The watchdog ends a process whose handler cannot be interrupted.

It is faulthandler's timer, which does not need the interpreter's lock: it ends even a process whose
handler never lets go of that lock, and in which no other thread of ours can run.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from contextlib import suppress

#: How long the watchdog waits, in leases. More than one: a process that was frozen past its lease
#: must be able to see that the lease is lost, and say so, before its own watchdog ends it.
WATCHDOG_LEASES = 3
#: How often the watchdog is armed again, in seconds.
REARM_EVERY = 1.0


class Watchdog:
    """Armed while a worker holds runs.

    `arm` and `disarm` belong to the keeper's thread; `extend` may be called from any thread.

    :param lease: the length of a lease, in seconds.
    :param enabled: whether this process may be ended.
    :ivar is_shortened: whether the timer was started for less than its length.
    """

    def __init__(self, lease: float, enabled: bool) -> None:
        self._length = lease * WATCHDOG_LEASES
        self._enabled = enabled
        self._armed_at = float("-inf")
        self.is_shortened: bool = False

    def arm(self, at_most: float = float("inf")) -> None:
        """Start the timer, or start it again if it was started a second ago.

        :param at_most: seconds; shortens the timer.
        """
        if time.monotonic() - self._armed_at < REARM_EVERY:
            return
        self._start(min(at_most, self._length))
        self.is_shortened = at_most < self._length

    def extend(self) -> None:
        """Give the timer its whole length again if it was shortened."""
        if self.is_shortened:
            self.is_shortened = False
            self._start(self._length)

    def disarm(self) -> None:
        """Stop the timer."""
        if self._armed_at > float("-inf"):
            faulthandler.cancel_dump_traceback_later()
            self._armed_at = float("-inf")

    def _start(self, seconds: float) -> None:
        if not self._enabled or sys.__stderr__ is None:
            return
        with suppress(ValueError, OSError, RuntimeError, AttributeError):
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
            self._armed_at = time.monotonic()
