"""Interruptions at random moments: of the handler at work, or of the tick wherever it is."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable


class Moments(threading.Thread):
    """Does one thing at a time, at its moment.

    :ivar cancel: cancels a run.
    """

    def __init__(self) -> None:
        super().__init__(name="moments", daemon=True)
        self.cancel: Callable[[int], None] = lambda run_id: None
        self._main = threading.get_ident()
        self._due: tuple[float, Callable[[], None]] | None = None
        self._sent = True
        self._changed = threading.Condition()
        self._acting = threading.Lock()

    def run(self) -> None:
        """Wait for the moments."""
        while True:
            with self._changed:
                pause = None if self._due is None else self._due[0] - time.monotonic()
                if pause is None or pause > 0:
                    self._changed.wait(pause)
                    continue
                assert self._due is not None
                _, act = self._due
                self._due = None
                self._acting.acquire()
            try:
                act()
            finally:
                self._acting.release()

    def begin_tick(self, after: float | None) -> None:
        """Allow one Ctrl-C from now on.

        :param after: after how many seconds it comes, wherever the tick is by then.
        """
        with self._changed:
            self._sent = False
        if after is not None:
            self._at(after, self._press)

    def end_tick(self) -> None:
        """Press nothing more, and let a cancel end, which has a connection of its own."""
        with self._changed:
            self._sent = True
            self._due = None
        with self._acting:
            pass

    def interrupt_run(self, how: str, run_id: int, after: float) -> bool:
        """Interrupt the run at work *after* so many seconds; its timeout comes by itself.

        :returns: whether it will be interrupted: there is one Ctrl-C for each tick.
        """
        if how == "cancel":
            self._at(after, lambda: self.cancel(run_id))
        elif how == "interrupt":
            if self._sent or self._due is not None:
                return False
            self._at(after, self._press)
        return True

    def _at(self, after: float, act: Callable[[], None]) -> None:
        with self._changed:
            self._due = (time.monotonic() + after, act)
            self._changed.notify()

    def _press(self) -> None:
        """Press Ctrl-C, once in a tick: the second ends a tick's process at once, as it should."""
        with self._changed:
            if not self._sent:
                self._sent = True
                signal.pthread_kill(self._main, signal.SIGINT)
