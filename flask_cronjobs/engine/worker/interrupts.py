"""Interrupt a handler from outside: SIGALRM in the main thread raises an exception inside it.

The kernel's timer sends the signal at a timeout, whatever the other threads do; the keeper sends it
for a cancel or a shutdown. A signal also ends a blocking system call, which setting an exception on
a thread would not. In other threads, and where there is no SIGALRM, nothing can be interrupted.

A signal that arrives after the interpreter last looked and before a system call blocks is noted but
ends nothing. So it is sent again until it is heard.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from ...errors import Interruption, TimedOut
from ...types import Claim

#: How often the signal of a timeout is sent until it is heard, in seconds.
REPEAT_EVERY = 0.25


class HandlerInterrupter:
    """Raises an `Interruption` inside the armed handler, and nowhere else.

    `arm` and `disarm` belong to the runner's thread; `interrupt` and `repeat` may be called from
    any thread.
    """

    def __init__(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        self.enabled: bool = in_main and hasattr(signal, "setitimer")
        self._armed: Claim | None = None
        self._deadline = float("inf")
        self._timeout = 0.0
        self._requested: dict[int, tuple[Claim, Interruption]] = {}
        self._thread = threading.get_ident()
        self._previous: Any = None

    def __enter__(self) -> HandlerInterrupter:
        if self.enabled:
            self._previous = signal.signal(signal.SIGALRM, self._on_signal)
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
        """Let *claim*'s handler be interrupted from now on, and after *timeout* seconds.

        :raises Interruption: one was requested before the handler began.
        """
        if self.enabled:
            self._timeout = timeout
            self._deadline = time.monotonic() + timeout
            self._armed = claim
            signal.setitimer(signal.ITIMER_REAL, timeout, REPEAT_EVERY)
            if self._requested:
                self._raise_requested(claim)

    def disarm(self) -> None:
        """Raise nothing from now on."""
        if self.enabled:
            self._armed = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def interrupt(self, claim: Claim, error: Interruption) -> None:
        """Raise *error* inside *claim*'s handler, now or when it begins."""
        if self.enabled:
            self._requested[claim.id] = (claim, error)
            signal.pthread_kill(self._thread, signal.SIGALRM)

    def repeat(self) -> None:
        """Send the signal once more if an `interrupt` was not heard yet."""
        armed = self._armed
        if self.enabled and armed is not None and armed.id in self._requested:
            signal.pthread_kill(self._thread, signal.SIGALRM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A signal heard on entering disarm() came too late: the handler has ended.
        disarming = frame is not None and frame.f_code is HandlerInterrupter.disarm.__code__
        if self._armed is None or disarming:
            return
        self._raise_requested(self._armed)
        if time.monotonic() >= self._deadline:
            self._deadline = float("inf")
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise TimedOut(f"the handler ran longer than its timeout of {self._timeout:g} s")

    def _raise_requested(self, claim: Claim) -> None:
        requested = self._requested.pop(claim.id, None)
        # The run may have come back to this worker under another claim.
        if requested is not None and requested[0] is claim:
            raise requested[1]
