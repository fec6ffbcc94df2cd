"""Interrupt a handler from outside: SIGALRM in the main thread raises an exception inside it.

The kernel's timer sends the signal at a timeout, whatever the other threads do; the keeper sends it
for a cancel or a shutdown. A signal also ends a blocking system call, which setting an exception on
a thread would not. In other threads, and where there is no SIGALRM, nothing can be interrupted.

A signal that arrives after the interpreter last looked and before a system call blocks is noted but
ends nothing. So it is sent again until it is heard.

The same timer ends a handler whose lease has ended: the keeper may be stuck in a connection that
hangs, and another worker may have the run.

Where that does not help, the watchdog ends the process.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ...db.statements import cancel_query
from ...errors import Interruption, LeaseLost, TimedOut
from ...jobs.runs.current import running
from ...types import Claim
from .held_runs import Leases

#: How often the signal of a timeout is sent until it is heard, in seconds.
REPEAT_EVERY = 0.25
#: How soon an interruption is raised that would have hit a finalizer, in seconds. Raised there, it
#: would be ignored.
RAISE_AGAIN_AFTER = 0.005
#: After a handler that was shorter than this, in seconds, the timer goes on running for the next.
SHORT = 0.001
#: For how long such a timer is relied on, in seconds: a handler may have changed it.
RELIED_ON = 1.0
_POOL_CLEANUP = {"_finalize_fairy", "_reset"}  # Every way back goes through the first.


#: Raises what is due in the handlers that it knows, in a frame that a signal hits.
Receiver = Callable[[FrameType | None], None]


def timed_out(timeout: float) -> TimedOut:
    """Return the exception of a timeout of so many seconds."""
    return TimedOut(f"the handler ran longer than its timeout of {timeout:g} s")


def lease_ended() -> LeaseLost:
    """Return the exception of a lease that ended while the handler was at work."""
    return LeaseLost("the lease ran out, since it could not be renewed in time")


class AlarmTimer:
    """The kernel's timer, which sends SIGALRM, and again until the signal is heard."""

    def __init__(self) -> None:
        self._due = float("inf")
        self._set_at = 0.0

    def set(self, due: float) -> None:
        """Send the signal at *due*, by `time.monotonic`; never if that is infinite."""
        self._due, self._set_at = due, time.monotonic()
        # An interval of zero would stop the timer; none is longer than its type can take.
        seconds = 0.0 if due == float("inf") else min(max(due - self._set_at, 1e-6), 1e8)
        signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_EVERY)

    def set_by(self, due: float, now: float) -> None:
        """Send the signal at *due*, or before: then it is to be set anew.

        To set it takes as long as all else before a handler, so a thousand short runs have one.
        """
        if not now < self._due <= due or now - self._set_at > RELIED_ON:
            self.set(due)

    def stop(self) -> None:
        """Send nothing."""
        self._due = float("inf")
        signal.setitimer(signal.ITIMER_REAL, 0)


