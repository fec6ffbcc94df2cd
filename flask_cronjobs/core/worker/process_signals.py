"""How a worker is asked to stop: a flag, the signals that set it, and Ctrl-C.

SIGUSR1 is in use: with it, the parent of several workers passes SIGTERM on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...log import logger

if TYPE_CHECKING:
    from .runner import Runner

# The functions of `signal` convert each result to an enum, which takes thirty times as long.
_signal: Any = import_module("_signal")
#: Seconds between two checks whether the signals are still ours. So there is a check after each
#: longer run, while many short runs share one. A short run cannot have loaded a library that takes
#: signals, since loading one takes longer.
CHECK_SECONDS = 0.001
#: How a parent passes SIGTERM on to its workers. A service manager sends SIGTERM to a whole group
#: of processes. So if the parent sent SIGTERM, too, workers would get it twice, and the second one
#: would end them at once.
STOP_FROM_PARENT: signal.Signals = getattr(signal, "SIGUSR1", signal.SIGTERM)
#: SIGHUP, which is sent when a terminal is closed; empty if SIGHUP is ignored, as under nohup, or
#: if the app handles it. It may come twice, from the shell and from the system, so it never ends a
#: worker at once.
HANG_UP: tuple[signal.Signals, ...] = tuple(
    signal.Signals[name]
    for name in ("SIGHUP",)
    if hasattr(signal, name) and signal.getsignal(signal.Signals[name]) is signal.SIG_DFL
)
#: The signals that stop a worker.
STOPPING = (signal.SIGTERM, signal.SIGINT, *HANG_UP, STOP_FROM_PARENT)


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


class OwnSignals:
    """The signals that this process handles for a worker, restored after a task changed them.

    Libraries such as Scrapy, Ray and pyppeteer install signal handlers and leave them behind.
    Without ours, a worker would not end at SIGTERM, and no timeout would interrupt anything.

    It belongs to the main thread. In other threads nothing is set, so nothing is put back.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._warned_of: set[str] = set()
        self._looked_at = 0.0

    def set(self, number: int, handler: Any) -> Any:
        """Handle the signal *number* with *handler*; return what handled it before."""
        # Note it first: right after `signal.signal`, a signal may come and set another handler.
        self._handlers[number] = handler
        return signal.signal(number, handler)

    def unset(self, number: int, previous: Any) -> None:
        """Let *previous* handle the signal *number*, which is no longer ours."""
        self._handlers.pop(number, None)
        signal.signal(number, previous)

    def put_back(self, task: str) -> None:
        """Restore our handlers, and unblock our signals, after a run of *task*.

        Log once for each task which signals it changed. Within `CHECK_SECONDS` of the last call
        that checked them, this does nothing.
        """
        now = time.monotonic()
        if now - self._looked_at < CHECK_SECONDS:
            return
        self._looked_at = now
        handlers = self._handlers
        # Compare by equality: the default handler is a number for `_signal`, but an enum for us.
        taken = [number for number in handlers if _signal.getsignal(number) != handlers[number]]
        for number in taken:
            signal.signal(number, handlers[number])
        if handlers and hasattr(signal, "pthread_sigmask"):
            blocked: set[int] = _signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
            taken += [number for number in handlers if number in blocked and number not in taken]
        if taken and task not in self._warned_of:
            self._warned_of.add(task)
            logger.warning(
                "After a run of the task %s, the signals %s were blocked or had other handlers. "
                "The worker uses these signals to stop and to enforce timeouts, so it has restored "
                "its own handlers. Configure the library that changed them to install no signal "
                "handlers, or run it in a process of its own.",
                task,
                ", ".join(signal.Signals(number).name for number in taken),
            )


@contextmanager
def handling_signals(runner: Runner, flag: StopFlag, handle_signals: bool) -> Generator[None]:
    """Stop the worker in this block at a signal of `STOPPING` if *handle_signals*, else at Ctrl-C.

    Ctrl-C interrupts a handler. If it arrives in our own code, it stops the worker gracefully. If a
    KeyboardInterrupt were raised there, it could leave behind a keeper that renews a claim without
    a handler.
    """

    def interrupt(frame: FrameType | None) -> None:
        flag.stop()
        runner.interrupt_at_keyboard(frame)

    own = runner.context.interrupter.signals
    stopping = handle_signals and threading.current_thread() is threading.main_thread()
    with _stopping_at_signals(flag, own) if stopping else _at_keyboard(interrupt, own):
        yield


@contextmanager
def keyboard_deferred() -> Generator[None]:
    """Hold back Ctrl-C during a write of ours outside of workers, and raise it at the end.

    Raised while a connection is opened, a KeyboardInterrupt would leave it open.
    """
    frames: list[object] = []
    with _at_keyboard(frames.append, OwnSignals()):
        yield
    if frames:
        raise KeyboardInterrupt


@contextmanager
def _at_keyboard(
    interrupt: Callable[[FrameType | None], object], own: OwnSignals
) -> Generator[None]:
    """Call *interrupt* at Ctrl-C in this block. A second Ctrl-C is raised where it arrives.

    This does nothing outside the main thread, or if the app handles SIGINT itself.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        own.set(signal.SIGINT, signal.default_int_handler)
        interrupt(frame)

    own.set(signal.SIGINT, handle)
    try:
        yield
    finally:
        own.unset(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _stopping_at_signals(flag: StopFlag, own: OwnSignals) -> Generator[None]:
    def stop(number: int, _frame: FrameType | None) -> None:
        # The first signal asks the worker to stop. A second one ends the process at once, since
        # the default handles it.
        for ours in numbers:
            own.set(ours, signal.SIG_DFL)
        if number == signal.SIGTERM and os.getpid() != pid:
            # A handler has forked this process. It inherits our signal handlers, but
            # multiprocessing ends such a process with SIGTERM, and then waits for it.
            signal.raise_signal(number)
        flag.stop()

    numbers, pid = (signal.SIGTERM, signal.SIGINT), os.getpid()
    previous = {number: own.set(number, stop) for number in numbers}

    def stop_gracefully(_number: int, _frame: FrameType | None) -> None:
        flag.stop()

    for number in {STOP_FROM_PARENT, *HANG_UP} - previous.keys():
        previous[number] = own.set(number, stop_gracefully)
    if hasattr(signal, "pthread_sigmask"):
        # The parent has blocked them until they can be handled.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    try:
        yield
    finally:
        for number, handler in previous.items():
            own.unset(number, handler)
