"""The arguments of a handler: its signature, and how they are stored and read. Pure.

Here, plain JSON is stored and passed as it is; `features.typed` reads annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from ...text.redaction import SECRET_NAMES
from ...types import JSON

#: Takes a payload of older code, and returns one of today's.
Upgrade: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


def named_by(func: Callable[..., object]) -> Callable[..., object]:
    """Return the function whose parameters a call of the handler *func* must fit.

    This is the first function that names parameters, beginning with *func* and continuing with the
    functions that its decorators wrap. A function that names parameters may pass on other
    arguments; one that takes only ``*args, **kwargs`` passes on what it gets.
    """
    inner: Callable[..., object] = inspect.unwrap(func, stop=_names_parameters)
    return inner


def signature_of(func: Callable[..., object]) -> inspect.Signature:
    """Return the signature that a call of the handler *func* must fit."""
    return inspect.signature(named_by(func), follow_wrapped=False)


def _names_parameters(func: Callable[..., object]) -> bool:
    parameters = inspect.signature(func, follow_wrapped=False).parameters.values()
    by_name = [
        parameter
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return not parameters or bool(by_name)


class Arguments:
    """How the arguments of one handler are stored and read: as they are.

    :param func: the handler.
    :ivar upgrade: turns a stored payload that does not fit into one that does.
    """

    upgrade: Upgrade | None = None

    def __init__(self, func: Callable[..., object]) -> None:
        self.signature: inspect.Signature = signature_of(func)
        self.parameters: Mapping[str, inspect.Parameter] = self.signature.parameters

    @property
    def takes_more(self) -> bool:
        """Whether arguments of any name can be given."""
        return any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values()
        )

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """How values are converted, by the names of arguments; empty if all are stored as is."""
        return {}

    def forget(self) -> None:
        """Look annotations up again when next needed, since some names may not have existed yet."""
        for name in ("schema", "defaults", "are_decoded"):
            self.__dict__.pop(name, None)

    def encode(
        self,
        payload: Mapping[str, object],
        limit: int = 1 << 30,
        hidden: Sequence[str] = SECRET_NAMES,
    ) -> Mapping[str, object]:
        """Return *payload* with each value as JSON; the same object if no value needs conversion.

        A value that is already JSON is checked against its annotation.

        :param limit: the most bytes that all values together may have. It is checked before any
            value is converted.
        :param hidden: the names of values that no message may contain, as for `redacted`.
        :raises PayloadError: a value does not fit; the message names its argument.
        """
        return payload

    @cached_property
    def are_decoded(self) -> bool:
        """Whether a stored payload may differ from the arguments of the call."""
        return self.upgrade is not None

    def decode(self, payload: Mapping[str, JSON], hidden: Sequence[str]) -> dict[str, object]:
        """Return the arguments of the call that a stored *payload* stands for.

        :param hidden: the same as for `encode`.
        :raises PayloadError: a value does not fit. The message does not show it.
        """
        return dict(payload)

    @cached_property
    def defaults(self) -> dict[str, object]:
        """The default values, as they would be stored."""
        parameters = self.parameters.items()
        return {
            name: parameter.default
            for name, parameter in parameters
            if parameter.default is not parameter.empty
        }
