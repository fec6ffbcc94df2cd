"""Which errors are the same: by task, type and message, with what differs taken out. Pure."""

from __future__ import annotations

import hashlib
import re
from functools import cache

#: How many characters of the first line of a message count.
_HEAD = 300


@cache
def _varying() -> re.Pattern[str]:
    """Return the pattern of what differs from one error to the next: most processes need none."""
    return re.compile(
        r"""(?x)
        '[^']{0,200}' | "[^"]{0,200}" | `[^`]{0,200}`  # Quoted.
        | \b [0-9a-fA-F]{8} (?: -[0-9a-fA-F]{4} ){3} -[0-9a-fA-F]{12} \b  # A UUID.
        | 0[xX][0-9a-fA-F]+
        | \b (?=[0-9a-fA-F]*[0-9]) [0-9a-fA-F]{6,} \b  # Hex: a digest, an id.
        | [0-9]+ (?: [.,:][0-9]+ )*"""
    )


def pattern_of(error: str | None) -> str:
    """Return the first line of the message *error*, with ``…`` for numbers, hex and what is quoted.

    Errors with the same pattern, task and type are of one group.
    """
    head = (error or "").strip().partition("\n")[0][:_HEAD]
    return " ".join(_varying().sub("…", head).split())


def fingerprint(task: str, error_type: str | None, error: str | None) -> str:
    """Return the fingerprint of an error: 16 hex digits."""
    said = "\0".join((task, error_type or "", pattern_of(error)))
    return hashlib.blake2b(said.encode(errors="replace"), digest_size=8).hexdigest()
