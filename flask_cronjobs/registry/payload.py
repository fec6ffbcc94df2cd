"""Check that payloads and results are plain JSON of limited size. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import cast

from ..errors import PayloadError
from ..log import logger
from ..types import JSON

#: How deeply a payload may be nested. PostgreSQL takes some 6,000 levels, Python's json fewer.
MAX_DEPTH = 100


def check_payload(payload: Mapping[str, object], limit: int) -> dict[str, JSON]:
    """Return *payload*, checked to be a JSON object that both databases store unchanged.

    :param limit: how many bytes it may have as JSON text.
    :raises PayloadError: it is not; the message names the key at fault.
    """
    check_keys(payload)
    # At the top any mapping is fine; inside, json accepts only a dict.
    plain = cast("dict[str, JSON]", dict(payload))
    _check(plain, "", 0)
    try:
        size = len(json.dumps(plain, ensure_ascii=False).encode())
    except ValueError as error:  # An integer with more digits than Python converts to text.
        raise PayloadError(
            f"The payload cannot be written as JSON: {error}. Pass such a large number as text."
        ) from None
    if size > limit:
        raise PayloadError(
            f"The payload has {size:,} bytes; the limit is {limit:,} (CRONJOBS_MAX_PAYLOAD_BYTES). "
            f"The largest key is {_largest(plain)!r}. Store the data and pass its id."
        )
    return plain


def check_keys(payload: Mapping[str, object]) -> None:
    """Check that *payload* is a mapping whose keys are texts.

    :raises PayloadError: it is not; the message names the key at fault.
    """
    if not isinstance(payload, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PayloadError(f"The payload is a {type(payload).__name__}. Give a dict of arguments.")
    for key in payload:
        _check_key(key, "")


def _check(value: object, path: str, depth: int) -> None:
    if value is None or isinstance(value, (bool, int)):
        return
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadError(f"payload{path} is {value}. JSON has no such number; pass None.")
    elif depth >= MAX_DEPTH and isinstance(value, (dict, list, tuple)):
        raise PayloadError(
            f"payload{_short(path)} is nested over {MAX_DEPTH} levels deep. Flatten it."
        )
    elif isinstance(value, dict):
        for key, member in cast("dict[object, object]", value).items():
            _check_key(key, path)
            _check(member, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(cast("Sequence[object]", value)):
            _check(member, f"{path}[{index}]", depth + 1)
    else:
        instead = "its isoformat()" if isinstance(value, date) else "an id to look it up by"
        raise PayloadError(
            f"payload{_short(path)} is of type {type(value).__name__}, which JSON does not know. "
            f"Pass text, a number, or {instead}."
        )


def _check_key(key: object, path: str) -> None:
    if not isinstance(key, str):
        raise PayloadError(
            f"payload{_short(path)} has the key {key!r}, of type {type(key).__name__}. JSON "
            f"keys are text: write {str(key)!r}."
        )
    _check_text(key, f"{path} (a key)")


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise PayloadError(
            f"payload{_short(path)} holds a NUL character, which PostgreSQL refuses. Pass "
            r"text.replace('\0', ''), or base64 if it is binary data."
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PayloadError(
                f"payload{_short(path)} holds a lone surrogate, which is no text. Decode it with "
                'errors="replace".'
            ) from None


def _largest(payload: Mapping[str, JSON]) -> str:
    return max(payload, key=lambda key: len(json.dumps(payload[key], ensure_ascii=False)))


def _short(path: str) -> str:
    return path if len(path) <= 120 else f"{path[:60]}…{path[-60:]}"


def kept_result(value: object, limit: int, whose: str) -> JSON:
    """Return *value* if it is JSON of at most *limit* bytes; otherwise log a warning, return None.

    :param whose: the run that returned it, for the warning.
    """
    if value is None:
        return None
    try:
        return check_payload({"result": value}, limit)["result"]
    except PayloadError:
        logger.warning("%s: the result is not JSON or too large, so it is not kept", whose)
        return None
