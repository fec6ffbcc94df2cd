"""A run whose async handler is at work, and a watch over the loop on which it is."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ...core.worker.held_runs import Working

#: How often the loop notes that it goes on, in seconds.
STEP_EVERY = 0.25


@dataclass(eq=False)
class AsyncRun(Working):
    """A run whose async handler is at work.

    :ivar armed: whether the handler may be interrupted.
    :ivar dropped: whether its worker was ended by force, so that nobody waits for it.
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
        """Cancel the handler. In the loop's thread, while no handler is in a step."""
        self.note(error)
        if self.armed and self.task is not None:
            self.task.cancel()

    def arm(self) -> None:
        """Let the handler be interrupted from now on.

        :raises BaseException: what has interrupted it already.
        """
        self.armed = True
        if self.error is not None:
            raise self.error


class LoopWatch:
    """Sees whether an event loop goes on, and for how long one run holds it up if it does not.

    The loop calls `goes_on` every `STEP_EVERY` seconds. Until then it executes one step of each
    task at most. Signals look from its own thread, and the keeper from another, so each has a
    watch of its own.
    """

    def __init__(self) -> None:
        self._went_on = self._since = 0.0
        self._seen: object = None

    def goes_on(self, now: float) -> None:
        """Note that the loop is between two steps.

        :param now: by `time.monotonic`, as in all that follows.
        """
        self._went_on = now

    def is_late(self, now: float) -> bool:
        """Return whether the loop has not said for long that it goes on."""
        return now - self._went_on >= 2 * STEP_EVERY

    def seconds(self, run: object, now: float) -> float:
        """Return for how long *run* has been seen at work, and no other, since the loop went on."""
        seen = (self._went_on, run)
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since
