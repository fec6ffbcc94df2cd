"""The rate of a task: how many attempts of a key may begin in which time. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import NamedTuple

_UNITS = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86400}
_TEXT = re.compile(rf"([1-9]\d{{0,5}})/([1-9]\d{{0,3}})?({'|'.join(_UNITS)})")
#: The shortest time between two attempts: the databases count microseconds.
_MOMENT = timedelta(microseconds=1)
#: The longest `Rate.rest`: no date may be beyond what Python knows.
MOST_REST = timedelta(days=3653)


class Rate(NamedTuple):
    """At most so many attempts of a key, by GCRA, the generic cell rate algorithm.

    Each attempt takes a slot. A key has one number, its theoretical arrival time ``tat``: when the
    next slot would come if each came at its time. An attempt may begin earlier by as much as
    *burst* allows.

    :ivar period: from one slot to the next.
    :ivar burst: how many may begin at once after a rest.
    """

    period: timedelta
    burst: int = 1

    def own(self, tat: datetime | None, period: float | None) -> datetime | None:
        """Return *tat* as it would be if the last attempt, of that *period*, had had this rate."""
        if tat is None or period is None:
            return None
        return tat + (self.period - timedelta(seconds=period))

    def slot(self, tat: datetime | None, at: datetime) -> datetime | None:
        """Return the ``tat`` after an attempt that begins *at*; None if it may not begin then."""
        base = at if tat is None else max(tat, at)
        return base + self.period if self.opens(base) <= at else None

    @property
    def rest(self) -> timedelta:
        """After how long a whole burst may begin again."""
        return self.period * self.burst

    @property
    def ahead(self) -> timedelta:
        """How much earlier than at its ``tat`` an attempt may begin."""
        return self.period * (self.burst - 1)

    def opens(self, tat: datetime) -> datetime:
        """Return when an attempt may begin, by *tat*."""
        return tat - self.ahead

    def free(self, tat: datetime | None, at: datetime) -> int:
        """Return how many attempts may begin *at* that time."""
        ahead = timedelta() if tat is None else max(tat - at, timedelta())
        return max(0, (self.rest - ahead) // self.period)


#: For tests of apps: only a key that is held back keeps its runs waiting.
UNLIMITED = Rate(_MOMENT, 10_000)


def read_rate(text: str, burst: int | None = None) -> Rate:
    """Return the rate that *text* says, such as ``100/minute`` or ``20/10s``.

    :raises ValueError: it says none.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no rate")
    number, times, unit = found.groups()
    # Rounded up, so that there are never more.
    microseconds = -(-int(times or 1) * _UNITS[unit] * 1_000_000 // int(number))
    return Rate(timedelta(microseconds=microseconds), burst or 1)


def is_rate(value: object) -> bool:
    """Return whether *value* is a text that `read_rate` reads."""
    return isinstance(value, str) and _TEXT.fullmatch(value) is not None
