"""The runner performs claimed runs one after the other, and sends each outcome to the keeper.

A loop performs the runs that run side by side; see `features.Loop`.

Whatever a handler does, `Runner.perform` returns an `Outcome`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextvars import copy_context
from functools import cache, partial
from queue import Empty, SimpleQueue
from types import FrameType

from ... import signals
from ...db import failpoints
from ...db.statements import free_frames
from ...errors import Interruption, ShuttingDown
from ...log import logger
from ...types import JSON, Claim, Outcome
from .. import features
from ..background import end_fork
from ..current import CurrentRun, run_here
from ..tasks.payload import kept_result
from ..uncommitted import watch_writes
from .context import Prepared, RunnerContext, prepare
from .held_runs import ProgressRequest, Working
from .outcomes import released, success, with_output

#: Seconds after which a waiting runner lets Python handle pending signals.
SIGNAL_SECONDS = 1.0
#: Seconds that a handler waits for its progress to be written before it continues.
ANSWER_SECONDS = 0.5


class Runner:
    """Performs claims from the inbox until None comes, and puts outcomes into the mailbox.

    Its thread alone writes its attributes; the keeper reads `working`, `at_work` and `left`.

    :ivar loop: performs the runs that run side by side, if there are tasks of that kind.
    :ivar working: the current run, if it does not run side by side with others.
    :ivar left: whether it performs no more runs. All its outcomes are in the mailbox by then.
    """

    def __init__(self, context: RunnerContext) -> None:
        self.working: Working | None = None
        self.left: bool = False
        self.context: RunnerContext = context
        self.loop: features.Loop | None = features.loop(context)
        self._state = context.state
        self._app = context.state.app
        self._interrupter = context.interrupter
        with self._app.app_context():
            watch_writes(self._state.db)
        # Each task's handler is prepared when the first run of the task comes.
        self._prepared = cache(partial(prepare, self._state))

    def run(self) -> None:
        """Perform claims until None comes or the user interrupts."""
        try:
            with self.context.books:
                claim = self._next()
                while claim is not None:
                    following = None
                    if self.loop is not None and claim.job_type in self.loop.tasks:
                        following = self.loop.run(claim)
                    else:
                        self.context.mailbox.put(self.perform(claim))
                    if self.context.interrupted is not None:
                        break
                    claim = following or self._next()
        finally:
            self.working = None
            if self.loop is not None:
                self.loop.close()

    @property
    def at_work(self) -> Sequence[Working]:
        """The runs whose handlers are running."""
        if self.working is not None:
            return (self.working,)
        return () if self.loop is None else self.loop.at_work

    def interrupt(self, claim: Claim, error: Interruption) -> None:
        """Interrupt *claim*'s handler with *error*, now or when it begins.

        The keeper calls this.
        """
        self._interrupter.interrupt(claim, error)
        if self.loop is not None:
            self.loop.deliver()

    def interrupt_at_keyboard(self, frame: FrameType | None) -> None:
        """Interrupt the running handlers after Ctrl-C, whose signal arrived in *frame*.

        :raises KeyboardInterrupt: a handler runs there.
        """
        error = self.context.interrupted = KeyboardInterrupt()
        if self.loop is not None:
            self.loop.interrupt_all(error)
        self._interrupter.raise_in_handler(error, frame)

    def _next(self) -> Claim | None:
        """Return the next claim; None if no more will come.

        Wake up every second, so that a pending signal is handled.
        """
        while True:
            try:
                return self.context.inbox.get(timeout=SIGNAL_SECONDS)
            except Empty:
                pass

    def perform(self, claim: Claim) -> Outcome:
        """Perform one claimed run and return its outcome."""
        if not self.context.may_begin(claim):
            return released(claim)
        started = time.monotonic()
        run: CurrentRun | None = None
        try:
            self.context.report_start(claim)
            handler = self._prepared(claim.job_type)
            run = self.context.current_run(claim, handler, self._request_write)
            # In a context of its own, a handler leaves no request and no variables to others.
            result, warning = copy_context().run(self._enter, handler, run, started)
        except BaseException as error:
            seconds = time.monotonic() - started
            # Do not keep the outcome in a local variable: the error refers to this frame, so the
            # variable would live until the garbage collector runs.
            return with_output(
                self.context.outcome(run.claim if run else claim, error, seconds), run
            )
        outcome = success(claim, result, warning, started, finalized=handler.atomic)
        return outcome if run.output is None else with_output(outcome, run)

    def _enter(self, handler: Prepared, run: CurrentRun, started: float) -> tuple[JSON, str | None]:
        working = self.working = Working(run.claim, run, handler.timeout, started)
        run_here.set(run)
        try:
            # Check this after `working` is set: a keeper that dies sets `keeper_died` before it
            # reads `working`.
            if self.context.keeper_died:
                raise ShuttingDown("the worker's thread that renews leases has ended")
            try:
                return self._call(handler, working), run.warning
            finally:
                self.context.clean_up_after(run)
        finally:
            self.working = None
            if self.context.watchdog.is_shortened:
                self.context.watchdog.extend()

    def _call(self, handler: Prepared, working: Working) -> JSON:
        context, db = self._app.app_context(), self._state.db
        value: JSON = None
        has_returned = False
        try:
            with context:
                value = self._armed(handler, working)
                has_returned = True
        except BaseException as error:
            db.close_session(context)
            # An atomic handler has committed already, whatever the teardown raises.
            if not (has_returned and handler.atomic):
                raise
            if not self.context.note_interrupt(error):
                logger.exception("%s: a teardown raised", working.claim)
        if not db.ends_with_context:
            db.close_session(context)
        return value

    def _armed(self, handler: Prepared, working: Working) -> JSON:
        claim, run, pid = working.claim, working.run, os.getpid()
        # Disarm before the context is torn down. If the teardown were interrupted, the next run
        # would get db.session with the rows of this one.
        try:
            try:
                self._interrupter.arm(working)
                signals.send(signals.run_started, self._app, claim=claim)
                failpoints.reach("before-handler")
                if handler.atomic:
                    from .atomic import call_atomic  # Imported here, since it maps the tables.

                    return call_atomic(self._state, run, handler.call, self._interrupter.disarm)
                value = handler.call(**run.payload)
                if run.ended_by is not None:
                    run.raise_again(at_end=True)
                failpoints.reach("after-handler")
            finally:
                if os.getpid() != pid:
                    end_fork()
                self._interrupter.disarm()
        except BaseException as error:
            self._interrupter.disarm()  # A second interruption may have come just before.
            cause = run.cause_of(error)
            free_frames(error)
            if cause is not error:
                free_frames(cause)
                raise cause from None
            raise
        return None if value is None else kept_result(value, self._state.settings, claim)

    def _request_write(self, run: CurrentRun, heartbeat: bool) -> None:
        answered: SimpleQueue[None] = SimpleQueue()
        self.context.mailbox.put(ProgressRequest(run, heartbeat, answered))
        try:
            answered.get(timeout=ANSWER_SECONDS)
        except Exception:
            logger.debug("run %d: the worker is busy; progress will be written later", run.id)
