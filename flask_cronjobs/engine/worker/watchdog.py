"""The fuse: faulthandler's watchdog, which ends the process unless it is lit anew in time.

It needs no interpreter's lock, so it ends even a process in which no thread of ours runs any more,
since a handler never lets go of that lock.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from contextlib import suppress
from types import TracebackType

#: How long the fuse is, in leases. More than one: a process that was frozen past its lease shall
#: wake to find it lost, and say so, and not be ended by its own watchdog.
LEASES = 3
#: How often the fuse is lit anew, in seconds.
AGAIN = 1.0


class Fuse:
    """Burns while a worker holds runs, and is put out when the worker has ended.

    :param lease: the length of a lease, in seconds.
    :param enabled: whether the process is ours to end.
    """

    def __init__(self, lease: float, enabled: bool) -> None:
        self._length = lease * LEASES
        self._enabled = enabled
        self._lit_at = float("-inf")
        self._cut = False

    def __enter__(self) -> Fuse:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.put_out()

    def light(self, left: float = float("inf")) -> None:
        """Light it, or light it anew if that is a second ago; cut to *left* seconds."""
        if time.monotonic() - self._lit_at < AGAIN:
            return
        self._burn(min(left, self._length))
        self._cut = left < self._length

    def lengthen(self) -> None:
        """Let it burn for its whole length again, if it was cut. From any thread."""
        if self._cut:
            self._cut = False
            self._burn(self._length)

    def put_out(self) -> None:
        """Let nothing burn any more."""
        if self._lit_at > float("-inf"):
            faulthandler.cancel_dump_traceback_later()
            self._lit_at = float("-inf")

    def _burn(self, seconds: float) -> None:
        if not self._enabled or sys.__stderr__ is None:
            return
        with suppress(ValueError, OSError, RuntimeError, AttributeError):
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
            self._lit_at = time.monotonic()