class HandlerInterrupter:
    """Raises an `Interruption` inside the armed handler, and nowhere else.

    ========= ============================ =============== ======================================
    state     at a request                 at a signal     when the timeout or the lease ends
    ========= ============================ =============== ======================================
    idle      `arm` raises it              stop the timer
    armed     send a signal until heard    raise it        the timer's signal raises it, once each
    held      as armed                     note it         raised at the end of the block
    receiving as armed                     the receiver raises what is due; it knows its handlers
    ========= ============================ =============== ======================================

    `arm`, `disarm` and `hold` belong to the runner's thread; `interrupt` and `repeat` may be called
    from any thread.

    :param leases: by which a handler is interrupted when its lease ends.
    :ivar requested: what is to be raised, by claim: now, or when its handler begins.
    """

    def __init__(self, leases: Leases) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        self.enabled: bool = in_main and hasattr(signal, "setitimer")
        self._leases = leases
        self._armed: Claim | None = None
        self._receiver: Receiver | None = None
        self._held = 0
        self._pending = False
        self._timer = AlarmTimer()
        self._deadline = float("inf")
        self._timeout = 0.0
        self._armed_at = 0.0
        self._lease_ended = False
        self.requested: dict[tuple[int, str], BaseException] = {}
        self._thread = threading.get_ident()
        self._previous: Any = None
        self._previous_hook: Any = None

    def __enter__(self) -> HandlerInterrupter:
        if self.enabled:
            self._previous = signal.signal(signal.SIGALRM, self._on_signal)
            self._previous_hook = sys.unraisablehook
            sys.unraisablehook = self._on_unraisable
        return self

    def __exit__(self, *exception: object) -> None:
        if self.enabled:
            self.enabled = False  # A signal sent from now on would end the process.
            self._timer.stop()
            signal.signal(signal.SIGALRM, self._previous)
            sys.unraisablehook = self._previous_hook

    def arm(self, claim: Claim, timeout: float) -> None:
        """Let *claim*'s handler be interrupted from now on, and after *timeout* seconds.

        :raises Interruption: one was requested before the handler began.
        """
        if self.enabled:
            self._armed_at = now = time.monotonic()
            self._timeout = timeout
            self._deadline = now + timeout
            self._lease_ended = False
            self._armed = claim
            self._timer.set_by(self._due(claim), now)
            if self.requested:
                self._raise_requested(claim)

    @contextmanager
    def receiving_signals(self, receiver: Receiver) -> Generator[None]:
        """Pass the timer's signals to *receiver* in this block."""
        if not self.enabled:
            yield
            return
        self._receiver = receiver
        self.postpone(REPEAT_EVERY)
        try:
            yield
        finally:
            self._receiver = None
            self._timer.stop()

    def postpone(self, seconds: float) -> None:
        """Send no signal for so many *seconds*."""
        if self._receiver is not None:
            self._timer.set(time.monotonic() + seconds)

    def disarm(self) -> None:
        """Raise nothing from now on."""
        if self._armed is not None:
            self._armed = None
            if time.monotonic() - self._armed_at > SHORT:
                self._timer.stop()

    @contextmanager
    def hold(self) -> Generator[None]:
        """Hold interruptions back, for a write of ours inside a handler; raise them at the end.

        :raises Interruption: one came meanwhile.
        """
        if threading.get_ident() != self._thread:
            yield
            return
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self._pending and not self._held and self._armed is not None:
            self._pending = False
            self._raise_due(self._armed)

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Interrupt the handler after so many seconds of this block, unless its timeout is earlier.

        For its first thread; there is no such limit side by side with others.
        """
        before = self._deadline, self._timeout
        if self._receiver is not None or threading.get_ident() != self._thread:
            yield
            return
        self._limit(min(before, (time.monotonic() + seconds, seconds)))
        try:
            yield
        finally:
            self._limit(before)

    def _limit(self, limit: tuple[float, float]) -> None:
        self._deadline, self._timeout = limit
        if self.enabled and self._armed is not None:
            self._timer.set(self._due(self._armed))

    def raise_in_handler(self, error: BaseException, frame: FrameType | None) -> None:
        """Raise *error* in the handler at work, if one is: now, or as soon as it may be.

        :param frame: where the handler is.
        :raises BaseException: *error*.
        """
        armed = self._armed
        if armed is None or _is_disarming(frame):
            return
        self.requested[armed.identity] = error
        if self._may_raise(frame):
            self._raise_requested(armed)

    def interrupt(self, claim: Claim, error: Interruption) -> None:
        """Raise *error* inside *claim*'s handler, now or when it begins."""
        self.requested[claim.identity] = error
        if self.enabled:
            signal.pthread_kill(self._thread, signal.SIGALRM)

    def repeat(self) -> None:
        """Send the signal once more if an `interrupt` was not heard yet."""
        armed = self._armed
        if self.enabled and armed is not None and armed.identity in self.requested:
            signal.pthread_kill(self._thread, signal.SIGALRM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        try:
            if self._receiver is not None:
                # If not now, the timer sends the signal again.
                if not self._held and not _is_cleaning_up(frame):
                    self._receiver(frame)
            elif self._armed is None or _is_disarming(frame):
                self._timer.stop()
            elif self._may_raise(frame):
                self._raise_due(self._armed)
        except Interruption:
            cancel_query(frame)
            raise

    def _may_raise(self, frame: FrameType | None) -> bool:
        """Return whether to interrupt the handler in *frame* now; if not, let that come soon."""
        if self._held:
            self._pending = True
            return False
        if _is_cleaning_up(frame):
            self._timer.set(time.monotonic() + RAISE_AGAIN_AFTER)
            return False
        return True

    def _on_unraisable(self, unraisable: Any) -> None:
        """Raise an interruption again that hit a finalizer, where Python ignores exceptions."""
        claim, error = self._armed, unraisable.exc_value
        if self._receiver is not None and (run := running()) is not None:
            claim = run.claim
        if claim is None or not isinstance(error, (Interruption, KeyboardInterrupt)):
            self._previous_hook(unraisable)
            return
        self.requested[claim.identity] = error
        self._timer.set(time.monotonic() + RAISE_AGAIN_AFTER)

    def _raise_due(self, claim: Claim) -> None:
        self._raise_requested(claim)
        now = time.monotonic()
        due: Interruption | None = None
        if now >= self._deadline:
            self._deadline = float("inf")
            due = timed_out(self._timeout)
        elif now >= self._leases.end(claim) and not self._lease_ended:
            self._lease_ended = True
            due = lease_ended()
        self._timer.set(self._due(claim))
        if due is not None:
            raise due

    def _due(self, claim: Claim) -> float:
        """Return when *claim*'s handler is to be interrupted: at its timeout or its lease's end."""
        return self._deadline if self._lease_ended else min(self._deadline, self._leases.end(claim))

    def _raise_requested(self, claim: Claim) -> None:
        requested = self.requested.pop(claim.identity, None)
        if requested is not None:
            raise requested


def _is_disarming(frame: FrameType | None) -> bool:
    """Return whether a signal is heard on entering `disarm`: too late, the handler has ended."""
    return frame is not None and frame.f_code is HandlerInterrupter.disarm.__code__


def _is_cleaning_up(frame: FrameType | None) -> bool:
    """Return whether *frame* is part of a finalizer, or of a connection's way back to its pool.

    Interrupted there, the connection would stay open, with its transaction and its locks.
    """
    while frame is not None:
        name = frame.f_code.co_name
        if name == "__del__":
            return True
        if name in _POOL_CLEANUP and frame.f_globals.get("__name__") == "sqlalchemy.pool.base":
            return True
        frame = frame.f_back
    return False
