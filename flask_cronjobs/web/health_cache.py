"""One look at the health at a time, limited in time, and kept for a few seconds.

The route is open: without limits, requests to it could occupy the database and all threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late

#: For how many seconds an answer is kept.
KEEP = 3.0
#: After how many seconds a request gives up on a look. Monitors seldom wait for longer than ten.
LIMIT = 5.0
#: After how many seconds another look begins beside one that hangs, and how many may hang at once.
HANGS = 30.0
MOST_HANGING = 3


class HealthCache:
    """Calls a function in a thread of its own, for all requests of a process. Thread-safe.

    :param look: returns the status, and never raises.
    """

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._last: Future[str] | None = None
        self._began = self._ended = 0.0
        self._running = 0

    def status(self) -> str:
        """Return the status, at most `KEEP` seconds old; ``down`` if there is none in time."""
        with self._lock:
            if self._is_needed() and self._running < MOST_HANGING:
                self._begin()
            last, left = self._last, self._began + LIMIT - time.monotonic()
        try:
            return last.result(max(left, 0.0)) if last is not None else "down"
        except Late:
            return "down"

    def _is_needed(self) -> bool:
        if self._last is None:
            return True
        now = time.monotonic()
        return now >= self._ended + KEEP if self._last.done() else now >= self._began + HANGS

    def _begin(self) -> None:
        self._last = Future()
        self._began = time.monotonic()
        thread = threading.Thread(
            target=self._run, args=(self._last,), name="cronjobs-health", daemon=True
        )
        thread.start()
        self._running += 1

    def _run(self, future: Future[str]) -> None:
        try:
            status = self._look()
        finally:
            with self._lock:
                self._running -= 1
                self._ended = time.monotonic()
        future.set_result(status)
