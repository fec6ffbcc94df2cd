"""The runner performs claimed runs, one after the other, and sends each outcome to the keeper.

Runs of async handlers are at work side by side, see `async_runner`.

Nothing that a handler does gets past `Runner.perform`: it returns an `Outcome` whatever happens.
`call_atomic` calls a handler with ``atomic=True``: its work and its success are one commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from ... import signals
from ...db import failpoints
from ...db.statements import free_frames
from ...db.transactions import Words, bounded, guarded, isolated
from ...errors import CronJobsError, Interruption, LeaseLost, ShuttingDown
from ...log import logger
from ...types import JSON, Claim, Outcome
from ..app_state import State
from ..claim import already_recorded
from ..current import CurrentRun, enter_run
from ..outcome import finalize_in
from ..tasks.payload import kept_result
from ..uncommitted import watch_writes
from .context import Prepared, RunnerContext, prepare
from .held_runs import AsyncRun, ProgressRequest, Working
from .outcomes import released, success, with_output

if TYPE_CHECKING:
    from ...features.side_by_side.async_runner import AsyncRunner


#: How long a signal may wait to be handled while there is nothing to do, in seconds.
WAKE_EVERY = 1.0
#: How long a handler waits for its progress to be written, in seconds. Then it goes on.
ANSWER_WITHIN = 0.5
#: How long an atomic handler rests before a locked row is tried again, in seconds.
LOCKED_PAUSE = 0.2


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
        with self._app.app_context():
            watch_writes(self._state.db)
        # Each is made ready when its first run comes.
        self._prepared = cache(partial(prepare, self._state, self.side_by_side))
        self._async: AsyncRunner | None = None
        if self.side_by_side:
            from ...features.side_by_side.async_runner import AsyncRunner

            self._async = AsyncRunner(context, self.side_by_side, self._prepared)

    def run(self) -> None:
        """Perform claims until None comes or the user interrupts."""
        try:
            with self.context.books:
                claim = self._next()
                while claim is not None:
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

    def interrupt_at_keyboard(self, frame: FrameType | None) -> None:
        """Interrupt the handlers at work, by Ctrl-C, whose signal has come in *frame*.

        :raises KeyboardInterrupt: a handler is at work there.
        """
        error = self.context.interrupted = KeyboardInterrupt()
        if self._async is not None:
            self._async.interrupt_all(error)
        self._interrupter.raise_in_handler(error, frame)

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
            # Not kept in this frame, which the error knows: it would live until a collection.
            return with_output(
                self.context.outcome(run.claim if run else claim, error, seconds), run
            )
        outcome = success(claim, result, warning, started, finalized=handler.atomic)
        return outcome if run.output is None else with_output(outcome, run)

    def _enter(self, handler: Prepared, run: CurrentRun, started: float) -> tuple[JSON, str | None]:
        working = self.working = Working(run.claim, run, handler.timeout, started)
        leave = enter_run(run)
        try:
            # After `working` is set: the keeper sets one and looks at the other.
            if self.context.abandoned:
                raise ShuttingDown("the worker's keeper has ended")
            try:
                return self._call(handler, working), run.warning
            finally:
                self.context.note_end(run)
        finally:
            leave()
            self.working = None
            self.context.watchdog.extend()

    def _call(self, handler: Prepared, working: Working) -> JSON:
        context, db = self._app.app_context(), self._state.db
        value: JSON = None
        ended = False
        try:
            with context:
                value = self._armed(handler, working)
                ended = True
        except BaseException as error:
            db.close_session(context)
            # What an atomic handler did is committed already, whatever the teardown raises.
            if not (ended and handler.atomic):
                raise
            if not self.context.note_interrupt(error):
                logger.exception("%s: a teardown raised", working.claim)
        if not db.ends_with_context:
            db.close_session(context)
        return value

    def _armed(self, handler: Prepared, working: Working) -> JSON:
        claim, run = working.claim, working.run
        # Disarm before the context is torn down: interrupted there, db.session would be left to
        # the next run, with this one's rows in it.
        try:
            try:
                self._interrupter.arm(working)
                signals.send(signals.run_started, self._app, claim=claim)
                failpoints.reach("before-handler")
                if handler.atomic:
                    return call_atomic(self._state, run, handler.call, self._interrupter.disarm)
                value = handler.call(**run.payload)
                if run.ended_by is not None:
                    run.raise_again(at_end=True)
                failpoints.reach("after-handler")
            finally:
                self._interrupter.disarm()
        except BaseException as error:
            self._interrupter.disarm()  # A second interruption may have come just before.
            cause = run.cause_of(error)
            free_frames(error)
            if cause is not error:
                free_frames(cause)
                raise cause from None
            raise
        return kept_result(value, self._state.settings, claim)

    def _request_write(self, run: CurrentRun, heartbeat: bool) -> None:
        answered: SimpleQueue[None] = SimpleQueue()
        self.context.mailbox.put(ProgressRequest(run, heartbeat, answered))
        try:
            answered.get(timeout=ANSWER_WITHIN)
        except Exception:
            logger.debug("run %d: the keeper is busy; progress will be written later", run.id)


def call_atomic(
    state: State, run: CurrentRun, handler: Callable[..., object], disarm: Callable[[], None]
) -> JSON:
    """Call *handler* for *run*, then finalize the run and commit, all in ``db.session``.

    The row is finalized inside the session's own transaction, under the claim's token, just before
    the commit. If the lease was lost, no row matches and everything is rolled back. If the process
    dies, the database rolls it back. So database effects happen exactly once.

    While somebody else has locked the row, it waits where it can be interrupted.

    :param disarm: called before the commit, so that no timeout splits it.
    :raises AtomicCommit: the handler committed, or removed the session.
    :raises LeaseLost: the run is another worker's by now; all is rolled back.
    """
    # Here, since they map the tables, which most processes do not use.
    from ...features.steps.step_rows import holder
    from ..insert import writing_connection

    claim, session = run.claim, state.db.session()
    with isolated(state.db):
        with guarded(state.db, _WORDS, disarm):
            value = handler(**run.payload)
            failpoints.reach("after-handler")
        result = kept_result(value, state.settings, str(claim))
        connection, is_told = writing_connection(session), False
        while not _try_commit(state, run, connection, result, disarm):
            if not is_told:
                logger.warning("%s: its commit waits. %s", claim, holder(connection, claim.id))
                is_told = True
            time.sleep(LOCKED_PAUSE)
    failpoints.reach("after-finalize")
    return result


def _try_commit(
    state: State,
    run: CurrentRun,
    connection: Connection,
    result: JSON,
    disarm: Callable[[], None],
) -> bool:
    """Commit if the run is still ours; return False if its row is locked.

    As in bookkeeping, each statement has a limit: nobody can be interrupted here.
    """
    claim, session = run.claim, state.db.session()
    with run.books.guard(), bounded(connection, run.books.limit):
        is_held = finalize_in(connection, claim, result)
        if is_held is None:
            return False
        disarm()
        if not is_held:
            session.rollback()
            raise LeaseLost("the lease was lost before the commit; the work is rolled back")
        failpoints.reach("before-finalize")
        _commit(state, session, claim)
    return True


def _commit(state: State, session: Session, claim: Claim) -> None:
    """Commit; if that raises, look whether it was committed all the same.

    A hook of the app's, such as ``after_commit``, may raise when all is done.
    """
    try:
        session.commit()
    except Exception:
        if not _is_committed(state, claim):
            raise
        logger.exception(
            "task %s, run %d: its work is committed, and then a hook of the session's commit "
            "raised. The run has succeeded.",
            claim.job_type,
            claim.id,
        )


def _is_committed(state: State, claim: Claim) -> bool:
    success = Outcome(claim.id, claim.token, "succeeded", claim.attempt, claim.job_type)
    with suppress(CronJobsError), state.bookkeeping() as books:
        return claim.id in already_recorded(books, [success]).recorded
    return False


_WORDS = Words("A handler with atomic=True", "the run's success", "remove atomic=True")
