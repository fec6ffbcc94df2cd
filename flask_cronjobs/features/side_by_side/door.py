"""What other threads may ask of the loop of async handlers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ...log import logger
from .async_run import AsyncRun, LoopWatch

#: For how long a handler blocks the loop before that counts, in seconds.
BLOCKED = 1.0


class Door:
    """What other threads may ask of a loop, and a signal handler of its own thread.

    The loop alone writes `runs`, `event_loop` and `context`; `look` is for the keeper's thread.

    :param runs: those at work.
    :param admit: begins in the loop what is in the inbox.
    :param deliver: interrupts in the loop what is to be interrupted.
    :ivar event_loop: it, once there is one.
    :ivar context: in which the loop is asked to do something: outside of all runs.
    :ivar watch: by which the keeper sees whether the loop goes on.
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
        """The runs at work."""
        return list(self._runs.values())

    def admit(self) -> None:
        """Let runs begin that are in the inbox, if the loop is at work."""
        if self._runs:
            self.call_soon(self._admit)

    def deliver(self) -> None:
        """Interrupt the handlers for which that was requested, when the loop goes on."""
        if self._runs:
            self.call_soon(self._deliver)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Let the loop call *callback*, outside of all runs."""
        loop = self.event_loop
        if loop is not None:
            with suppress(RuntimeError):  # It was closed meanwhile.
                loop.call_soon_threadsafe(callback, context=self.context)

    def look(self, now: float) -> None:
        """Note since when each handler could have ended, and say once which one blocks the loop.

        One could when it has been told to, and nothing blocks its loop but itself.
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
        """Return the runs of which one has blocked the loop for long; none if the loop goes on.

        It is one alone as far as it can be known from another thread, and otherwise all.
        """
        loop, at_work = self.event_loop, self.at_work
        if loop is None or not self.watch.is_late(now):
            return ()
        # The frames of another thread are not looked at: up to Python 3.11, they may be gone.
        task = asyncio.current_task(loop)
        found = (run for run in at_work if task in (run.task, *run.tasks))
        run = None if task is None else next(found, None)
        if self.watch.seconds(run, now) < BLOCKED:
            return ()
        return at_work if run is None else [run]
