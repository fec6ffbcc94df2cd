"""The interface of the loop of async handlers for other threads."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ...log import logger
from .async_run import AsyncRun, LoopWatch

#: Seconds for which a handler may block the loop before that counts.
BLOCKED_SECONDS = 1.0


class Door:
    """The methods of a loop that other threads, and signal handlers of its own thread, may call.

    Only the loop writes `runs`, `event_loop` and `context`; `look` is for the keeper's thread.

    :param runs: the running runs.
    :param admit: begins runs from the inbox, in the loop.
    :param deliver: interrupts handlers that are due, in the loop.
    :ivar event_loop: the event loop, once it exists.
    :ivar context: the context for calls into the loop, which belongs to no run.
    :ivar watch: tells the keeper whether the loop makes progress.
    """

    def __init__(
        self,
        runs: Mapping[tuple[int, str], AsyncRun],
        admit: Callable[[], None],
        deliver: Callable[[], None],
    ) -> None:
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self.context: contextvars.Context = contextvars.copy_context()
        self.watch: LoopWatch = LoopWatch()
        self._runs = runs
        self._admit = admit
        self._deliver = deliver

    @property
    def at_work(self) -> list[AsyncRun]:
        """The running runs."""
        return list(self._runs.values())

    def admit(self) -> None:
        """Let runs from the inbox begin, if the loop is running."""
        if self._runs:
            self.call_soon(self._admit)

    def deliver(self) -> None:
        """Deliver the requested interruptions when the loop makes progress."""
        if self._runs:
            self.call_soon(self._deliver)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Let the loop call *callback*, outside of all runs."""
        loop = self.event_loop
        if loop is not None:
            with suppress(RuntimeError):  # It was closed meanwhile.
                loop.call_soon_threadsafe(callback, context=self.context)

    def look(self, now: float) -> None:
        """Note since when each handler could have ended, and log once which one blocks the loop.

        A handler can end once it was interrupted, unless another one blocks the loop.
        """
        blocking = self._blocking(now)
        if len(blocking) == 1 and not blocking[0].blocks:
            blocking[0].blocks = True
            logger.warning(
                "%s: its handler blocks the event loop for more than 1 s, and all async handlers "
                "of this worker with it. Let it await, or call what blocks by asyncio.to_thread().",
                blocking[0].claim,
            )
        for run in self.at_work:
            if run in blocking:
                run.could_end = float("-inf")
            else:
                told_at = None if blocking else run.told_at
                run.could_end = float("inf") if told_at is None else told_at

    def _blocking(self, now: float) -> Sequence[AsyncRun]:
        """Return the runs that may have blocked the loop for long; none if it makes progress.

        If the blocking run is known, it is the only one; otherwise it may be any running run.
        """
        loop, at_work = self.event_loop, self.at_work
        if loop is None or not self.watch.is_late(now):
            return ()
        # Do not inspect the frames of another thread: up to Python 3.11, they may be gone.
        task = asyncio.current_task(loop)
        owners = (run for run in at_work if task in (run.task, *run.tasks))
        run = None if task is None else next(owners, None)
        if self.watch.seconds(run, now) < BLOCKED_SECONDS:
            return ()
        return at_work if run is None else [run]
