"""What the runs of a worker need: shared parts, prepared handlers, and outcomes."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from flask import Flask

from ...db.connection import Bookkeeping
from ...errors import DatabaseTrouble, PayloadError
from ...log import log_run, logger
from ...types import JSON, Claim, Outcome
from .. import gate
from ..app_state import State
from ..current import CurrentRun, Output, running
from ..features import Watcher
from ..tasks.declared_task import DeclaredTask
from ..tasks.options import Around
from .held_runs import Leases, ProgressRequest
from .interrupts import HandlerInterrupter
from .outcomes import failure

if TYPE_CHECKING:
    from .monitor import Watchdog

#: A worker asks the database which of its claims come first in their strict orders, and relies on
#: the answer for this many seconds. One query serves many runs, since it takes longer than a short
#: run.
ORDER_CHECK_SECONDS = 0.01


@dataclass(eq=False)
class RunnerContext:
    """The parts of a worker that its runs need. Belongs to the runner's thread.

    :ivar inbox: brings claims; None means that no more will come.
    :ivar mailbox: takes outcomes and progress to the keeper.
    :ivar keyboard: whether a KeyboardInterrupt inside a handler comes from the keyboard. Python
        raises that one only in the main thread.
    :ivar watchers: the features that are notified of the runs.
    :ivar interrupted: the exception with which the user interrupted a run.
    :ivar gives_back: returns whether a run is to be given back at the end of its step.
    :ivar keeper_died: whether the keeper has died, so that no more runs may begin. The keeper
        writes this.
    :ivar books: the connection for ``once()``, and for checks of strict orders; it connects when
        first needed.
    """

    state: State
    interrupter: HandlerInterrupter
    watchdog: Watchdog
    leases: Leases
    inbox: SimpleQueue[Claim | None]
    mailbox: SimpleQueue[Any]
    keyboard: bool
    watchers: Sequence[Watcher] = ()
    gives_back: Callable[[], bool] = lambda: False
    interrupted: BaseException | None = None
    keeper_died: bool = False

    def __post_init__(self) -> None:
        self.keyboard &= threading.current_thread() is threading.main_thread()
        self.books: Bookkeeping = self.state.bookkeeping(guard=self.interrupter.defer)
        self._ordered = self.state.registry.ordered
        self._first: set[int] = set()
        self._looked_for: str | None = None
        self._looked_at = 0.0

    def current_run(
        self, claim: Claim, handler: Prepared, request_write: Callable[[CurrentRun, bool], None]
    ) -> CurrentRun:
        """Return the ``current_run`` of *claim*'s handler.

        :raises PayloadError: the run's row cannot be read.
        """
        state = self.state
        run = CurrentRun(state.app, claim, request_write, self.books, state.settings.timezone)
        run.gives_back, run.limited = self.gives_back, self.interrupter.within
        if handler.keeps_output:
            run.output = Output()
        return run

    def clean_up_after(self, run: CurrentRun) -> None:
        """Restore our signals after *run*'s handler, and let the keeper write its progress.

        The progress is written even if the handler failed: then it matters most.
        """
        self.interrupter.signals.put_back(run.claim.job_type)
        if run.has_progress:
            self.mailbox.put(ProgressRequest(run, False, SimpleQueue()))

    def may_begin(self, claim: Claim) -> bool:
        """Return whether *claim*'s run may begin; if not, it must be released.

        It must not begin if the lease has ended, since another worker may then have the run, or if
        an earlier run of its strict order has come back since the claim.
        """
        if claim.job_type in self._ordered and not self._comes_first(claim):
            return False
        return time.monotonic() < self.leases.end(claim)

    def _comes_first(self, claim: Claim) -> bool:
        now, token = time.monotonic(), claim.token
        if token != self._looked_for or now - self._looked_at > ORDER_CHECK_SECONDS:
            try:
                self._first = gate.held_first(self.books, token)
            except DatabaseTrouble as trouble:
                logger.warning("%s was released. %s", claim, trouble)
                return False
            self._looked_for, self._looked_at = token, now
        return claim.id in self._first

    def report_start(self, claim: Claim) -> None:
        """Report to the log and to the watchers that an attempt begins."""
        if logger.isEnabledFor(logging.INFO):
            log_run(
                logging.INFO,
                "started",
                task=claim.job_type,
                run_id=claim.id,
                attempt=claim.attempt,
                worker=claim.token,
            )
        for watcher in self.watchers:
            watcher.started(claim)

    def outcome(self, claim: Claim, error: BaseException, seconds: float) -> Outcome:
        """Return the outcome of an attempt that *error* ended after *seconds*."""
        outcome = failure(self.state, claim, error, seconds)
        if self.note_interrupt(error):
            return outcome._replace(kind="released", exception=None)
        return outcome

    def note_interrupt(self, error: BaseException) -> bool:
        """Return whether *error* comes from the keyboard. If so, no more runs are begun."""
        # If the worker handles SIGINT itself, the code of the task raised this KeyboardInterrupt.
        if not (isinstance(error, KeyboardInterrupt) and self.keyboard):
            return False
        self.interrupted = error
        return True


class Prepared(NamedTuple):
    """A handler, ready to be called for runs.

    :ivar call: takes the payload; a coroutine function if its runs run side by side.
    :ivar timeout: how long a run may take, in seconds.
    """

    call: Callable[..., Any]
    timeout: float
    atomic: bool
    keeps_output: bool


def prepare(state: State, name: str, is_async: bool = False) -> Prepared:
    """Return the handler of the task *name*, ready to be called.

    :param is_async: whether the call may be a coroutine function, since an event loop runs it.
    :raises UnknownTask: the code has no such task.
    """
    task = state.registry.get(name)
    call: Callable[..., Any] = task.func
    if not is_async:
        call = _synchronous(state.app, call) if task.is_async else state.app.ensure_sync(call)
    if task.arguments.are_decoded:
        call = _decoding(state, task, call)
    hooks = [hook for hook in (*state.registry.around, task.options.around) if hook is not None]
    if hooks:
        call = _around(hooks, call, is_async)
    options, settings = task.options, state.settings
    keeps_output = settings.keep_output if options.keep_output is None else options.keep_output
    return Prepared(call, options.timeout or settings.timeout, options.atomic, keeps_output)


def _synchronous(app: Flask, func: Callable[..., Any]) -> Callable[..., object]:
    """Return *func*, or for a coroutine function a call that runs it to the end in this thread.

    Flask would run it in another thread, where no timeout reaches the handler, so it would continue
    beside its own retry. An app that overrides `async_to_sync` keeps its own way.
    """
    is_default = getattr(app.async_to_sync, "__func__", None) is Flask.async_to_sync
    if not (is_default and inspect.iscoroutinefunction(func)):
        return app.ensure_sync(func)

    def run(**arguments: object) -> object:
        import asyncio

        return asyncio.run(func(**arguments))

    return run


def _decoding(state: State, task: DeclaredTask, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that decodes a stored payload, and calls *call* with the arguments."""
    hidden = state.settings.redact

    def decoding(**payload: JSON) -> Any:
        try:
            arguments = task.arguments.decode(task.current(payload, hidden), hidden)
        except PayloadError as error:
            run = running()
            raise PayloadError(
                f"The payload of run {run and run.id} does not fit {task.name}: {error} Retry it "
                "with another payload, or give the task an upgrade for payloads of older code."
            ) from None
        return call(**arguments)

    return decoding


