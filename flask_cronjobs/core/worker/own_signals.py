"""The signal handlers of a worker: set, and put back where a task's handler has taken them.

Libraries such as Scrapy, Ray and pyppeteer install signal handlers and leave them behind. Without
ours, a worker would not end at SIGTERM, and no timeout would interrupt anything.
"""

from __future__ import annotations

import signal
import time
from importlib import import_module
from typing import Any

from ...log import logger

# The functions of `signal` make an enumeration of each answer, which takes thirty times as long.
_signal: Any = import_module("_signal")
#: How often to look at them at most, in seconds. So each run that lasts longer is looked at, and
#: many short ones have one look together: to load such a library takes longer than they do.
LOOK_EVERY = 0.001


class OwnSignals:
    """The signals that this process handles for a worker. Belongs to the main thread.

    In other threads nothing is set, so nothing is put back.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._told: set[str] = set()
        self._looked_at = 0.0

    def set(self, number: int, handler: Any) -> Any:
        """Handle the signal *number* by *handler*; return what handled it before."""
        # First: a signal that comes between the two must find what it is put back to.
        self._handlers[number] = handler
        return signal.signal(number, handler)

    def unset(self, number: int, previous: Any) -> None:
        """Let *previous* handle the signal *number*, which is no more ours."""
        self._handlers.pop(number, None)
        signal.signal(number, previous)

    def put_back(self, task: str) -> None:
        """Handle our signals again, after a run of *task*; log once which ones it has taken.

        At most every `LOOK_EVERY` seconds.
        """
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        taken = self._take_back()
        if taken and task not in self._told:
            self._told.add(task)
            logger.warning(
                "After a run of the task %s, the signals %s were handled by others or blocked. The "
                "worker stops and times handlers out by them, so it has taken them back. Let the "
                "library that took them install no signal handlers, or run it in a process of its "
                "own.",
                task,
                ", ".join(signal.Signals(number).name for number in taken),
            )

    def _take_back(self) -> list[int]:
        """Handle our signals again, and let them through; return which others had taken."""
        handlers = self._handlers
        # Equal, not the same: the default is a number there, and an enumeration here.
        taken = [number for number in handlers if _signal.getsignal(number) != handlers[number]]
        for number in taken:
            signal.signal(number, handlers[number])
        if handlers and hasattr(signal, "pthread_sigmask"):
            blocked: set[int] = _signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
            taken += [number for number in handlers if number in blocked and number not in taken]
        return taken
