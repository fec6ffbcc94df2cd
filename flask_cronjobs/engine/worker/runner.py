"""The runner performs claimed runs, one after the other, and sends each outcome to the keeper.

Runs of async handlers are at work side by side, see `async_runner`.

Nothing that a handler does gets past `Runner.perform`: it returns an `Outcome` whatever happens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ... import failpoints, signals
from ...db.deadlines import free_frames
from ...errors import Interruption, ShuttingDown
from ...jobs.runs.current import CurrentRun, enter_run
from ...log import logger
from ...registry.payload import kept_result
from ...types import JSON, Claim, Outcome
from . import atomic
from .context import Prepared, RunnerContext, prepare
from .held_runs import AsyncRun, ProgressRequest, Working
from .outcomes import released, success

if TYPE_CHECKING:
    from .async_runner import AsyncRunner


#: How long a signal may wait to be handled while there is nothing to do, in seconds.
WAKE_EVERY = 1.0
#: How long a handler waits for its progress to be written, in seconds. Then it goes on.
ANSWER_WITHIN = 0.5


class Runner:
    """Performs claims from the inbox until None comes, and puts outcomes into the mailbox.

    Its thread alone writes its attributes; the keeper reads `working`, `at_work` and `left`.

    :ivar side_by_side: the tasks whose handlers are at work side by side, with how many at once.
    :ivar working: the run at work that is not side by side with others.
    :ivar left: whether it performs nothing more. All its outcomes are in the mailbox by then.
    """

    def __init__(
        self, context: RunnerContext, side_by_side: Mapping[str, int] | None = None
    ) -> None:
        self.working: Working | None = None
        self.left: bool = False
        self.context: RunnerContext = context
        self.side_by_side: Mapping[str, int] = side_by_side or {}
        self._state = context.state
        self._app = context.state.app
        self._interrupter = context.interrupter
        # Each is made ready when its first run comes.
        self._prepared = cache(partial(prepare, self._state, self.side_by_side))
        self._async: AsyncRunner | None = None
        if self.side_by_side:
            from .async_runner import AsyncRunner

            self._async = AsyncRunner(context, self.side_by_side, self._prepared)

    def run(self) -> None:
        """Perform claims until None comes or the user interrupts."""
        try:
            with self.context.books:
                claim = self._next()
                while claim is not None:
                    self.context.precedence.give_way()
                    following = None
                    if self._async is not None and claim.job_type in self.side_by_side:
                        following = self._async.run(claim)
                    else:
                        self.context.mailbox.put(self.perform(claim))
                    if self.context.interrupted is not None:
                        break
                    claim = following or self._next()
        finally:
            self.working = None
            if self._async is not None:
                self._async.close()
            self.left = True

    @property
    def at_work(self) -> Sequence[Working]:
        """The runs at work."""
        if self.working is not None:
            return (self.working,)
        return () if self._async is None else self._async.at_work

    def blocking(self, now: float) -> Sequence[AsyncRun]:
        """Return the runs of which one blocks the event loop."""
        return () if self._async is None else self._async.blocking(now)

    def wake(self) -> None:
        """Let async runs begin that are in the inbox. For the keeper's thread."""
        if self._async is not None:
            self._async.wake()

    def interrupt(self, claim: Claim, error: Interruption) -> None:
        """Interrupt *claim*'s handler with *error*, now or when it begins. For the keeper."""
        self._interrupter.interrupt(claim, error)
        if self._async is not None:
            self._async.deliver_soon()

    def interrupt_all(self, error: BaseException) -> None:
        """Interrupt all async handlers. May be called from a signal handler."""
        if self._async is not None:
            self._async.interrupt_all(error)

    def _next(self) -> Claim | None:
        """Return the next claim; None if no more will come.

        Wake up every second, so that a pending signal is handled.
        """
        while True:
            try:
                return self.context.inbox.get(timeout=WAKE_EVERY)
            except Empty:
                pass

    def perform(self, claim: Claim) -> Outcome:
        """Perform one claimed run and return its outcome."""
        if not self.context.may_begin(claim):
            return released(claim)
        started = time.monotonic()
        run: CurrentRun | None = None
        try:
            self.context.begin(claim)
            handler = self._prepared(claim.job_type)
            run = self.context.current_run(claim, handler, self._request_write)
            result, warning = self._enter(handler, run, started)
        except BaseException as error:
            seconds = time.monotonic() - started
            return self.context.outcome(run.claim if run else claim, error, seconds)
        return success(claim, result, warning, started, finalized=handler.atomic)

    def _enter(self, handler: Prepared, run: CurrentRun, started: float) -> tuple[JSON, str | None]:
        self.working = Working(run.claim, run, handler.timeout, started)
        leave = enter_run(run)
        try:
            # After `working` is set: the keeper sets one and looks at the other.
            if self.context.abandoned:
                raise ShuttingDown("the worker's keeper has ended")
            try:
                return self._call(handler, run), run.warning
            finally:
                self.context.note_end(run)
        finally:
            leave()
            self.working = None
            self.context.watchdog.extend()

    def _call(self, handler: Prepared, run: CurrentRun) -> JSON:
        context, db = self._app.app_context(), self._state.db
        value: JSON = None
        ended = False
        try:
            with context:
                value = self._armed(handler, run)
                ended = True
        except BaseException as error:
            db.close_session(context)
            # What an atomic handler did is committed already, whatever the teardown raises.
            if not (ended and handler.atomic):
                raise
            if not self.context.note_interrupt(error):
                logger.exception("%s: a teardown raised", run.claim)
        if not db.ends_with_context:
            db.close_session(context)
        return value

    def _armed(self, handler: Prepared, run: CurrentRun) -> JSON:
        claim = run.claim
        # Disarm before the context is torn down: interrupted there, db.session would be left to
        # the next run, with this one's rows in it.
        try:
            self._interrupter.arm(claim, handler.timeout)
            signals.send(signals.run_started, self._app, claim=claim)
            failpoints.reach("before-handler")
            if handler.atomic:
                return atomic.call(self._state, run, handler.call, self._interrupter.disarm)
            value = handler.call(**run.payload)
            failpoints.reach("after-handler")
        except BaseException as error:
            self._interrupter.disarm()
            free_frames(error)
            raise
        finally:
            self._interrupter.disarm()
        return kept_result(value, self._state.settings.max_payload_bytes, claim)

    def _request_write(self, run: CurrentRun, heartbeat: bool) -> None:
        answered: SimpleQueue[None] = SimpleQueue()
        self.context.mailbox.put(ProgressRequest(run, heartbeat, answered))
        try:
            answered.get(timeout=ANSWER_WITHIN)
        except Exception:
            logger.debug("run %d: the keeper is busy; progress will be written later", run.id)
