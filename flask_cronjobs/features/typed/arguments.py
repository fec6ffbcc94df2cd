"""The arguments of a handler: its annotations are their schema. Pure.

Without a usable annotation, plain JSON is stored and passed unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import SimpleNamespace
from typing import Any, get_type_hints

from ...core.tasks.arguments import Arguments, named_by
from ...core.tasks.payload import MAX_DEPTH, check_size
from ...errors import PayloadError
from ...text.redaction import SECRET_NAMES
from ...types import JSON
from .codecs import ANY, Codec, Misfit, at, codec_of


class TypedArguments(Arguments):
    """The arguments of a handler whose annotations are their schema.

    Annotations are looked up when first needed, since they may name types that are defined later.
    """

    def __init__(self, func: Callable[..., object]) -> None:
        super().__init__(func)
        self._globals: dict[str, Any] = getattr(named_by(func), "__globals__", {})

    def encode(
        self,
        payload: Mapping[str, object],
        limit: int = 1 << 30,
        hidden: Sequence[str] = SECRET_NAMES,
    ) -> Mapping[str, object]:
        """Return *payload* with the JSON of each value that the annotations convert."""
        if not self.schema:
            return payload
        check_size(payload, limit, "payload")
        changed: dict[str, object] = {}
        for name, value in payload.items():
            codec = codec_for(self, name)
            if type(value) is not codec.exact:
                plain = _converted(name, codec.encode, value, hidden)
                if plain is not value:
                    changed[name] = plain
        return {**payload, **changed} if changed else payload

    @cached_property
    def are_decoded(self) -> bool:
        """Whether a stored payload may differ from the arguments of the call."""
        return self.upgrade is not None or any(codec.decode for codec in self.schema.values())

    def decode(self, payload: Mapping[str, JSON], hidden: Sequence[str]) -> dict[str, object]:
        """Return the arguments of a call with a stored *payload*, converted back."""
        return {
            name: _converted(name, codec_for(self, name).decode or ANY.encode, value, hidden)
            for name, value in payload.items()
        }

    @cached_property
    def defaults(self) -> dict[str, object]:
        """The default values, as they would be stored."""
        values: dict[str, object] = {}
        for name, parameter in self.parameters.items():
            if parameter.default is not parameter.empty:
                values[name] = parameter.default
                with suppress(PayloadError):
                    values |= self.encode({name: parameter.default})
        return values

    @cached_property
    def schema(self) -> dict[str, Codec]:
        """The codec of each argument, and of other names as ``**``; empty if none converts."""
        codecs: dict[str, Codec] = {}
        for name, parameter in self.parameters.items():
            codec = ANY
            with suppress(Exception):  # The annotation may be undefined, or not a type.
                hint = self._hint(parameter)
                codec = codec_of(hint | None if parameter.default is None else hint)
            codecs["**" if parameter.kind is parameter.VAR_KEYWORD else name] = codec
        return codecs if any(codec is not ANY for codec in codecs.values()) else {}

    def _hint(self, parameter: inspect.Parameter) -> Any:
        if parameter.annotation is parameter.empty:
            return Any
        holder: Any = SimpleNamespace(__annotations__={"it": parameter.annotation})
        return get_type_hints(holder, self._globals)["it"]


def codec_for(arguments: Arguments, name: str) -> Codec:
    """Return the codec of the argument *name*."""
    codec: Codec = arguments.schema.get(name) or arguments.schema.get("**", ANY)
    return codec


def _converted(
    name: str, convert: Callable[[Any], Any], value: object, hidden: Sequence[str]
) -> Any:
    try:
        return at(name, convert, value)
    except Misfit as misfit:
        raise PayloadError(misfit.message(hidden)) from None
    except RecursionError:
        raise PayloadError(f"{name}: is nested over {MAX_DEPTH} levels deep. Flatten it.") from None
