"""Interrupting a handler from outside: SIGALRM, in the main thread, raises inside of it.

The kernel's timer rings at a timeout whatever the other threads do; the keeper rings for a cancel
or a shutdown. A signal also ends a blocking system call, which setting an exception on the thread
would not. In other threads, and where there is no SIGALRM, nothing can be interrupted.

A signal that comes after the interpreter last looked and before a system call blocks is noted but
ends nothing: so it rings again until it is heard.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from ...errors import Interruption, TimedOut
from ...types import Claim

#: How often a timeout rings until it is heard, in seconds.
AGAIN = 0.25


class Alarm:
    """Raises an `Interruption` inside the handler that is armed, and nowhere else."""

    def __init__(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        self.enabled: bool = in_main and hasattr(signal, "setitimer")
        self._armed: Claim | None = None
        self._deadline = float("inf")
        self._timeout = 0.0
        self._asked: dict[int, tuple[Claim, Interruption]] = {}
        self._thread = threading.get_ident()
        self._previous: Any = None

    def __enter__(self) -> Alarm:
        if self.enabled:
            self._previous = signal.signal(signal.SIGALRM, self._ring)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.enabled:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._previous)

    def arm(self, claim: Claim, timeout: float) -> None:
        """From now, *claim*'s handler may be interrupted; after *timeout* seconds it is.

        :raises Interruption: one was asked for before it began.
        """
        if self.enabled:
            self._timeout = timeout
            self._deadline = time.monotonic() + timeout
            self._armed = claim
            signal.setitimer(signal.ITIMER_REAL, timeout, AGAIN)
            if self._asked:
                self._raise_asked(claim)

    def disarm(self) -> None:
        """From now, nothing is raised any more."""
        if self.enabled:
            self._armed = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def interrupt(self, claim: Claim, error: Interruption) -> None:
        """Raise *error* inside *claim*'s handler, now or when it begins. From any thread."""
        if self.enabled:
            self._asked[claim.id] = (claim, error)
            signal.pthread_kill(self._thread, signal.SIGALRM)

    def ring_again(self) -> None:
        """Ring once more if an `interrupt` was not heard yet. From any thread."""
        armed = self._armed
        if self.enabled and armed is not None and armed.id in self._asked:
            signal.pthread_kill(self._thread, signal.SIGALRM)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        # A signal heard on entering disarm() came too late: the handler has ended.
        if self._armed is None or (frame is not None and frame.f_code is Alarm.disarm.__code__):
            return
        self._raise_asked(self._armed)
        if time.monotonic() >= self._deadline:
            self._deadline = float("inf")
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise TimedOut(f"the handler ran longer than its timeout of {self._timeout:g} s")

    def _raise_asked(self, claim: Claim) -> None:
        asked = self._asked.pop(claim.id, None)
        # The run may have come back to this worker under another claim.
        if asked is not None and asked[0] is claim:
            raise asked[1]
