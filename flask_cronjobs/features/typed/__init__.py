"""Typed arguments: store and read the values that the annotations of handlers describe."""

from __future__ import annotations

from collections.abc import Callable

from ...core.tasks.arguments import Arguments


def arguments_of(func: Callable[..., object]) -> Arguments:
    """Return how the arguments of the handler *func* are stored and read."""
    arguments = Arguments(func)
    if all(parameter.annotation is parameter.empty for parameter in arguments.parameters.values()):
        return arguments
    from .arguments import TypedArguments

    return TypedArguments(func)
