"""Make handlers ready to be called for runs, inside of what the app wants around them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from flask import Flask

from ...jobs.runs.current import running
from ...jobs.state import State
from ...registry.options import Around
from .output import is_kept


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
            call = _around_async(hooks, task.func)
        else:
            call = _around(hooks, _synchronous(self._state.app, task.func))
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
