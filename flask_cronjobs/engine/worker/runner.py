"""The runner performs claimed runs, one after the other, and sends each outcome to the keeper.

Runs of async handlers are at work side by side, see `async_runner`.

Nothing that a handler does gets past `Runner.perform`: it returns an `Outcome` whatever happens.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from flask import Flask

from ... import failpoints, signals
from ...current_run import CurrentRun, enter_run
from ...errors import Interruption, PayloadError, ShuttingDown
from ...log import log_run, logger
from ...registry.payload import kept_result
from ...state import State
from ...store import Bookkeeping
from ...types import JSON, Claim, Outcome
from . import atomic
from .interrupts import HandlerInterrupter
from .leases import Leases
from .outcomes import failure, free_frames, released, success
from .watchdog import Watchdog

if TYPE_CHECKING:
    from .async_runner import AsyncRun, AsyncRunner


class Working(NamedTuple):
    """The run at work, for the keeper to watch.

    :ivar since: when it began, by `time.monotonic`.
    :ivar timeout: how long it may take, in seconds.
    """

    claim: Claim
    run: CurrentRun
    since: float
    timeout: float


@dataclass(frozen=True, slots=True)
class ProgressRequest:
    """A handler reported progress through ``current_run``, or asked for a heartbeat.

    :ivar answered: receives None once the progress is written.
    """

    run: CurrentRun
    heartbeat: bool
    answered: SimpleQueue[None]


#: How long a signal may wait to be handled while there is nothing to do, in seconds.
WAKE_EVERY = 1.0
#: How long a handler waits for its progress to be written, in seconds. Then it goes on.
ANSWER_WITHIN = 0.5


class Runner:
    """Performs claims from *inbox* until None comes, and puts outcomes into *mailbox*.

    Its thread alone writes its attributes, but for `abandoned`; the keeper reads `working`,
    `at_work` and `left`.

    :param keyboard: whether a KeyboardInterrupt inside a handler comes from the keyboard.
    :param side_by_side: the tasks whose handlers are at work side by side.
    :ivar working: the run at work that is not side by side with others.
    :ivar interrupted: the exception by which the user interrupted it.
    :ivar abandoned: whether the keeper has died. Written by the keeper: nothing more may begin.
    :ivar left: whether it performs nothing more. All its outcomes are in the mailbox by then.
    """

    def __init__(
        self,
        state: State,
        interrupter: HandlerInterrupter,
        watchdog: Watchdog,
        leases: Leases,
        inbox: SimpleQueue[Claim | None],
        mailbox: SimpleQueue[Any],
        keyboard: bool,
        side_by_side: Mapping[str, int] | None = None,
    ) -> None:
        self.working: Working | None = None
        self.interrupted: BaseException | None = None
        self.left: bool = False
        self.abandoned: bool = False
        self.keyboard: bool = keyboard
        self._state = state
        self._app = state.app
        self._interrupter = interrupter
        self._watchdog = watchdog
        self._leases = leases
        self._inbox = inbox
        self._mailbox = mailbox
        # Connects only if a handler calls once().
        self._books = Bookkeeping(state.engine, guard=interrupter.hold)
        self._handlers: dict[str, Prepared] = {}
        self._side_by_side = side_by_side or {}
        self._async: AsyncRunner | None = None
        if self._side_by_side:
            from .async_runner import AsyncRunner

            self._async = AsyncRunner(
                self,
                state,
                interrupter,
                watchdog,
                leases,
                inbox,
                mailbox,
                self._books,
                self._side_by_side,
            )

    def run(self) -> None:
        """Perform claims until None comes or the user interrupts."""
        try:
            with self._books:
                claim = self._next()
                while claim is not None:
                    following = None
                    if self._async is not None and claim.job_type in self._side_by_side:
                        following = self._async.run(claim)
                    else:
                        self._mailbox.put(self.perform(claim))
                    if self.interrupted is not None:
                        break
                    claim = following or self._next()
        finally:
            self.working = None
            if self._async is not None:
                self._async.close()
            self.left = True

    @property
    def at_work(self) -> Sequence[Working | AsyncRun]:
        """The runs at work."""
        if self.working is not None:
            return (self.working,)
        return () if self._async is None else self._async.at_work

    @property
    def busy_since(self) -> float | None:
        """Since when nothing could begin that waits, by `time.monotonic`; None if it can."""
        if self.working is not None:
            return self.working.since
        return None if self._async is None else self._async.busy_since

    def blocking(self, now: float) -> Blocking | None:
        """Return what blocks the event loop, if something does."""
        return None if self._async is None else self._async.blocking(now)

    def wake(self) -> None:
        """Let async runs begin that are in the inbox. For the keeper's thread."""
        if self._async is not None:
            self._async.wake()

    def interrupt(self, claim: Claim, error: Interruption) -> None:
        """Interrupt *claim*'s handler with *error*, now or when it begins. For the keeper."""
        if self._async is not None and claim.job_type in self._side_by_side:
            self._async.interrupt(claim, error)
        else:
            self._interrupter.interrupt(claim, error)

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
                return self._inbox.get(timeout=WAKE_EVERY)
            except Empty:
                pass

    def perform(self, claim: Claim) -> Outcome:
        """Perform one claimed run and return its outcome."""
        if not self._leases.holds(claim):
            return released(claim)  # Frozen or cut off since the claim: another may have the run.
        started = time.monotonic()
        try:
            if logger.isEnabledFor(logging.INFO):
                log_start(claim)
            if claim.broken is not None:
                raise PayloadError(claim.broken)
            handler = self._handler(claim.job_type)
            result, warning = self._enter(handler, claim, started)
        except BaseException as error:
            return self.outcome(claim, error, time.monotonic() - started)
        return success(claim, result, warning, started, finalized=handler.atomic)

    def _enter(self, handler: Prepared, claim: Claim, started: float) -> tuple[JSON, str | None]:
        run = CurrentRun(claim, self._request_write, self._books)
        self.working = Working(claim, run, started, handler.timeout)
        leave = enter_run(run)
        try:
            # After `working` is set: the keeper sets one and looks at the other.
            if self.abandoned:
                raise ShuttingDown("the worker's keeper has ended")
            try:
                return self._call(handler, claim), run.warning
            finally:
                # Also if it failed: then it matters most how far it came.
                if run.has_progress:
                    self._request_write(run, False)
        finally:
            leave()
            self.working = None
            self._watchdog.extend()

    def _call(self, handler: Prepared, claim: Claim) -> JSON:
        context = self._app.app_context()
        value: JSON = None
        ended = False
        try:
            with context:
                value = self._armed(handler, claim)
                ended = True
        except BaseException as error:
            self.forget_session(context)
            # What an atomic handler did is committed already, whatever the teardown raises.
            if not (ended and handler.atomic):
                raise
            if not self._is_interrupted(error):
                logger.exception("task %s, run %d: a teardown raised", claim.job_type, claim.id)
        return value

    def _armed(self, handler: Prepared, claim: Claim) -> JSON:
        # Disarm before the context is torn down: interrupted there, db.session would be left to
        # the next run, with this one's rows in it.
        try:
            self._interrupter.arm(claim, handler.timeout)
            signals.send(signals.run_started, self._app, claim=claim)
            failpoints.reach("before-handler")
            if handler.atomic:
                return atomic.call(self._state, claim, handler.call, self._interrupter.disarm)
            value = handler.call(**claim.payload)
            failpoints.reach("after-handler")
        except BaseException as error:
            self._interrupter.disarm()
            free_frames(error)
            raise
        finally:
            self._interrupter.disarm()
        return kept_result(value, self._state.settings.max_payload_bytes, claim)

    def forget_session(self, context: object) -> None:
        """Close the session of *context* if a teardown that raised has left it open.

        It is registered under the context's id, which the next context may have again.
        """
        sessions: dict[int, Any] = getattr(self._state.db.session.registry, "registry", {})
        session = sessions.pop(id(context), None)
        if session is not None:
            session.close()

    def outcome(self, claim: Claim, error: BaseException, seconds: float) -> Outcome:
        """Return the outcome of an attempt that *error* ended after *seconds*."""
        outcome = failure(self._state, claim, error, seconds)
        return outcome._replace(kind="released") if self._is_interrupted(error) else outcome

    def _is_interrupted(self, error: BaseException) -> bool:
        """Return whether *error* comes from the keyboard. Then nothing more is begun."""
        # Where the worker handles SIGINT itself, the handler raised this one.
        if not (isinstance(error, KeyboardInterrupt) and self.keyboard):
            return False
        self.interrupted = error
        return True

    def _handler(self, name: str) -> Prepared:
        handler = self._handlers.get(name)
        if handler is None:
            task = self._state.registry.get(name)
            timeout = task.options.timeout or self._state.settings.timeout
            call = _synchronous(self._app, task.func)
            handler = Prepared(call, timeout, task.options.atomic)
            self._handlers[name] = handler
        return handler

    def _request_write(self, run: CurrentRun, heartbeat: bool) -> None:
        answered: SimpleQueue[None] = SimpleQueue()
        self._mailbox.put(ProgressRequest(run, heartbeat, answered))
        try:
            answered.get(timeout=ANSWER_WITHIN)
        except Exception:
            logger.debug("run %d: the keeper is busy; progress will be written later", run.id)


@dataclass(frozen=True, slots=True)
class Blocking:
    """What blocks the event loop: it does not await.

    :ivar at_work: the run; None if it is not known.
    :ivar seconds: for how long it has been seen to.
    """

    at_work: AsyncRun | None
    seconds: float


def log_start(claim: Claim) -> None:
    """Log that *claim*'s run begins."""
    log_run(
        logging.INFO,
        "started",
        task=claim.job_type,
        run_id=claim.id,
        attempt=claim.attempt,
        worker=claim.token,
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A handler, ready to be called for runs."""

    call: Callable[..., object]
    timeout: float
    atomic: bool


def _synchronous(app: Flask, func: Callable[..., Any]) -> Callable[..., object]:
    """Return *func*, or for a coroutine function a call that runs it to the end in this thread.

    Flask would run it in another thread, where no timeout reaches the handler: it would go on
    beside its own retry. An app that overrides `async_to_sync` keeps its own way.
    """
    is_default = getattr(app.async_to_sync, "__func__", None) is Flask.async_to_sync
    if not (is_default and inspect.iscoroutinefunction(func)):
        return app.ensure_sync(func)

    def run(**arguments: object) -> object:
        import asyncio

        return asyncio.run(func(**arguments))

    return run
