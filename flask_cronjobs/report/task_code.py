"""What this app's code says about a task."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from ..registry.handler import Handler
from ..registry.options import TaskOptions
from ..registry.retry import Retry, RetryPolicy
from ..state import State
from ..text import cut
from .humanize import duration, plural

_LONGEST_TEXT = 4_000


@dataclass(frozen=True, slots=True)
class TaskCode:
    """What this app's code says about a task.

    :ivar arguments: the names of the handler's arguments, as in its signature.
    :ivar doc: the handler's docstring.
    :ivar options: the names and values of its options, as texts for people.
    """

    arguments: tuple[str, ...]
    doc: str | None
    options: tuple[tuple[str, str], ...]


def task_code(state: State, name: str) -> TaskCode | None:
    """Return what the code says about the task *name*; None if it does not declare it."""
    handler = state.registry.tasks.get(name)
    if handler is None:
        return None
    doc = inspect.getdoc(handler.func)
    return TaskCode(
        arguments=tuple(_arguments(handler)),
        doc=cut(doc, _LONGEST_TEXT) if doc else None,
        options=tuple(_options(state, handler)),
    )


def _arguments(handler: Handler) -> Iterator[str]:
    """Return the names, without the default values: these may be secrets."""
    for parameter in inspect.signature(handler.func).parameters.values():
        bare = parameter.replace(annotation=parameter.empty, default=parameter.empty)
        yield f"{bare}=…" if parameter.default is not parameter.empty else str(bare)


def _options(state: State, handler: Handler) -> Iterator[tuple[str, str]]:
    """Return the retry policy, the timeout, and all other options that are not the default."""
    yield "retry", _retry(handler.retry_policy(state.settings.max_attempts))
    yield "timeout", duration(handler.options.timeout or state.settings.timeout)
    usual = TaskOptions()._asdict()
    for name, value in handler.options._asdict().items():
        if name not in ("retry", "timeout") and value != usual[name]:
            yield name, "yes" if value is True else str(value)


def _retry(policy: RetryPolicy) -> str:
    attempts = plural(policy.max_attempts, "attempt")
    if policy.max_attempts == 1:
        return attempts
    if not isinstance(policy, Retry):
        return f"{attempts} at most, after delays that a function chooses"
    delays = f"{policy.backoff} delays from {duration(policy.base)} to {duration(policy.cap)}"
    return f"{attempts}, {delays}"
