"""Check that payloads and results are plain JSON of limited size. Pure."""

from __future__ import annotations

import inspect
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any, cast

from werkzeug.datastructures import MultiDict
from werkzeug.local import LocalProxy

from ..errors import PayloadError
from ..log import logger
from ..types import JSON

#: Makes a function that writes JSON; CPython has it. `json.dumps` makes one for each call, which
#: takes as long as to write a small payload.
_make_encoder: Any = getattr(json.encoder, "c_make_encoder", None)
_encode: Any = _make_encoder and _make_encoder(
    *(None, None, json.encoder.encode_basestring_ascii, None),
    *(": ", ", ", False, False, False),
)
_NAMES = frozenset((str,))
_PLAIN = frozenset((str, int, float, bool, type(None)))
#: How deeply a payload may be nested. PostgreSQL takes some 6,000 levels, Python's json fewer.
MAX_DEPTH = 100


def payload_text(payload: Mapping[str, object], limit: int) -> str:
    """Return *payload* as a JSON text, checked as by `check_payload`, and as ``json.dumps`` does.

    Most payloads are a dict of plain values. For those this takes a quarter of the time that the
    check takes; no function of ours is called for a value, since that takes as long as to look.

    :param limit: how many bytes it may have.
    :raises PayloadError: *payload* is not a JSON object, or too large.
    """
    kind = type(payload)
    is_plain = kind is dict and _NAMES.issuperset(map(type, payload))
    if is_plain and _PLAIN.issuperset(map(type, payload.values())):
        try:
            text = "".join(_encode(payload, 0)) if _encode else json.dumps(payload, allow_nan=False)
        except ValueError:  # NaN, or an integer of thousands of digits.
            return checked_text(payload, limit)
        # In ASCII it is as long as in UTF-8, or longer. NUL and surrogates are escapes in it, and a
        # float from 1e16 on has an exponent.
        is_odd = "\\u0000" in text or "\\ud" in text or "e+" in text
        if len(text) <= limit and not is_odd:
            return text
    return checked_text(payload, limit)


def checked_text(payload: Mapping[str, object], limit: int) -> str:
    """Return *payload* as `payload_text`, with a float of 1e16 or more as an int.

    PostgreSQL would make it one, so it is one on both.
    """
    text = json.dumps(check_payload(payload, limit))
    return json.dumps(json.loads(text, parse_float=_without_exponent)) if "e+" in text else text


def check_payload(payload: Mapping[str, object], limit: int) -> dict[str, JSON]:
    """Return *payload*, checked to be a JSON object that both databases store unchanged.

    :param limit: how many bytes it may have as JSON text. A larger one is refused without being
        read to its end.
    :raises PayloadError: it is not; the message names the key at fault.
    """
    check_keys(payload)
    # At the top any mapping is fine; inside, json accepts only a dict.
    return cast("dict[str, JSON]", check_value(dict(payload), limit, "payload"))


def check_value(value: object, limit: int, name: str) -> JSON:
    """Return *value*, checked as `check_payload` checks a whole payload.

    :param name: what messages call it, such as ``result``.
    :raises PayloadError: it is no JSON, or too large.
    """
    try:
        room = _room_left(value, limit)
    except _Fault as fault:
        raise PayloadError(f"{name}{_written(fault.path[::-1])} {fault}") from None
    if room < 0:
        raise _too_large(value, f"over {limit:,}", limit, name)
    try:
        size = len(json.dumps(value, ensure_ascii=False).encode())
    except ValueError as error:  # An integer with more digits than Python converts to text.
        raise PayloadError(
            f"The {name} cannot be written as JSON: {error}. Pass such a large number as text."
        ) from None
    if size > limit:
        raise _too_large(value, f"{size:,}", limit, name)
    return cast("JSON", value)


def _without_exponent(text: str) -> float | int:
    return int(Decimal(text)) if "e+" in text else float(text)


