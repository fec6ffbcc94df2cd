"""Interruptions at random moments: of the running handler, or of the tick wherever it is."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable


class Moments(threading.Thread):
    """A thread that does one thing at a time, when its moment comes.

    :ivar cancel: a function that cancels a run.
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

        :param after: press it after this many seconds, wherever the tick is then. None: only
            `interrupt_run` may press it.
        """
        with self._changed:
            self._sent = False
        if after is not None:
            self._at(after, self._press)

    def end_tick(self) -> None:
        """Press Ctrl-C no more, and wait for a cancel to end, which has a connection of its own."""
        with self._changed:
            self._sent = True
            self._due = None
        with self._acting:
            pass

    def interrupt_run(self, how: str, run_id: int, after: float) -> bool:
        """Interrupt the running handler in *after* seconds, unless *how* is its timeout.

        :returns: whether it will be interrupted: there is only one Ctrl-C for each tick.
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
        """Press Ctrl-C once in a tick: a second one would end the process at once."""
        with self._changed:
            if not self._sent:
                self._sent = True
                signal.pthread_kill(self._main, signal.SIGINT)
