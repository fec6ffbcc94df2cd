"""The arguments of a handler: its annotations are their schema. Pure.

Without an annotation that can be read, plain JSON is stored and passed as it is.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias, get_type_hints

from ...core.tasks.payload import MAX_DEPTH, check_size, check_typed
from ...errors import PayloadError
from ...text.redaction import SECRET_NAMES
from ...types import JSON
from .codecs import ANY, Codec, Misfit, at, codec_of

#: From how many choices on a form has no list to choose from.
_MANY = 50


#: Takes a payload of older code, and returns one of today's.
Upgrade: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


def named_by(func: Callable[..., object]) -> Callable[..., object]:
    """Return the function whose parameters are those of the handler *func*.

    It is the outermost one that names some: a decorator may give the function inside an argument
    of its own. One of ``*args, **kwargs`` passes on what it gets.
    """
    found: Callable[..., object] = inspect.unwrap(func, stop=_names_parameters)
    return found


def signature_of(func: Callable[..., object]) -> inspect.Signature:
    """Return the signature by which the handler *func* is called."""
    return inspect.signature(named_by(func), follow_wrapped=False)


def _names_parameters(func: Callable[..., object]) -> bool:
    parameters = inspect.signature(func, follow_wrapped=False).parameters.values()
    named = [
        each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return not parameters or bool(named)


class Field(NamedTuple):
    """An argument that can be given by name, for a form.

    :ivar text: its value, as `Arguments.read` reads it; empty: not given.
    :ivar choices: all values that it may have, as such texts, if they are few.
    """

    name: str
    expected: str
    required: bool
    text: str = ""
    choices: tuple[str, ...] = ()


class Arguments:
    """How the arguments of one handler are stored and read.

    Annotations are looked up when first needed: they may name what is defined further down.

    :param func: the handler.
    :param signature: its own.
    :ivar upgrade: makes a stored payload that does not fit into one that does.
    """

    upgrade: Upgrade | None = None

    def __init__(self, func: Callable[..., object], signature: inspect.Signature) -> None:
        self._parameters = signature.parameters
        self._globals: dict[str, Any] = getattr(named_by(func), "__globals__", {})

    def forget(self) -> None:
        """Look annotations up again when next needed: not all may have been there yet."""
        for name in ("schema", "defaults"):
            self.__dict__.pop(name, None)

    def encode(
        self,
        payload: Mapping[str, object],
        limit: int = 1 << 30,
        hidden: Sequence[str] = SECRET_NAMES,
    ) -> Mapping[str, object]:
        """Return *payload* with the JSON of each value; itself if all are as they are stored.

        A value that is JSON already is checked.

        :param limit: how many bytes all may have, which is checked before any is converted.
        :param hidden: the names of values that no message may tell of, as by `redacted`.
        :raises PayloadError: a value does not fit; the message names its argument.
        """
        if not self.schema:
            return payload
        check_size(payload, limit, "payload")
        changed: dict[str, object] = {}
        for name, value in payload.items():
            codec = self._codec(name)
            if type(value) is not codec.exact:
                plain = _converted(name, codec.encode, value, hidden)
                if plain is not value:
                    changed[name] = plain
        return {**payload, **changed} if changed else payload

    @property
    def are_decoded(self) -> bool:
        """Whether a stored payload may be something else than the arguments of the call."""
        return self.upgrade is not None or any(codec.decode for codec in self.schema.values())

    def decode(self, payload: Mapping[str, JSON], hidden: Sequence[str]) -> dict[str, object]:
        """Return the arguments of a call with a stored *payload*.

        :param hidden: as of `encode`.
        :raises PayloadError: a value does not fit. The message does not show it.
        """
        return {
            name: _converted(name, self._codec(name).decode or ANY.encode, value, hidden)
            for name, value in payload.items()
        }

    @cached_property
    def defaults(self) -> dict[str, object]:
        """The default values, as they would be stored."""
        found: dict[str, object] = {}
        for name, parameter in self._parameters.items():
            if parameter.default is not parameter.empty:
                found[name] = parameter.default
                with suppress(PayloadError):
                    found |= self.encode({name: parameter.default})
        return found

    @property
    def takes_more(self) -> bool:
        """Whether arguments of any name can be given."""
        return any(each.kind is each.VAR_KEYWORD for each in self._parameters.values())

    def fields(self, payload: Mapping[str, JSON]) -> Iterator[Field]:
        """Yield the arguments that have a name, with the values of *payload*."""
        for name, parameter in self._parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            codec = self._codec(name)
            text = _written(codec, payload[name]) if name in payload else ""
            choices = tuple(_written(codec, each) for each in codec.choices)
            known = choices if len(choices) <= _MANY and text in ("", *choices) else ()
            yield Field(name, codec.expected, parameter.default is parameter.empty, text, known)

    def read(self, name: str, text: str, limit: int = 1 << 30) -> object:
        """Return the value of *text*, as somebody has typed it: as JSON, or as the text itself.

        :param limit: how many bytes it may have, which is checked before it is converted.
        :raises PayloadError: it is too large; or the argument has no annotation, and *text* is not
            JSON.
        """
        return _read(self._codec(name), text, name, limit)

    def _codec(self, name: str) -> Codec:
        return self.schema.get(name) or self.schema.get("**", ANY)

    @cached_property
    def schema(self) -> dict[str, Codec]:
        """The codecs, ``**`` for further names; empty if all is stored as it is."""
        codecs: dict[str, Codec] = {}
        for name, parameter in self._parameters.items():
            codec = ANY
            with suppress(Exception):  # It may name what is not there, or say what no type is.
                hint = self._hint(parameter)
                codec = codec_of(hint | None if parameter.default is None else hint)
            codecs["**" if parameter.kind is parameter.VAR_KEYWORD else name] = codec
        return codecs if any(codec is not ANY for codec in codecs.values()) else {}

    def _hint(self, parameter: inspect.Parameter) -> Any:
        if parameter.annotation is parameter.empty:
            return Any
        one: Any = SimpleNamespace(__annotations__={"it": parameter.annotation})
        return get_type_hints(one, self._globals)["it"]


def _converted(
    name: str, convert: Callable[[Any], Any], value: object, hidden: Sequence[str]
) -> Any:
    try:
        return at(name, convert, value)
    except Misfit as misfit:
        raise PayloadError(misfit.told(hidden)) from None
    except RecursionError:
        raise PayloadError(f"{name}: is nested over {MAX_DEPTH} levels deep. Flatten it.") from None


def _read(codec: Codec, text: str, name: str, limit: int = 1 << 30) -> object:
    check_typed(text, limit)
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        if codec is ANY:
            raise PayloadError(
                f"{name}: this is not JSON: {error}. Write a text with its quotes."
            ) from None
        return text
    check_size(value, limit, "payload")
    try:
        if type(value) not in (dict, list):  # These may still have a hidden value.
            codec.encode(value)
    except Misfit:
        return text
    return value


def _written(codec: Codec, value: JSON) -> str:
    """Return *value* as a text that `_read` reads: without quotes if it can be."""
    plain = value if codec is not ANY and isinstance(value, str) else ""
    if plain.strip() and plain.isprintable() and _read(codec, plain, "") == value:
        return plain
    return json.dumps(value, ensure_ascii=False, indent=2)