def check_keys(payload: Mapping[str, object]) -> None:
    """Check that *payload* is a mapping whose keys are texts.

    :raises PayloadError: it is not; the message names the key at fault.
    """
    if not isinstance(payload, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PayloadError(
            f"The payload is of type {type(payload).__name__}. Give a dict of arguments."
        )
    try:
        if advice := advice_on(payload):
            raise _Fault(advice)
        for key in payload:
            _checked_key_size(key)
    except _Fault as fault:
        raise PayloadError(f"payload {fault}") from None


class _Fault(Exception):
    """What is wrong with a value.

    :ivar path: the keys that lead to it, the last one first.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[object] = []


def _room_left(value: object, room: int, levels: int = MAX_DEPTH) -> int:
    """Return how many of *room* bytes are left beside *value*, at the most.

    As soon as it is known that there are none, the rest is not checked.

    :param levels: how deeply it may be nested.
    :raises _Fault: it is no JSON. A path is made only then: one for each member would take time
        with the square of the size.
    """
    room -= _checked_size(value)
    if not isinstance(value, (dict, list, tuple)):
        return room
    if levels <= 0:
        raise _Fault(f"is nested over {MAX_DEPTH} levels deep. Flatten it.")
    is_object = isinstance(value, dict)
    members: Any = cast("Any", value).items() if is_object else enumerate(cast("Any", value))
    for key, member in members:
        room -= _checked_key_size(key) if is_object else 1
        if room < 0:
            break
        try:
            room = _room_left(member, room, levels - 1)
        except _Fault as fault:
            fault.path.append(key)
            raise
    return room


def _checked_size(value: object) -> int:
    """Return how many bytes *value*, without its members, has as JSON at the least.

    :raises _Fault: it is no JSON.
    """
    if advice := advice_on(value):
        raise _Fault(advice)
    if isinstance(value, str):
        _check_text(value)
        return len(value) + 2
    if isinstance(value, int):
        return 1 + value.bit_length() // 4  # A decimal digit has less than 4 bits.
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Fault(f"is {value}. JSON has no such number; pass None.")
    elif value is not None and not isinstance(value, (dict, list, tuple)):
        instead = "its isoformat()" if isinstance(value, date) else "an id to look it up by"
        raise _Fault(
            f"is of type {type(value).__name__}, which JSON does not know. Pass text, a number, "
            f"or {instead}."
        )
    return 1


def advice_on(value: object) -> str | None:
    """Return why *value* is refused, if it looks plain, and is more or ends with the request."""
    kind = type(value)  # A proxy says that it is an instance of what it stands for.
    if issubclass(kind, LocalProxy):
        return (
            "is a LocalProxy, which stands for something of this request. Pass what it stands for, "
            "or an id, such as current_user.id."
        )
    if issubclass(kind, MultiDict):
        return (
            f"is of type {kind.__name__}, which may have several values for a key, as request.form "
            "does. Pass .to_dict(), or .to_dict(flat=False) for lists of values."
        )
    if hasattr(kind, "__mapper__"):
        return (
            f"is a row of the database, of type {kind.__name__}. Pass its id, and load it by that "
            "in the handler."
        )
    return None


def _checked_key_size(key: object) -> int:
    if not isinstance(key, str):
        try:
            shown = _shortened(reprlib.repr(key))
        except ValueError:  # An integer with more digits than Python converts to text.
            shown = "…"
        raise _Fault(
            f"has the key {shown}, of type {type(key).__name__}. JSON keys are text: write "
            f"{shown!r}."
        )
    try:
        _check_text(key)
    except _Fault as fault:
        raise _Fault(f"(a key) {fault}") from None
    return len(key) + 2


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _Fault(
            r"holds a NUL character, which PostgreSQL refuses. Pass text.replace('\0', ''), or "
            "base64 if it is binary data."
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Fault(
                'holds a lone surrogate, which is no text. Decode it with errors="replace".'
            ) from None


def _too_large(value: object, size: str, limit: int, name: str) -> PayloadError:
    largest = ""
    if isinstance(value, dict):
        key = _largest(cast("dict[str, JSON]", value), limit)
        largest = f"The largest key is {_shortened(repr(key))}. "
    return PayloadError(
        f"The {name} has {size} bytes; the limit is {limit:,} (CRONJOBS_MAX_PAYLOAD_BYTES). "
        f"{largest}Store the data and pass its id."
    )


def _largest(payload: Mapping[str, JSON], limit: int) -> str:
    """Return the key with the most bytes, or the first one over *limit*."""
    sizes: dict[str, int] = {}
    for key, value in payload.items():
        with suppress(_Fault):  # It lies behind the place where the check ended.
            sizes[key] = limit - _room_left({key: value}, limit)
        if sizes.get(key, 0) > limit:
            break
    return max(sizes, key=sizes.__getitem__, default="")


def _written(path: Sequence[object]) -> str:
    """Return *path* as Python writes it, shortened."""
    return _shortened("".join(f"[{_shortened(repr(key))}]" for key in path))


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:60]}…{text[-60:]}"


def kept_result(value: object, limit: int, whose: object) -> JSON:
    """Return *value* if it is JSON of at most *limit* bytes; otherwise log a warning, return None.

    :param whose: the run that returned it, for the warning.
    :raises TypeError: it is what a handler should have done, such as a coroutine.
    """
    if value is None:
        return None
    if what := close_unrun(value):
        raise TypeError(f"The handler returned {what}, of which no line was run. {_UNRUN[what]}")
    try:
        return check_value(value, limit, "result")
    except Exception:  # A result's own methods may raise. What was done is done all the same.
        logger.warning(
            "%s: the result is not JSON or too large, so it is not kept. Return plain JSON of at "
            "most CRONJOBS_MAX_PAYLOAD_BYTES, such as an id to look it up by, or None.",
            whose,
        )
        return None


_UNRUN = {
    "a coroutine": "Declare it with async def, as well as what a decorator puts in its place.",
    "a generator": "Write it without yield, or go through the generator in it.",
    "an async generator": "Write it without yield, or go through the generator in it.",
}


def close_unrun(value: object) -> str | None:
    """Close *value* and return what it is, if it is a function's body that nobody has run."""
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine"
    if inspect.isgenerator(value) and value.gi_code.co_name != "<genexpr>":  # That is a value.
        value.close()
        return "a generator"
    return "an async generator" if inspect.isasyncgen(value) else None
