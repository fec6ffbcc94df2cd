"""One worker: a runner in this thread, a keeper beside it, until there is nothing more to do."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Any

from ...state import State
from ...types import Claim
from .held_runs import Hand
from .interrupts import Alarm
from .keeper import Keeper
from .monitor import Warden
from .options import WorkOptions
from .runner import Runner
from .watchdog import Fuse

#: By what a parent passes SIGTERM on to its workers. A service manager sends SIGTERM to a whole
#: group: passed on as such it would arrive twice, and the second ends a worker at once.
PASSED_ON: signal.Signals = getattr(signal, "SIGUSR1", signal.SIGTERM)
#: What stops a worker.
STOPPING = (signal.SIGTERM, signal.SIGINT, PASSED_ON)


def work(state: State, options: WorkOptions, handle_signals: bool = False) -> Counter[str]:
    """Claim and run what is due; how many attempts came to which outcome.

    :param handle_signals: stop gracefully at SIGTERM and SIGINT, which needs the main thread.
    :raises DatabaseTrouble: the database could not be used any more; what was held comes back by
        its lease.
    """
    inbox: SimpleQueue[Claim | None] = SimpleQueue()
    mailbox: SimpleQueue[Any] = SimpleQueue()
    with Alarm() as alarm, Fuse(state.settings.lease, options.may_kill) as fuse:
        runner = Runner(state, alarm, fuse, inbox, mailbox, keyboard=not handle_signals)
        warden = Warden(state, runner, alarm, fuse, options.may_kill)
        keeper = Keeper(state, runner, options, Hand(inbox, mailbox), warden)
        with _stopping_at_signals(keeper, handle_signals):
            keeper.start()
            try:
                runner.run()
            finally:
                keeper.stop()
                keeper.join()
    if runner.interrupted is not None:
        raise runner.interrupted
    if keeper.error is not None:
        raise keeper.error
    return keeper.counts


@contextmanager
def _stopping_at_signals(keeper: Keeper, enabled: bool) -> Generator[None]:
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        # The first asks; the second finds the default again, and ends the process at once.
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        keeper.stop()

    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, stop) for number in numbers}
    if PASSED_ON not in previous:
        previous[PASSED_ON] = signal.signal(PASSED_ON, lambda number, frame: keeper.stop())
    if hasattr(signal, "pthread_sigmask"):
        # Whoever forked this process has held them back, until there is somebody to heed them.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
