"""Check that payloads and results are plain JSON of limited size. Pure."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, cast

from werkzeug.datastructures import MultiDict
from werkzeug.local import LocalProxy

from ...config import Settings
from ...errors import PayloadError
from ...log import logger
from ...text.redaction import SECRET_NAMES, shown_path
from ...types import JSON

#: CPython's encoder, made once, since `json.dumps` makes one for each call of this kind.
_make_encoder: Any = getattr(json.encoder, "c_make_encoder", None)
_parts: Any = _make_encoder and _make_encoder(
    *(None, None, json.encoder.encode_basestring_ascii, None),
    *(": ", ", ", False, False, False),
)
_NAMES = frozenset((str,))
_PLAIN = frozenset((str, int, float, bool, type(None)))
#: The most levels of a payload. PostgreSQL accepts some 6,000 levels, and Python's json fewer.
MAX_DEPTH = 100


def payload_text(
    payload: Mapping[str, object], limit: int, hidden: Sequence[str] = SECRET_NAMES
) -> str:
    """Return *payload* as JSON text, checked to be an object that both databases store unchanged.

    A float of 1e16 or more is written as an int, since PostgreSQL would make it one.

    :param limit: how many bytes the text may have.
    :param hidden: the names of values that no message may contain, as for `redacted`.
    :raises PayloadError: *payload* is not a JSON object, or is too large; the message names the
        key.
    """
    # Most payloads are a dict of plain values, for which the encoder is all that needs to run.
    kind, is_plain = type(payload), False
    if kind is dict and _NAMES.issuperset(map(type, payload)):
        is_plain = _PLAIN.issuperset(map(type, payload.values()))
    if not is_plain:
        check_keys(payload)
        payload = dict(payload)  # Any mapping is fine, but json accepts only a dict.
    text = _checked_text(payload, limit, "payload", hidden, is_plain)
    return json.dumps(json.loads(text, parse_float=_without_exponent)) if "e+" in text else text


def check_value(value: object, settings: Settings, name: str) -> JSON:
    """Return *value*, checked as `payload_text` checks a payload.

    :param name: what messages call the value, such as ``result``.
    :raises PayloadError: *value* is not JSON, or is too large.
    """
    _checked_text(value, settings.max_payload_bytes, name, settings.redact)
    return cast("JSON", value)


def check_keys(payload: Mapping[str, object]) -> None:
    """Check that *payload* is a mapping whose keys are texts.

    :raises PayloadError: it is not; the message names the key at fault.
    """
    if not isinstance(payload, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PayloadError(
            f"The payload is of type {type(payload).__name__}. Give a dict of arguments."
        )
    if reason := refusal(payload) or next(filter(None, map(_key_fault, payload)), None):
        raise PayloadError(f"payload {reason}")


def check_size(value: object, limit: int, name: str) -> None:
    """Check that *value* is not much larger than *limit* bytes, without reading more than that.

    :raises PayloadError: *value* is too large.
    """
    room, remaining = limit, [value]
    while remaining:
        member = remaining.pop()
        kind = type(member)  # A proxy says that it is an instance of what it stands for.
        members: Any = ()
        if issubclass(kind, dict):
            members = [*cast("Any", member), *cast("Any", member).values()]
        elif issubclass(kind, (list, tuple, set, frozenset)):
            members = member
        elif names := getattr(kind, "__dataclass_fields__", None) or _pydantic_fields(kind):
            members = [getattr(member, name, None) for name in names]
        is_text = issubclass(kind, (str, bytes, bytearray))
        room -= len(cast("Any", member)) if is_text else len(members) + 1
        if room < 0:
            raise _too_large(name, limit)
        remaining.extend(members)


def check_typed_text(text: str, limit: int) -> None:
    """Check that *text*, which a person typed, is not far too long for JSON of *limit* bytes.

    :raises PayloadError: *text* is too long.
    """
    if len(text) > limit * 8:  # This leaves room for spaces and escapes.
        raise _too_large("payload", limit)


def _pydantic_fields(kind: Any) -> Iterable[str]:
    return getattr(kind, "__pydantic_fields__", None) or ()


def _checked_text(
    value: object, limit: int, name: str, hidden: Sequence[str], is_plain: bool = False
) -> str:
    """Return *value* as JSON text of at most *limit* bytes.

    :param is_plain: whether *value* is a dict of texts, numbers, booleans and None.
    """
    if not is_plain:
        check_size(value, limit, name)
        _check(value, name, hidden)
    try:
        text = "".join(_parts(value, 0)) if _parts else json.dumps(value, allow_nan=False)
    except ValueError as error:  # It has NaN, or an integer with too many digits for Python.
        _check(value, name, hidden)
        raise PayloadError(
            f"The {name} cannot be written as JSON: {error}. Pass such a large number as text."
        ) from None
    # These are escapes of NUL and surrogates, unless their backslash is itself escaped.
    if "\\u0000" in text or "\\ud" in text:
        _check(value, name, hidden)
    # The ASCII text is at least as long as the UTF-8 text.
    if len(text) > limit < len(json.dumps(value, ensure_ascii=False).encode()):
        raise _too_large(name, limit)
    return text


def _without_exponent(text: str) -> float | int:
    return int(Decimal(text)) if "e+" in text else float(text)


def _check(value: object, name: str, hidden: Sequence[str]) -> None:
    """Check that *value* is JSON.

    :raises PayloadError: it is not. The message names the place, shortened.
    """
    path: list[object] = []
    if reason := _fault(value, path):
        raise PayloadError(f"{shown_path((name, *reversed(path)), hidden)} {reason}")


def _fault(value: object, path: list[object], levels: int = MAX_DEPTH) -> str | None:
    """Return why *value* is not JSON, or None if it is.

    :param path: receives the keys that lead to the place, the last one first. Building a path for
        each member would take quadratic time.
    """
    if reason := refusal(value) or _own_fault(value):
        return reason
    if not isinstance(value, (dict, list, tuple)):
        return None
    if levels <= 0:
        return f"is nested over {MAX_DEPTH} levels deep. Flatten it."
    is_object = isinstance(value, dict)
    members: Any = cast("Any", value).items() if is_object else enumerate(cast("Any", value))
    for key, member in members:
        if is_object and (reason := _key_fault(key)):
            return reason
        if reason := _fault(member, path, levels - 1):
            path.append(key)
            return reason
    return None


def _own_fault(value: object) -> str | None:
    """Return why *value* itself, regardless of its members, is not JSON, or None if it is."""
    if isinstance(value, str):
        return _text_fault(value)
    if isinstance(value, float):
        is_number = math.isfinite(value)
        return None if is_number else f"is {value}. JSON has no such number; pass None."
    if value is None or isinstance(value, (int, dict, list, tuple)):
        return None
    instead = "its isoformat()" if isinstance(value, date) else "an id to look it up by"
    return (
        f"is of type {type(value).__name__}, which JSON cannot hold. Pass text, a number, "
        f"or {instead}."
    )


def refusal(value: object) -> str | None:
    """Return why *value* is refused if it is a proxy, a `MultiDict` or a row; otherwise None."""
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
            f"is a row of the database, of type {kind.__name__}. Pass its id, and load the row "
            "in the handler."
        )
    return None


def _key_fault(key: object) -> str | None:
    if isinstance(key, str):
        reason = _text_fault(key)
        return reason and f"(a key) {reason}"
    return f"has a key of type {type(key).__name__}. JSON keys are text: write it in quotes."


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return (
            r"holds a NUL character, which PostgreSQL refuses. Pass text.replace('\0', ''), or "
            "base64 if it is binary data."
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        return 'holds a lone surrogate, which is not valid text. Decode it with errors="replace".'
    return None


def _too_large(name: str, limit: int) -> PayloadError:
    return PayloadError(
        f"The {name} is larger than {limit:,} bytes, the limit of CRONJOBS_MAX_PAYLOAD_BYTES. "
        "Store the data elsewhere and pass its id."
    )


def kept_result(value: object, settings: Settings, whose: object) -> JSON:
    """Return *value* if it is JSON and not too large; otherwise log a warning and return None.

    :param whose: the run that returned it, for the warning.
    :raises TypeError: *value* is a coroutine or generator, so the handler has not run.
    """
    if unrun_kind := close_unrun(value):
        raise TypeError(
            f"The handler returned {unrun_kind}, so none of its lines ran. {_UNRUN[unrun_kind]}"
        )
    try:
        return check_value(value, settings, "result")
    except Exception as error:  # The result's own methods may raise, but the work is done.
        # Only our own message is repeated, since it contains the key but no value.
        why = f" {error}" if isinstance(error, PayloadError) else ""
        logger.warning(
            "%s: the result is not JSON, or is too large, so it is not kept.%s Return plain JSON "
            "of at most CRONJOBS_MAX_PAYLOAD_BYTES, such as an id to look it up by, or None.",
            whose,
            why,
        )
        return None


_UNRUN = {
    "a coroutine": "Declare it with async def, and the function that its decorator returns, too.",
    "a generator": "Write it without yield, or loop over the generator in it.",
    "an async generator": "Write it without yield, or loop over the generator in it.",
}


def close_unrun(value: object) -> str | None:
    """Close *value* and return its kind if it is a coroutine or generator that has not run."""
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine"
    # A generator expression is a value.
    if inspect.isgenerator(value) and value.gi_code.co_name != "<genexpr>":
        value.close()
        return "a generator"
    return "an async generator" if inspect.isasyncgen(value) else None
