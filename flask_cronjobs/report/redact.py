"""Payloads and results made fit to be shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import JSON

HIDDEN = "***"
#: How deep a value is shown; what lies deeper reads "…".
DEPTH = 32


def redacted(value: JSON, names: Sequence[str], depth: int = DEPTH) -> JSON:
    """*value* with what stands under a key that contains one of *names* replaced by ``***``.

    :param names: parts of keys, in lower case.
    """
    if isinstance(value, (dict, list)) and depth <= 0:
        return "…"
    if isinstance(value, dict):
        return {key: _member(key, member, names, depth) for key, member in value.items()}
    if isinstance(value, list):
        return [redacted(member, names, depth - 1) for member in value]
    return value


def _member(key: str, value: JSON, names: Sequence[str], depth: int) -> JSON:
    lower = key.lower()
    if any(name in lower for name in names):
        return HIDDEN
    return redacted(value, names, depth - 1)
