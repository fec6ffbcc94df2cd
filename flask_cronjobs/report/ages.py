"""Ages of runs as text, such as ``90s``, ``2h`` and ``12d``: parse and print them. Pure."""

from __future__ import annotations

import re

#: The longest age, in seconds: ten years. Longer ones are cut to it.
MAX_AGE = 3660 * 86400.0

_UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}
_PRINTED = ("d", "h", "m")
_AGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(s|min|m|h|d|w)?")


def parse_age(text: str, unit: str | None = None) -> float | None:
    """Parse an age.

    :param unit: the unit of a number without one; None: such a number is no age.
    :returns: seconds, to the microsecond; None if *text* is no age.
    """
    found = _AGE.fullmatch(text.strip().lower())
    given = found and (found[2] or unit)
    if not found or not given:
        return None
    return min(round(float(found[1]) * _UNITS[given], 6), MAX_AGE)


def print_age(seconds: float) -> str:
    """Print an age in the largest unit that needs no fraction; `parse_age` reads it back."""
    for unit in _PRINTED:
        number, rest = divmod(seconds, _UNITS[unit])
        if number and not rest:
            return f"{number:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"
