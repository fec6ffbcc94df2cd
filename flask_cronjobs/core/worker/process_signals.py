"""The signals by which a worker is asked to stop, and Ctrl-C.

SIGUSR1 is taken: by it, the parent of several workers passes SIGTERM on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from .own_signals import OwnSignals

if TYPE_CHECKING:
    from .runner import Runner
    from .stop_flag import StopFlag

#: How a parent passes SIGTERM on to its workers. A service manager sends SIGTERM to a whole group.
#: Passed on as SIGTERM it would arrive twice, and the second ends a worker at once.
STOP_FROM_PARENT: signal.Signals = getattr(signal, "SIGUSR1", signal.SIGTERM)
#: SIGHUP, by which a terminal says that it was closed, unless it is ignored, as under nohup, or the
#: app's. It may come twice, from the shell and from the system, so it never ends a worker at once.
HANG_UP: tuple[signal.Signals, ...] = tuple(
    signal.Signals[name]
    for name in ("SIGHUP",)
    if hasattr(signal, name) and signal.getsignal(signal.Signals[name]) is signal.SIG_DFL
)
#: The signals that stop a worker.
STOPPING = (signal.SIGTERM, signal.SIGINT, *HANG_UP, STOP_FROM_PARENT)


@contextmanager
def handling_signals(runner: Runner, flag: StopFlag, own_process: bool) -> Generator[None]:
    """Stop the worker at signals in this block if it has its own process, otherwise at Ctrl-C.

    Ctrl-C interrupts a handler, and stops the worker in order if it arrives in our own code. Raised
    elsewhere, a KeyboardInterrupt could leave behind a keeper that renews a claim without a
    handler.
    """

    def interrupt(frame: FrameType | None) -> None:
        flag.stop()
        runner.interrupt_at_keyboard(frame)

    own = runner.context.interrupter.signals
    stopping = own_process and threading.current_thread() is threading.main_thread()
    with _stopping_at_signals(flag, own) if stopping else _at_keyboard(interrupt, own):
        yield


@contextmanager
def keyboard_held() -> Generator[None]:
    """Hold Ctrl-C back for a write of ours outside of workers, and raise it at the end.

    Raised while a connection is opened, a KeyboardInterrupt would leave it open.
    """
    pressed: list[object] = []
    with _at_keyboard(pressed.append, OwnSignals()):
        yield
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def _at_keyboard(
    interrupt: Callable[[FrameType | None], object], own: OwnSignals
) -> Generator[None]:
    """Call *interrupt* at Ctrl-C in this block. A second Ctrl-C is raised where it arrives.

    This works only in the main thread, and unless the app handles SIGINT itself.
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
    def stop(number: int, frame: FrameType | None) -> None:
        # The first signal asks. The second finds the default again, and ends the process at once.
        for each in numbers:
            own.set(each, signal.SIG_DFL)
        flag.stop()

    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: own.set(number, stop) for number in numbers}

    def stop_in_order(number: int, frame: FrameType | None) -> None:
        flag.stop()

    for each in {STOP_FROM_PARENT, *HANG_UP} - previous.keys():
        previous[each] = own.set(each, stop_in_order)
    if hasattr(signal, "pthread_sigmask"):
        # The parent has blocked them until they can be handled.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    try:
        yield
    finally:
        for number, handler in previous.items():
            own.unset(number, handler)
