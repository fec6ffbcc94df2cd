"""What both runners share: the worker's parts, its handlers, and how an attempt ends."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple

from flask import Flask

from ...db.connection import Bookkeeping
from ...errors import AtomicCommit, DatabaseTrouble, PayloadError
from ...jobs import orders
from ...jobs.runs.current import CurrentRun, running
from ...jobs.state import State
from ...log import logger
from ...registry.handler import Handler
from ...registry.options import Around
from ...types import JSON, Claim, Outcome
from ..pings import Pings
from .held_runs import Leases, log_start
from .interrupts import HandlerInterrupter, Watchdog
from .outcomes import failure
from .output import is_kept
from .precedence import Precedence

#: How old a look at strict orders may be when a run begins, in seconds. One serves all runs of a
#: claim, and to look before each would take longer than short runs themselves.
LOOK_EVERY = 0.01


class RunnerContext:
    """The parts of a worker that its runs need. Belongs to the runner's thread.

    :param inbox: brings claims; None means that no more will come.
    :param mailbox: takes outcomes and progress to the keeper.
    :param keyboard: whether a KeyboardInterrupt inside a handler comes from the keyboard.
    :param precedence: lets the keeper go first.
    :param pings: tells monitors of the runs of definitions, if there are any.
    :ivar books: the connection for ``once()``, and for looks at strict orders; connects when first
        needed.
    :ivar interrupted: the exception by which the user interrupted a run.
    :ivar abandoned: whether the keeper has died. Written by the keeper: nothing more may begin.
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
        pings: Pings | None = None,
        precedence: Precedence | None = None,
    ) -> None:
        self.state = state
        self.interrupter = interrupter
        self.watchdog = watchdog
        self.leases = leases
        self.inbox = inbox
        self.mailbox = mailbox
        self.keyboard = keyboard
        self.precedence: Precedence = precedence or Precedence()
        self.pings = pings
        self.books: Bookkeeping = state.bookkeeping(guard=interrupter.hold)
        self.interrupted: BaseException | None = None
        self.abandoned: bool = False
        self._ordered = state.registry.ordered
        self._first: set[int] = set()
        self._looked_for: str | None = None
        self._looked_at = 0.0

    def current_run(
        self, claim: Claim, request_write: Callable[[CurrentRun, bool], None]
    ) -> CurrentRun:
        """Return what *claim*'s handler sees of its run."""
        state = self.state
        return CurrentRun(state.app, claim, request_write, self.books, state.settings.timezone)

    def may_begin(self, claim: Claim) -> bool:
        """Return whether *claim*'s run may begin; if not, it is to be released.

        Not if the worker was frozen or cut off since the claim, so that another may have the run,
        or if an earlier one of its strict order has come back meanwhile.
        """
        if claim.job_type in self._ordered and not self._comes_first(claim):
            return False
        return self.leases.holds(claim)

    def _comes_first(self, claim: Claim) -> bool:
        now, token = time.monotonic(), claim.token
        if token != self._looked_for or now - self._looked_at > LOOK_EVERY:
            try:
                self._first = orders.held_first(self.books, token)
            except DatabaseTrouble as trouble:
                logger.warning("%s was given back. %s", claim, trouble)
                return False
            self._looked_for, self._looked_at = token, now
        return claim.id in self._first

    def begin(self, claim: Claim) -> None:
        """Tell that an attempt begins."""
        if logger.isEnabledFor(logging.INFO):
            log_start(claim)
        if self.pings is not None:
            self.pings.started(claim)

    def outcome(self, claim: Claim, error: BaseException, seconds: float) -> Outcome:
        """Return the outcome of an attempt that *error* ended after *seconds*."""
        outcome = failure(self.state, claim, error, seconds)
        if isinstance(error, AtomicCommit) and error.__cause__ is not None:
            # The run is dead, but a Ctrl-C that ended its handler still stops the worker.
            self.note_interrupt(error.__cause__)
        if self.note_interrupt(error):
            return outcome._replace(kind="released", exception=None)
        return outcome

    def note_interrupt(self, error: BaseException) -> bool:
        """Return whether *error* comes from the keyboard. Then nothing more is begun."""
        # Where the worker handles SIGINT itself, the handler raised this one.
        if not (isinstance(error, KeyboardInterrupt) and self.keyboard):
            return False
        self.interrupted = error
        return True


class Prepared(NamedTuple):
    """A handler, ready to be called for runs.

    :ivar call: takes the payload; a coroutine function if its runs are at work side by side.
    :ivar timeout: how long a run may take, in seconds.
    """

    call: Callable[..., Any]
    timeout: float
    atomic: bool
    keeps_output: bool


class Handlers:
    """The handlers of one worker, each made ready when its first run comes.

    :param side_by_side: the tasks whose handlers are at work side by side.
    """

    def __init__(self, state: State, side_by_side: Collection[str]) -> None:
        self._state = state
        self._side_by_side = side_by_side
        self._prepared: dict[str, Prepared] = {}

    def get(self, name: str) -> Prepared:
        """Return the handler of the task *name*.

        :raises UnknownTask: the code has no such task.
        """
        prepared = self._prepared.get(name)
        if prepared is None:
            prepared = self._prepared[name] = self._prepare(name)
        return prepared

    def _prepare(self, name: str) -> Prepared:
        task = self._state.registry.get(name)
        hooks = self._state.registry.around_of(task)
        call: Callable[..., Any]
        if name in self._side_by_side:
            call = _around_async(hooks, _decoding(task, task.func))
        else:
            call = _around(hooks, _decoding(task, _synchronous(self._state.app, task.func)))
        timeout = task.options.timeout or self._state.settings.timeout
        return Prepared(call, timeout, task.options.atomic, is_kept(self._state, task.options))


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


def _decoding(task: Handler, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return *call* so that it takes the stored payload: itself if that has its arguments."""
    if not task.arguments.are_decoded:
        return call

    def decoding(**payload: JSON) -> Any:
        try:
            arguments = task.arguments.decode(task.current(payload))
        except PayloadError as error:
            run = running()
            raise PayloadError(
                f"The payload of run {run and run.id} does not fit {task.name}: {error} Retry it "
                "with another payload, or give the task an upgrade for payloads of older code."
            ) from None
        return call(**arguments)

    return decoding


def _around(hooks: Sequence[Around], call: Callable[..., object]) -> Callable[..., object]:
    """Return *call* with *hooks* around it, the first outermost."""
    if not hooks:
        return call

    def within(**arguments: object) -> object:
        with _entered(hooks):
            return call(**arguments)

    return within


def _around_async(
    hooks: Sequence[Around], call: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """Return the coroutine function *call* with *hooks* around it, in the same task."""
    if not hooks:
        return call

    async def within(**arguments: object) -> Any:
        with _entered(hooks):
            return await call(**arguments)

    return within


def _entered(hooks: Sequence[Around]) -> ExitStack:
    """Enter *hooks* with the run that is at work here; return how to leave them."""
    run = running()
    assert run is not None
    with ExitStack() as stack:
        for hook in hooks:
            manager = hook(run)
            if not isinstance(manager, AbstractContextManager):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"The hook {hook!r} returned {manager!r}, no context manager.")
            manager.__enter__()
            stack.push(partial(_leave, manager))
        return stack.pop_all()


def _leave(
    manager: AbstractContextManager[object],
    kind: type[BaseException] | None,
    error: BaseException | None,
    stack: TracebackType | None,
) -> None:
    """Leave *manager*. It cannot swallow the error: the run would count as succeeded."""
    manager.__exit__(kind, error, stack)
