"""A run whose async handler is running, and a watch over its event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ...core.worker.held_runs import Working

#: Seconds between two signs of progress of the loop.
STEP_SECONDS = 0.25


@dataclass(eq=False)
class AsyncRun(Working):
    """A run whose async handler is running.

    :ivar armed: whether the handler may be interrupted.
    :ivar dropped: whether its worker was ended by force, so that no one waits for it.
    :ivar blocks: whether the keeper has logged that it blocks the event loop.
    :ivar tasks: the tasks that the handler has begun.
    :ivar threads: its calls in threads of the default executor.
    """

    armed: bool = False
    dropped: bool = False
    blocks: bool = False
    could_end: float = float("inf")
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])
    threads: set[Future[Any]] = field(default_factory=set["Future[Any]"])

    def interrupt(self, error: BaseException) -> None:
        """Cancel the handler. Call this in the loop's thread, while no handler is in a step."""
        self.note(error)
        if self.armed and self.task is not None:
            self.task.cancel()

    def arm(self) -> None:
        """Let the handler be interrupted from now on.

        :raises BaseException: the interruption that has been requested already.
        """
        self.armed = True
        if self.error is not None:
            raise self.error


class LoopWatch:
    """Tells whether an event loop makes progress, and how long one run has blocked it if not.

    The loop calls `note_progress` every `STEP_SECONDS`. Between two calls it executes at most one
    step of each task. Signal handlers check in the loop's thread and the keeper in another, so each
    of them has its own watch.
    """

    def __init__(self) -> None:
        self._progress_at = self._since = 0.0
        self._seen: object = None

    def note_progress(self, now: float) -> None:
        """Note that the loop is between two steps.

        :param now: the time by `time.monotonic`, as in the other methods.
        """
        self._progress_at = now

    def is_late(self, now: float) -> bool:
        """Return whether the loop has shown no progress for twice `STEP_SECONDS`."""
        return now - self._progress_at >= 2 * STEP_SECONDS

    def seconds(self, run: object, now: float) -> float:
        """Return for how long *run* alone has been seen running since the last progress."""
        sighting = (self._progress_at, run)
        if sighting != self._seen:
            self._seen, self._since = sighting, now
        return now - self._since
