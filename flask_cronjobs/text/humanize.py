"""Durations, ages, times and counts as text for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime, timezone, tzinfo
from typing import NamedTuple, TypeAlias

from . import pattern

#: Returns the time zone in which a command prints times. Pages keep UTC, which the browser
#: converts.
printed_zone: ContextVar[Callable[[], tzinfo]] = ContextVar(
    "printed_zone", default=lambda: timezone.utc
)

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float) -> str:
    """Return *seconds* in at most two units: ``40 ms``, ``3.2 s``, ``3 min 20 s``, ``2 d 4 h``."""
    seconds = abs(seconds)
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    remainder, parts = round(seconds), list[str]()
    # Round to the minute from an hour on, and to the hour from a day on: that leaves two units.
    for from_, step in ((3600, 60), (86400, 3600)):
        if remainder >= from_:
            remainder = round(seconds / step) * step
    for size, unit in _UNITS:
        number, remainder = divmod(remainder, size)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts)


def capitalized(text: str) -> str:
    """Return *text* with its first letter capitalized, and the rest unchanged."""
    return text[:1].upper() + text[1:]


def roughly(seconds: float) -> str:
    """Return *seconds* roughly: ``14 s``, ``22 min``, ``3 h 12 min``, ``13 h``, ``12 d``."""
    whole = int(abs(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 36000:
        return duration(whole)
    return f"{whole // 3600} h" if whole < 86400 else f"{whole // 86400} d"


def ago(seconds: float) -> str:
    """Return *seconds* as a distance from now: ``12 s ago``, ``in 3 min``, ``just now``."""
    return _distance(seconds, "just now", "ago")


def late(seconds: float) -> str:
    """Return *seconds* after the due time: ``3 min late``, ``in 3 min``, ``due now``."""
    return _distance(seconds, "due now", "late")


def _distance(seconds: float, now: str, past: str) -> str:
    if abs(seconds) < 1:
        return now
    return f"{roughly(seconds)} {past}" if seconds > 0 else f"in {roughly(seconds)}"


def seconds_since(moment: datetime, now: datetime) -> float:
    """Return the seconds since *moment*; negative if it is in the future."""
    return (now - moment).total_seconds()


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from *start* to *end*, at least 0; None if one of them is None."""
    if start is None or end is None:
        return None
    return max(0.0, seconds_since(start, end))


def since(moment: datetime | None, now: datetime) -> str:
    """Return *moment* as a distance from now, such as ``3 min ago``; empty for None."""
    return "" if moment is None else ago(seconds_since(moment, now))


def full(moment: datetime) -> str:
    """Return *moment* in `printed_zone`, to the second: ``2026-11-20 06:00:00 UTC``."""
    return f"{in_zone(moment, printed_zone.get()()):%Y-%m-%d %H:%M:%S %Z}"


def minute(moment: datetime) -> str:
    """Return *moment* in `printed_zone`, to the minute: ``2026-11-20 06:00 UTC``."""
    return f"{in_zone(moment, printed_zone.get()()):%Y-%m-%d %H:%M %Z}"


def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """Return *moment* in *zone*, or in UTC if there it is outside the years 1 to 9999."""
    try:
        return moment.astimezone(zone)
    except OverflowError:
        return moment.astimezone(timezone.utc)


def plural(count: int, noun: str) -> str:
    """Return ``1 run``, ``2 runs``, ``1,000 runs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


#: An endpoint, and the values of its URL.
Link: TypeAlias = "tuple[str, Mapping[str, object]]"


class Fact(NamedTuple):
    """A labelled value of a run or a batch, for pages and commands.

    :ivar note: words about the value; a time is shown as its distance from now.
    :ivar link: the page of the thing that the value names.
    """

    label: str
    value: str | int | datetime | None
    note: str | datetime | None = None
    link: Link | None = None

    @property
    def is_time(self) -> bool:
        """Whether the value is a time; a row of SQLite may hold anything."""
        return isinstance(self.value, datetime)

    @property
    def text(self) -> str:
        """The value as a text."""
        if isinstance(self.value, datetime):
            return full(self.value)
        return f"{self.value:,}" if isinstance(self.value, int) else str(self.value)


def known(*facts: Fact) -> list[Fact]:
    """Return those of *facts* that have a value."""
    return [fact for fact in facts if fact.value or fact.value == 0]


#: The longest age in seconds, ten years. Longer ages are cut to it.
MAX_AGE_SECONDS = 3660 * 86400.0

_AGE_UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}
_PRINTED_UNITS = ("d", "h", "m")
_AGE = pattern(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(s|min|m|h|d|w)?")


def parse_age(text: str, unit: str | None = None) -> float | None:
    """Parse an age.

    :param unit: the unit of a bare number; None to refuse bare numbers.
    :returns: seconds, to the microsecond; None if *text* is not an age.
    """
    match = _AGE().fullmatch(text.strip().lower())
    chosen_unit = match and (match[2] or unit)
    if not match or not chosen_unit:
        return None
    return min(round(float(match[1]) * _AGE_UNITS[chosen_unit], 6), MAX_AGE_SECONDS)


def parse_time(text: str) -> datetime | None:
    """Parse an ISO 8601 time, which may end in Z for UTC; return None if *text* is not one."""
    try:
        return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text.strip()))
    except ValueError:
        return None


def print_age(seconds: float) -> str:
    """Print an age in the largest unit that needs no fraction; `parse_age` reads it back."""
    for unit in _PRINTED_UNITS:
        number, remainder = divmod(seconds, _AGE_UNITS[unit])
        if number and not remainder:
            return f"{number:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"
