"""Interrupt a handler from outside: SIGALRM in the main thread raises an exception inside it.

======================== ============ =========================== =========================
reason                   exception    who raises it               outcome of the attempt
======================== ============ =========================== =========================
a timeout has passed     TimedOut     the timer, see `due`        failed, may be retried
the lease has ended      LeaseLost    the timer, see `due`        failed, unless reclaimed
the lease was lost       LeaseLost    the keeper, `RunMonitor`    none: it is not recorded
an operator cancelled it Cancelled    the keeper, `RunMonitor`    cancelled
the worker must stop     ShuttingDown the keeper, `RunMonitor`    released, not counted
the keeper has died      LeaseLost    the keeper, `RunMonitor`    none: it is not recorded
keeper died before call  ShuttingDown the runner                  none: it is not recorded
======================== ============ =========================== =========================

`outcomes.failure` turns the exception into the outcome. If the handler does not end, the keeper
ends its process after the grace; see `RunMonitor.stuck`.

The kernel's timer sends the signal at a timeout, whatever the other threads do; the keeper sends it
for a cancel or a shutdown. A signal also ends a blocking system call, which setting an exception on
a thread would not. In other threads, and on platforms without SIGALRM, handlers cannot be
interrupted.

A signal that arrives just before a system call blocks is noted, but does not end the call. So it is
sent again until it is handled.

The same timer interrupts a handler whose lease has ended, since the keeper may be stuck in a
connection that hangs, and another worker may hold the run.

SQLAlchemy keeps its sessions, connections and pools consistent after an error of its driver, but
not after an exception between two of its own steps. So if a signal arrives inside SQLAlchemy, the
interruption is raised when SQLAlchemy returns to its caller.

If a handler never releases the interpreter's lock, the watchdog ends the process.
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
from ...types import Claim
from ..background import and_gevent
from ..current import running
from .held_runs import NO_LIMIT, Leases, Working
from .process_signals import OwnSignals

#: Seconds between two signals of the timer, which repeats its signal until one is handled.
REPEAT_SECONDS = 0.25
#: Seconds after which an interruption is retried if it arrived inside a finalizer, where Python
#: ignores exceptions.
RAISE_AGAIN_SECONDS = 0.005
#: Seconds below which a handler is short. The timer is left running after a short handler, since
#: the next handler may use it.
SHORT_SECONDS = 0.001
_POOL_CLEANUP = {"_finalize_fairy", "_reset"}  # Each return to the pool calls `_finalize_fairy`.
#: Packages that may run on behalf of SQLAlchemy: Python's own modules, ours, an extension, and
#: generated code, which has no module.
_HELPERS = {*sys.stdlib_module_names, __name__.partition(".")[0], "flask_sqlalchemy", "None"}
_WAIT = threading.Condition.wait.__code__

#: Returns the run whose handler a signal in a frame may interrupt; None if there is none.
Find = Callable[[FrameType | None], Working | None]


class AlarmTimer:
    """The kernel's timer, which sends SIGALRM, and repeats it until the timer is set again."""

    def __init__(self) -> None:
        self._due = float("inf")
        self._set_at = 0.0

    def set(self, due: float) -> None:
        """Send the signal at *due*, by `time.monotonic`; never if that is infinite."""
        self._due, self._set_at = due, time.monotonic()
        seconds = due - self._set_at
        if not 1e-6 < seconds < 1e8:  # Zero would stop it, and a huge value overflows.
            seconds = 0.0 if due == float("inf") else min(max(seconds, 1e-6), 1e8)
        signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)

    def set_by(self, due: float, now: float) -> None:
        """Send the signal at *due* or earlier; a signal that is too early sets the timer again.

        If the timer is due earlier and was set less than `SHORT_SECONDS` ago, it is not set again,
        since setting it takes as long as everything else around a short handler. If it was set
        before that, a handler may have changed it.
        """
        if not now < self._due <= due or now - self._set_at > SHORT_SECONDS:
            self.set(due)

    def stop(self) -> None:
        """Send no more signals."""
        self._due = float("inf")
        signal.setitimer(signal.ITIMER_REAL, 0)


