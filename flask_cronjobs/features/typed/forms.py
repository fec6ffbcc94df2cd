"""A form for arguments: a field for each argument, and the text that was typed into it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...core.tasks.arguments import Arguments
from ...core.tasks.payload import check_size, check_typed_text
from ...errors import PayloadError
from ...types import JSON
from .arguments import codec_for
from .codecs import ANY, Codec, Misfit

#: The maximum number of choices that a form shows as a list.
_MAX_CHOICES = 50


class Field(NamedTuple):
    """An argument that can be given by name.

    :ivar text: its value, as `read` reads it; empty if it is not given.
    :ivar choices: all values that it may have, as texts that `read` reads, if they are few.
    """

    name: str
    expected: str
    required: bool
    text: str = ""
    choices: tuple[str, ...] = ()


def fields(arguments: Arguments, payload: Mapping[str, JSON]) -> Iterator[Field]:
    """Yield the arguments that have a name, with the values of *payload*."""
    for name, parameter in arguments.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        codec = codec_for(arguments, name)
        text = _written(codec, payload[name]) if name in payload else ""
        choices = tuple(_written(codec, choice) for choice in codec.choices)
        offered = choices if len(choices) <= _MAX_CHOICES and text in ("", *choices) else ()
        yield Field(name, codec.expected, parameter.default is parameter.empty, text, offered)


def read(arguments: Arguments, name: str, text: str, limit: int = 1 << 30) -> object:
    """Return the value of the typed *text*, read as JSON or taken as it is.

    :param limit: the most bytes of *text*, checked before the conversion.
    :raises PayloadError: *text* is too large, or the argument has no annotation and *text* is not
        JSON.
    """
    return _read(codec_for(arguments, name), text, name, limit)


def _read(codec: Codec, text: str, name: str, limit: int = 1 << 30) -> object:
    check_typed_text(text, limit)
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        if codec is ANY:
            raise PayloadError(
                f"{name}: this is not JSON: {error}. Put strings in quotes."
            ) from None
        return text
    check_size(value, limit, "payload")
    try:
        if type(value) not in (dict, list):  # If these do not fit, a later error names the key.
            codec.encode(value)
    except Misfit:
        return text
    return value


def _written(codec: Codec, value: JSON) -> str:
    """Return *value* as a text that `_read` reads, without quotes if possible."""
    plain = value if codec is not ANY and isinstance(value, str) else ""
    if plain.strip() and plain.isprintable() and _read(codec, plain, "") == value:
        return plain
    return json.dumps(value, ensure_ascii=False, indent=2)
