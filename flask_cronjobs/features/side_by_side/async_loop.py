"""Async handlers that run side by side on one event loop in the runner's thread.

The loop runs while a handler is running, and begins the runs that the keeper claims meanwhile. A
handler is interrupted by cancelling its task, so it sees `asyncio.CancelledError`. A handler that
blocks the loop does not notice that, so a signal interrupts it like a plain handler.

A run has ended when its handler, the tasks that the handler left running, and its calls in threads
of the default executor (`asyncio.to_thread`) have ended. So no part of it runs beside its own
retry.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from asyncio import events
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from queue import Empty, SimpleQueue
from types import CodeType, FrameType
from typing import Any

from ...core.current import CurrentRun, running
from ...core.worker.context import RunnerContext, prepare
from ...core.worker.held_runs import ProgressRequest
from ...core.worker.outcomes import released, with_output
from ...errors import PayloadError, ShuttingDown
from ...log import logger
from ...types import Claim, Outcome
from .async_attempt import OwnedThreads, attempt
from .async_run import STEP_SECONDS, AsyncRun, LoopWatch
from .kinds import AsyncKinds

#: Seconds for which a handler may block the loop before it is reported.
BLOCKED_SECONDS = 1.0
#: Seconds that the remaining handlers may take to end when the worker is ended by force.
UNWIND_SECONDS = 1.0
#: asyncio calls every step of a task in a new frame of this code.
_STEP: CodeType = events.Handle._run.__code__  # pyright: ignore[reportPrivateUsage]
_LOOPS = ("asyncio", "selectors", "concurrent.futures", "uvloop")

#: Handlers that did not end when their worker was ended by force. A garbage collection would end
#: them in the context of another run, and tear that down.
_dropped: set[asyncio.Task[Any]] = set()


class AsyncLoop:
    """Performs async runs in the runner's thread; some methods are for other threads.

    :param tasks: the async tasks, each with the number of its runs that may run at once.
    """

    def __init__(self, context: RunnerContext, tasks: Mapping[str, int]) -> None:
        self.tasks: Mapping[str, int] = tasks
        self._keepers_watch = LoopWatch()
        self.kinds: AsyncKinds = AsyncKinds(context.state, tasks, self._keepers_watch)
        self._context = context
        self._at_once = context.state.settings.async_at_once
        self._runs: dict[tuple[int, str], AsyncRun] = {}
        self._requested = context.interrupter.requested
        self._prepared = cache(partial(prepare, context.state, is_async=True))
        self._following: Claim | None = None
        self._is_alone = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._base = contextvars.copy_context()
        self._timer: asyncio.TimerHandle | None = None
        self._watch = LoopWatch()

    # Methods for the runner.

    def run(self, claim: Claim) -> Claim | None:
        """Perform *claim*, and the async claims that come while handlers are running.

        :returns: the next claim, if it must not run in this loop; otherwise None.
        """
        loop = self._loop = self._loop or self._open()
        self._base = contextvars.copy_context()
        self._following = None
        self._begin(claim)
        self._note_progress()
        self._call_soon(self._admit)
        with self._context.interrupter.finding_async(self._find_blocking):
            while self._runs:
                try:
                    loop.run_forever()
                except (KeyboardInterrupt, SystemExit) as error:
                    self._on_exit(error)
        if self._timer is not None:
            self._timer.cancel()
        return self._following

    def interrupt_all(self, error: BaseException) -> None:
        """Interrupt all handlers with *error*. May be called from a signal handler."""
        self._requested.update(dict.fromkeys(list(self._runs), error))
        self._call_soon(self._deliver)

    def close(self) -> None:
        """Close the loop.

        Runs that are left after a second Ctrl-C are cancelled; those that do not end are dropped.
        """
        loop, self._loop = self._loop, None
        if loop is None:
            return
        error = self._context.interrupted or ShuttingDown("the worker was ended")
        for run in self.at_work:
            run.dropped = True
            run.interrupt(error)
        tasks = asyncio.all_tasks(loop)
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=UNWIND_SECONDS))
            loop.set_exception_handler(lambda loop, context: None)
            _dropped.update(asyncio.all_tasks(loop))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    # Methods for the keeper's thread. They write nothing that the loop reads.

    @property
    def at_work(self) -> list[AsyncRun]:
        """The running runs."""
        return list(self._runs.values())

    def admit(self) -> None:
        """Let runs from the inbox begin, if the loop is running."""
        if self._runs:
            self._call_soon(self._admit)

    def deliver(self) -> None:
        """Deliver the requested interruptions when the loop makes progress."""
        if self._runs:
            self._call_soon(self._deliver)

    def look(self, now: float) -> None:
        """Update `could_end` of the runs, and log once which handler blocks the loop.

        A handler can end after it has been interrupted, unless another one blocks the loop.
        """
        blocking = self._blocking(now)
        if len(blocking) == 1 and not blocking[0].blocks:
            blocking[0].blocks = True
            logger.warning(
                "%s: its handler has blocked the event loop, and so all async handlers of this "
                "worker, for more than 1 s. Let it await, or make the blocking call with "
                "asyncio.to_thread().",
                blocking[0].claim,
            )
        for run in self.at_work:
            if run in blocking:
                run.could_end = float("-inf")
            else:
                interrupted_at = None if blocking else run.interrupted_at
                run.could_end = float("inf") if interrupted_at is None else interrupted_at

    def _blocking(self, now: float) -> Sequence[AsyncRun]:
        """Return the runs that may have blocked the loop for too long; none if it makes progress.

        If the blocking run is known, only that run is returned; otherwise, all running runs are.
        """
        loop, at_work = self._loop, self.at_work
        if loop is None or not self._keepers_watch.is_late(now):
            return ()
        # Do not inspect the frames of another thread: up to Python 3.11, they may be gone.
        task = asyncio.current_task(loop)
        owners = (run for run in at_work if task in (run.task, *run.tasks))
        run = None if task is None else next(owners, None)
        if self._keepers_watch.seconds(run, now) < BLOCKED_SECONDS:
            return ()
        return at_work if run is None else [run]

    # Methods for any thread, and for signal handlers, which run in the loop's thread at any point.

    def _call_soon(self, callback: Callable[[], None]) -> None:
        """Let the loop call *callback*, outside of all runs."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # It was closed meanwhile.
                loop.call_soon_threadsafe(callback, context=self._base)

    def _find_blocking(self, frame: FrameType | None) -> AsyncRun | None:
        """Return the run whose handler runs in *frame*, if it blocks the loop."""
        now = time.monotonic()
        if not self._watch.is_late(now):
            return None
        run = self._owner()
        seconds = self._watch.seconds(run, now)
        if run is None or not run.armed or seconds < STEP_SECONDS or _in_asyncio(frame):
            return None
        return run

    # Methods that run in the loop.

    def _open(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_task_factory(self._make_task)
        loop.set_default_executor(OwnedThreads(self._at_once, self._owner))
        return loop

    def _owner(self) -> AsyncRun | None:
        """Return the run in whose context this is called; None outside of runs."""
        current = running()
        return None if current is None else self._runs.get(current.claim.identity)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        """Make a task, and note whose it is."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        run = self._owner()
        if run is not None:
            run.tasks.add(task)
            task.add_done_callback(run.tasks.discard)
        return task

    def _admit(self) -> None:
        """Begin runs from the inbox while there is room."""
        while self._has_room() and (claim := self._next()) is not None:
            self._begin(claim)
        if not self._runs and self._loop is not None:
            self._loop.stop()

    def _has_room(self) -> bool:
        if self._following or self._context.interrupted is not None:
            return False
        return len(self._runs) < self._at_once and not self._is_alone

    def _next(self) -> Claim | None:
        with suppress(Empty):
            claim = self._context.inbox.get_nowait()
            if claim is None:
                self._context.inbox.put(None)  # The last item, which ends the runner.
            elif claim.job_type in self.tasks:
                return claim
            else:
                self._following = claim
        return None

    def _begin(self, claim: Claim) -> None:
        loop = self._loop
        if loop is None or not self._context.may_begin(claim):
            self._context.mailbox.put(released(claim))  # As in `Runner.perform`.
            return
        handler = self._prepared(claim.job_type)
        try:
            current = self._context.current_run(claim, handler, self._request_write)
        except PayloadError as error:
            self._context.mailbox.put(self._context.outcome(claim, error, 0.0))
            return
        run = self._runs[claim.identity] = AsyncRun(claim, current, handler.timeout)
        # Check this after writing `_runs`, since the keeper sets it and then reads `_runs`.
        if self._context.keeper_died:
            run.note(ShuttingDown("the worker's thread that renews leases has ended"))
        self._deliver_to(run)
        self._is_alone = claim.must_run_alone
        current.limited = partial(self._within, run)
        run.timer = self._deliver_after(run.timeout, run)
        run.task = self._base.copy().run(loop.create_task, self._perform(run, handler.call))

    def _deliver_after(self, seconds: float, run: AsyncRun) -> asyncio.TimerHandle:
        assert self._loop is not None
        return self._loop.call_later(seconds, self._deliver_to, run, context=self._base)

    @contextmanager
    def _within(self, run: AsyncRun, seconds: float) -> Generator[None]:
        """Interrupt *run*'s handler after *seconds* in the block, if the loop's thread runs it."""
        if events._get_running_loop() is not self._loop:
            yield
            return
        with run.limited(seconds):
            timer = self._deliver_after(seconds, run)
            try:
                yield
            finally:
                timer.cancel()

    def _end(self, run: AsyncRun, outcome: Outcome) -> None:
        # Do this first, since a second Ctrl-C may come at any point, and the loop would wait for a
        # run that is still in `_runs`.
        del self._runs[run.claim.identity]
        if run.timer is not None:
            run.timer.cancel()
        self._is_alone = False
        self._context.watchdog.extend()
        self._context.mailbox.put(with_output(outcome, run.run))
        if self._context.interrupted is not None:
            self.interrupt_all(self._context.interrupted)
        self._call_soon(self._admit)

    def _deliver(self) -> None:
        """Interrupt the handlers for which an interruption is due."""
        for run in self.at_work:
            self._deliver_to(run)

    def _deliver_to(self, run: AsyncRun) -> None:
        error = self._context.interrupter.due(run)
        if error is not None:
            run.interrupt(error)

    def _note_progress(self) -> None:
        """Note that the loop makes progress, and deliver the interruptions that are due."""
        now = time.monotonic()
        self._watch.note_progress(now)
        self._keepers_watch.note_progress(now)
        self._context.interrupter.postpone(2 * STEP_SECONDS)
        self._deliver()
        if self._loop is not None:
            self._timer = self._loop.call_later(
                STEP_SECONDS, self._note_progress, context=self._base
            )

    def _on_exit(self, error: BaseException) -> None:
        """Continue after an exception that ends a loop.

        A task that awaits the raising task receives the exception, too.

        :raises BaseException: it is the second Ctrl-C.
        """
        if isinstance(error, KeyboardInterrupt) and self._context.keyboard:
            if self._context.interrupted is not None:
                raise error
            self._context.interrupted = error
            self.interrupt_all(error)

    def _request_write(self, run: CurrentRun, heartbeat: bool) -> None:
        """Ask the keeper to write progress. The loop does not wait for it."""
        self._context.mailbox.put(ProgressRequest(run, heartbeat, SimpleQueue()))

    # Methods that run in the task of a run.

    async def _perform(self, run: AsyncRun, handler: Callable[..., Any]) -> None:
        try:
            outcome = await attempt(self._context, run, handler)
        except BaseException as error:
            if run.dropped:
                raise
            if isinstance(error, asyncio.CancelledError):
                error = run.error or error
            seconds = time.monotonic() - run.since
            outcome = self._context.outcome(run.run.claim, error, seconds)
        self._end(run, outcome)


def _in_asyncio(frame: FrameType | None) -> bool:
    """Return whether *frame* runs on behalf of the loop itself, inside a step.

    An interruption there could make the loop lose a task. A coroutine of asyncio that only awaits,
    such as `asyncio.wait_for`, does no harm.
    """
    innermost = True
    while frame is not None and frame.f_code is not _STEP:
        awaits = not innermost and frame.f_code.co_flags & inspect.CO_COROUTINE
        if not awaits and str(frame.f_globals.get("__name__")).startswith(_LOOPS):
            return True
        innermost, frame = False, frame.f_back
    return False