class HandlerInterrupter:
    """Raises interruptions inside the handler that a signal hits, if it may be interrupted there.

    Plain handlers are armed one after the other. Async handlers run side by side, and their loop
    says which one blocks it.

    ======== ======================== =====================================================
    state    at a request             at a signal: by a request, a timeout, a lease's end
    ======== ======================== =====================================================
    unarmed  `arm` raises it          stop the timer
    armed    signal until handled     raise what is due, each interruption once
    deferred as armed                 note it; what is due is raised at the end of the block
    async    as armed                 raise what is due in the handler that blocks the loop
    ======== ======================== =====================================================

    `arm`, `disarm` and `defer` belong to the runner's thread; `interrupt` and `repeat` may be
    called from any thread.

    :param leases: the leases whose end interrupts a handler.
    :ivar signals: the signals that belong to the worker while it works.
    :ivar requested: the requested interruptions by claim, raised now or when a handler begins. The
        keeper drops those that came too late, when it reports the outcome.
    """

    def __init__(self, leases: Leases) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        self.enabled: bool = in_main and hasattr(signal, "setitimer")
        self._leases = leases
        self._armed: Working | None = None
        self._armed_at = 0.0
        self._find_async: Find | None = None
        self._deferrals = 0
        self._is_deferred = False
        self._traces = False
        self._timer = AlarmTimer()
        self.signals: OwnSignals = OwnSignals()
        self.requested: dict[tuple[int, str], BaseException] = {}
        self._thread = threading.get_ident()
        self._previous: Any = None
        self._previous_hook: Any = None

    def __enter__(self) -> HandlerInterrupter:
        if self.enabled:
            self._previous = self.signals.set(signal.SIGALRM, self._on_signal)
            self._previous_hook = sys.unraisablehook
            sys.unraisablehook = self._on_unraisable
        return self

    def __exit__(self, *exception: object) -> None:
        if self.enabled:
            self.enabled = False  # A signal sent from now on would end the process.
            self._timer.stop()
            self.signals.unset(signal.SIGALRM, self._previous)
            sys.unraisablehook = self._previous_hook

    def due(self, working: Working) -> BaseException | None:
        """Return the exception that must interrupt the handler of *working* now, and note it.

        It is the requested one, or else a `TimedOut`, or else a `LeaseLost` if the lease has ended.
        Each is returned once; None if none is due.
        """
        claim, now = working.claim, time.monotonic()
        (until, seconds) = working.limit
        error = self.requested.pop(claim.identity, None)
        if error is None and now >= until:
            working.limit = NO_LIMIT
            error = TimedOut(f"the handler ran longer than its timeout of {seconds:g} s")
        elif error is None and not working.is_lost and now >= self._leases.end(claim):
            error = LeaseLost(and_gevent("the lease ended, since it could not be renewed in time"))
        if error is not None:
            working.note(error)
        return error

    def arm(self, working: Working) -> None:
        """Let the handler of *working* be interrupted from now on.

        :raises Interruption: one was requested before the handler began.
        """
        if self.enabled:
            self._armed_at = now = time.monotonic()
            self._armed = working
            self._timer.set_by(self._next(working), now)
            if self.requested:
                self._raise_due(working)

    def disarm(self) -> None:
        """Raise no interruption from now on."""
        if self._armed is not None:
            self._armed = None
            if self._traces:
                self._forget_caller()
            if time.monotonic() - self._armed_at > SHORT_SECONDS:
                self._timer.stop()

    @contextmanager
    def finding_async(self, find: Find) -> Generator[None]:
        """Interrupt the async handlers that *find* returns, while the block runs."""
        if not self.enabled:
            yield
            return
        self._find_async = find
        self.postpone(REPEAT_SECONDS)
        try:
            yield
        finally:
            self._find_async = None
            self._forget_caller()
            self._timer.stop()

    def postpone(self, seconds: float) -> None:
        """Send no signal for *seconds* in a block of `finding_async`."""
        if self._find_async is not None:
            self._timer.set(time.monotonic() + seconds)

    @contextmanager
    def defer(self) -> Generator[None]:
        """Defer interruptions during a write of ours inside a handler; raise them at the end.

        :raises Interruption: one came meanwhile.
        """
        if threading.get_ident() != self._thread:
            yield
            return
        self._deferrals += 1
        try:
            yield
        finally:
            self._deferrals -= 1
        if self._is_deferred and not self._deferrals and self._armed is not None:
            self._is_deferred = False
            self._raise_due(self._armed)

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Interrupt the handler after *seconds* in this block, unless its timeout comes earlier.

        In a thread that the handler has started, this does nothing.
        """
        working = self._armed
        if working is None or threading.get_ident() != self._thread:
            yield
            return
        try:
            with working.limited(seconds):
                self._timer.set(self._next(working))
                yield
        finally:
            self._timer.set(self._next(working))

    def raise_in_handler(self, error: BaseException, frame: FrameType | None) -> None:
        """Raise *error* in the running handler, if there is one, as soon as it is allowed.

        :param frame: the frame in which the signal arrived.
        :raises BaseException: *error*.
        """
        armed = self._armed
        if armed is None or _is_disarming(frame):
            return
        self.requested[armed.claim.identity] = error
        if self._may_raise(frame):
            self._raise_due(armed)

    def interrupt(self, claim: Claim, error: Interruption) -> None:
        """Raise *error* inside *claim*'s handler, now or when it begins."""
        self.requested[claim.identity] = error
        if self.enabled:
            signal.pthread_kill(self._thread, signal.SIGALRM)

    def repeat(self) -> None:
        """Send the signal once more if a requested interruption has not been raised yet."""
        armed = self._armed
        if self.enabled and armed is not None and armed.claim.identity in self.requested:
            signal.pthread_kill(self._thread, signal.SIGALRM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        working = self._find_armed(frame) if self._find_async is None else self._find_async(frame)
        if working is not None and self._may_raise(frame):
            try:
                self._raise_due(working)
            except Interruption:
                cancel_query(frame)
                raise

    def _find_armed(self, frame: FrameType | None) -> Working | None:
        if self._armed is not None and not _is_disarming(frame):
            return self._armed
        self._timer.stop()
        return None

    def _may_raise(self, frame: FrameType | None) -> bool:
        """Return whether to interrupt the handler in *frame* now; if not, arrange a later try."""
        if self._deferrals:
            self._is_deferred = True
            return False
        cleanup = _cleanup_above(frame)
        if (caller := _caller_of_sqlalchemy(cleanup or frame)) is not None:
            self._put_off(caller)
            return False
        if cleanup is not None:
            self._timer.set(time.monotonic() + RAISE_AGAIN_SECONDS)
            return False
        return True

    def _put_off(self, caller: FrameType) -> None:
        """Arrange that the interruption is raised when SQLAlchemy returns to *caller*.

        Only a tracer notices that. If another tracer is active, such as a debugger, try again soon
        instead.
        """
        if sys.gettrace() not in (None, _trace_nothing):
            self._timer.set(time.monotonic() + RAISE_AGAIN_SECONDS)
            return
        self._timer.set(time.monotonic() + REPEAT_SECONDS)
        self._traces = True
        sys.settrace(_trace_nothing)
        caller.f_trace = self._on_return
        caller.f_trace_opcodes = True  # It may continue in the middle of a line.

    def _forget_caller(self) -> None:
        self._traces = False
        if sys.gettrace() is _trace_nothing:
            sys.settrace(None)

    def _on_return(self, frame: FrameType, _event: str, _argument: object) -> None:
        self._forget_caller()
        frame.f_trace = None
        frame.f_trace_opcodes = False
        self._on_signal(signal.SIGALRM, frame)

    def _on_unraisable(self, unraisable: Any) -> None:
        """Retry an interruption that was raised in a finalizer, where Python ignores exceptions."""
        run, error = self._armed or running(), unraisable.exc_value
        if run is None or not isinstance(error, (Interruption, KeyboardInterrupt)):
            self._previous_hook(unraisable)
            return
        self.requested[run.claim.identity] = error
        self._timer.set(time.monotonic() + RAISE_AGAIN_SECONDS)

    def _raise_due(self, working: Working) -> None:
        error = self.due(working)
        if working is self._armed:
            self._timer.set(self._next(working))
        if error is not None:
            raise error

    def _next(self, working: Working) -> float:
        """Return the time of the next interruption: the timeout, or the end of the lease."""
        until = working.limit[0]
        return until if working.is_lost else min(until, self._leases.end(working.claim))


def _is_disarming(frame: FrameType | None) -> bool:
    """Return whether the signal arrived as `disarm` began, so that the handler has ended."""
    return frame is not None and frame.f_code is HandlerInterrupter.disarm.__code__


def _trace_nothing(_frame: FrameType, _event: str, _argument: object) -> None:
    """Trace no new frame. Python traces a single frame only if there is a tracer of all frames."""


def _caller_of_sqlalchemy(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called SQLAlchemy if *frame* runs SQLAlchemy's own code; or None.

    The driver and the app's listeners do not count, since SQLAlchemy expects any error from them.
    Nor does its wait for a connection, which may take long.
    """
    while frame is not None and _package(frame) in _HELPERS and frame.f_code is not _WAIT:
        frame = frame.f_back
    if frame is None or _package(frame) != "sqlalchemy":
        return None
    while frame is not None and _package(frame) == "sqlalchemy":
        frame = frame.f_back
    return frame


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _cleanup_above(frame: FrameType | None) -> FrameType | None:
    """Return the frame, from *frame* outwards, that must not be interrupted; or None.

    It runs a finalizer, opens a connection, or returns one to its pool.

    If the return of a connection to its pool is interrupted, the connection stays open with its
    transaction and its locks. So does a connection that psycopg has opened but not returned yet. A
    connection that still waits for a server may be interrupted, since the server may never answer.
    """
    waits = False
    while frame is not None:
        name = frame.f_code.co_name
        if name == "__del__":
            return frame
        module = frame.f_globals.get("__name__")
        if name in _POOL_CLEANUP and module == "sqlalchemy.pool.base":
            return frame
        if name == "connect" and module == "psycopg.connection":
            return None if waits else frame
        waits = waits or (name == "select" and module == "selectors")
        frame = frame.f_back
    return None
