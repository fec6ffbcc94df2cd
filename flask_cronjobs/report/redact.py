"""Hide secrets in payloads and results. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..text import SECRET_WORDS, strip_credentials
from ..types import JSON

HIDDEN = "***"
#: How many levels of a value are shown; deeper ones are "…".
DEPTH = 32
_WORD = re.compile(rf"(?i:(?<![a-z])(?:{SECRET_WORDS})(?![a-z]))|(?<=[a-z])(?:Pass|Auth)(?![a-z])")
_BETWEEN_WORDS = str.maketrans("", "", "-_ ")


def redacted(value: JSON, names: Sequence[str]) -> JSON:
    """Return *value* with ``***`` under each key that contains one of *names*.

    Also hides the ``value`` of ``{"name": "password", "value": …}``, the second of
    ``["password", …]``, and what looks like a credential in a text.

    :param names: parts of keys; case, ``-``, ``_`` and spaces do not matter.
    """
    return _shown(value, [_plain(name) for name in names], DEPTH)


def _shown(value: JSON, names: Sequence[str], depth: int) -> JSON:
    if isinstance(value, str):
        return strip_credentials(value)
    if not isinstance(value, (dict, list)):
        return value
    if depth <= 0:
        return "…"
    if isinstance(value, list):
        if len(value) == 2 and _is_secret(value[0], names):
            return [value[0], HIDDEN]
        return [_shown(member, names, depth - 1) for member in value]
    labels = [member for key, member in value.items() if _plain(str(key)) in ("name", "key")]
    hidden = [*names, "value"] if any(_is_secret(label, names) for label in labels) else names
    return {
        key: HIDDEN if _is_secret(key, hidden) else _shown(member, names, depth - 1)
        for key, member in value.items()
    }


def _is_secret(name: JSON, names: Sequence[str]) -> bool:
    if not isinstance(name, str):
        return False
    plain = _plain(name)
    return any(part in plain for part in names) or bool(_WORD.search(name))


def _plain(name: str) -> str:
    return name.lower().translate(_BETWEEN_WORDS)
