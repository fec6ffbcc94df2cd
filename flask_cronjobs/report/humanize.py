"""Durations and counts for people. Pure."""

from __future__ import annotations

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def duration(seconds: float) -> str:
    """*seconds* in at most two units: ``40 ms``, ``3.2 s``, ``3 min 20 s``, ``2 d 4 h``."""
    seconds = abs(seconds)
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{round(seconds)} s"
    return _in_units(seconds)


def _in_units(seconds: float) -> str:
    rest = round(seconds) if seconds < 3600 else round(seconds / 60) * 60
    if rest >= 86400:
        rest = round(seconds / 3600) * 3600
    for at, (size, unit) in enumerate(_UNITS):
        if rest >= size:
            whole, left = divmod(rest, int(size))
            smaller_size, smaller = (*_UNITS, (1.0, "s"))[at + 1]
            part = int(left // smaller_size)
            return f"{whole} {unit}" + (f" {part} {smaller}" if part else "")
    return f"{rest} s"


def ago(seconds: float) -> str:
    """*seconds* as a distance from now: ``12 s ago``, ``in 3 min``, ``now``."""
    if abs(seconds) < 1:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(seconds)}"


def late(seconds: float) -> str:
    """*seconds* after the due time: ``3 min late``, or ``in 3 min`` before it."""
    if abs(seconds) < 1:
        return "due now"
    return f"{duration(seconds)} late" if seconds > 0 else f"in {duration(seconds)}"


def plural(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``, ``1,000 runs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