def _around(
    hooks: Sequence[Around], call: Callable[..., Any], is_async: bool
) -> Callable[..., Any]:
    """Return *call* with *hooks* around it, the first outermost.

    For a coroutine function, the hooks are entered in the task that runs the coroutine.
    """

    def within(**arguments: object) -> object:
        with _entered(hooks):
            return call(**arguments)

    async def within_async(**arguments: object) -> object:
        with _entered(hooks):
            return await call(**arguments)

    return within_async if is_async else within


def _entered(hooks: Sequence[Around]) -> ExitStack:
    """Enter *hooks* with the current run; return the stack that leaves them."""
    run = running()
    assert run is not None
    with ExitStack() as stack:
        for hook in hooks:
            manager = hook(run)
            if not isinstance(manager, AbstractContextManager):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    f"The hook {hook!r} returned {manager!r}, which is not a context manager. "
                    "Return one, or write the hook with one yield."
                )
            manager.__enter__()
            stack.push(partial(_leave, manager))
        return stack.pop_all()


def _leave(
    manager: AbstractContextManager[object],
    kind: type[BaseException] | None,
    error: BaseException | None,
    stack: TracebackType | None,
) -> None:
    """Leave *manager*, but do not let it swallow the error, or the run would succeed."""
    manager.__exit__(kind, error, stack)
