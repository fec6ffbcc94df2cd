"""Call handlers inside the context managers that the app wants around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from ...current_run import running
from ...registry.options import Around


def around(hooks: Sequence[Around], call: Callable[..., object]) -> Callable[..., object]:
    """Return *call* with *hooks* around it, the first outermost."""
    if not hooks:
        return call

    def within(**arguments: object) -> object:
        with _entered(hooks):
            return call(**arguments)

    return within


def around_async(
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
