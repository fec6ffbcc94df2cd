"""The limit on starts that ``rate=`` and ``burst=`` declare, and the rule that it follows.

`features.rates` stores the state of each key, and lets runs begin.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from ...text import pattern

_RATE_UNITS = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86400}
_RATE = pattern(rf"([1-9]\d{{0,5}})/([1-9]\d{{0,3}})?({'|'.join(_RATE_UNITS)})")
#: The shortest time between two attempts: the databases count microseconds.
_INSTANT = timedelta(microseconds=1)
#: The longest `Rate.rest`, so that dates stay within Python's range.
MOST_REST = timedelta(days=3653)
#: Matches a text with the three parts of a rate, valid or not.
_LIKE_A_RATE = pattern(r"\s*([^/\s]+)\s*/\s*(\d*)\s*([^\W\d]+)\s*")


class Rate(NamedTuple):
    """A limit on how often a key's attempts begin, by GCRA, the generic cell rate algorithm.

    Each attempt takes a start. A key has one value, its theoretical arrival time ``tat``: the time
    of the next start if all starts were evenly spaced. An attempt may begin earlier as far as
    *burst* allows.

    :ivar period: the time from one start to the next.
    :ivar burst: the number of attempts that may begin at once after a time without attempts.
    """

    period: timedelta
    burst: int = 1

    def converted(
        self, tat: datetime | None, period: float | None, last: datetime | None
    ) -> datetime | None:
        """Return *tat*, set by attempts at a rate with another *period*, converted to this rate.

        The time from the *last* start to *tat* keeps its number of periods.
        """
        if tat is None or period is None:
            return None
        old_period = timedelta(seconds=period)
        if old_period == self.period or not old_period:
            return tat
        last = tat - old_period if last is None else last
        try:
            return last + (tat - last) * (self.period / old_period)
        except OverflowError:  # The row was written by hand.
            return tat

    def start(self, tat: datetime | None, at: datetime) -> datetime | None:
        """Return the ``tat`` after an attempt that begins *at*; None if it may not begin then."""
        base = at if tat is None else max(tat, at)
        return base + self.period if self.opens(base) <= at else None

    @property
    def rest(self) -> timedelta:
        """The time after which a whole burst may begin again."""
        return self.period * self.burst

    @property
    def ahead(self) -> timedelta:
        """How much earlier than ``tat`` an attempt may begin."""
        return self.period * (self.burst - 1)

    def opens(self, tat: datetime) -> datetime:
        """Return the time at which an attempt may begin, given *tat*."""
        return tat - self.ahead

    def free(self, tat: datetime | None, at: datetime) -> int:
        """Return the number of attempts that may begin at the time *at*."""
        ahead = timedelta() if tat is None else max(tat - at, timedelta())
        return max(0, (self.rest - ahead) // self.period)


#: The rate of all tasks in apps' tests, where a run waits only if an earlier attempt has asked that
#: its rate key be held back.
UNLIMITED = Rate(_INSTANT, 10_000)


def read_rate(text: str, burst: int | None = None) -> Rate:
    """Parse a rate such as ``100/minute`` or ``20/10s``.

    :raises ValueError: *text* is not a rate.
    """
    match = _RATE().fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a rate")
    number, times, unit = match.groups()
    # Round up, so that the limit is never exceeded.
    microseconds = -(-int(times or 1) * _RATE_UNITS[unit] * 1_000_000 // int(number))
    return Rate(timedelta(microseconds=microseconds), burst or 1)


def is_rate(value: object) -> bool:
    """Return whether *value* is a rate, such as ``100/minute`` or ``20/10s``."""
    return isinstance(value, str) and _RATE().fullmatch(value) is not None


def fault_of_rate(value: object) -> str:
    """Return a sentence on what is wrong with a rate; empty if it does not look like one."""
    match = _LIKE_A_RATE().fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return ""
    number, times, unit = match.groups()
    if unit not in _RATE_UNITS:
        return f" {unit!r} is not a unit. The units are: {', '.join(_RATE_UNITS)}."
    if not number.isdecimal():
        return f" {number!r} is not a whole number. Give a longer time, such as '3/2s' for 1.5/s."
    if not 1 <= int(number[:20]) < 1_000_000:
        return " The number must be from 1 to 999,999."
    if times and not 1 <= int(times[:20]) < 10_000:
        return " The time must be from 1 to 9,999 units."
    return " Write it without spaces or leading zeros."
