"""Cron text and time zone to slots: pure arithmetic on the moments that the caller passes in.

croniter answers one question, which days match; it is asked on the naive calendar and imported
only when it is needed. What happens when a zone changes its clocks is decided here, once, in
`_Walk`, and every method of `Schedule` reads from it.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from ..errors import ScheduleError
from .cron_text import Cron, parse_cron, parse_zone

# Instants and wall clock readings are whole seconds; second // DAY is the day's `date.toordinal()`.
MINUTE, HOUR, DAY = 60, 3_600, 86_400
# What a datetime can name: from 0001-01-01 up to, and without, 10000-01-01.
FIRST, END = DAY, (datetime.max.toordinal() + 1) * DAY  # noqa: DTZ901
# Longer than any offset and any jump of a clock together: 16 hours from UTC, 24 over the date line.
MARGIN = 3 * DAY
NEVER = (END + 2 * MARGIN) // DAY

_LATEST = datetime.max.replace(tzinfo=dt.timezone.utc)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The slots that a cron text names on the wall clock of a time zone. Immutable and hashable.

    :param cron: five fields (minute, hour, day-of-month, month, day-of-week) of numbers, names,
        ``*``, ranges, lists, and steps on ``*`` or a range; or ``@hourly``, ``@daily``,
        ``@midnight``, ``@weekly``, ``@monthly``, ``@yearly``, ``@annually``; at most 200
        characters.
    :param timezone: a name of the tz database, such as ``"Europe/Berlin"``.
    :raises ScheduleError: a `ValueError`: the text or the zone cannot be read, or the date never
        comes. The message says what to write.

    The rule at a clock change is that of Debian's cron. If the minute or hour field starts with
    ``*``, the job follows the clock: skipped times do not run, repeated times run again. Otherwise
    each listed time runs once: a time that does not exist runs at the first minute that does; a
    repeated time runs the first time only. Slots that land on the same minute are one. If
    day-of-month and day-of-week are both restricted either suffices, unless one starts with ``*``.

    A slot is an instant at which the zone's wall clock reads a whole minute, also in those old
    zones whose distance from UTC had seconds.
    """

    cron: str
    """The text as it was given."""
    timezone: str = "UTC"
    """The zone's name as it was given."""
    _cron: Cron = field(init=False, repr=False, compare=False)
    _zone: dt.tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_cron", parse_cron(self.cron))
        object.__setattr__(self, "_zone", parse_zone(self.timezone))

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first slot strictly later than *moment*.

        :param moment: an aware datetime.
        :returns: an aware datetime in UTC, or `None` if no slot follows before the year 10000.
        :raises ScheduleError: if *moment* is naive.
        """
        return next(self.between(moment, _LATEST), None)

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Return the slots with *after* < slot <= *until*, in order, each made when asked for.

        :param after: an aware datetime.
        :param until: an aware datetime.
        :returns: aware datetimes in UTC.
        :raises ScheduleError: at the call, if a datetime is naive.
        """
        return map(_datetime, self._walk(after, until).slots())

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many slots `between` would give; it counts by days and makes none of them.

        :param after: an aware datetime.
        :param until: an aware datetime.
        :raises ScheduleError: if a datetime is naive.
        """
        return self._walk(after, until).count()

    def tail(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the newest *limit* of the slots that `between` would give, in order.

        It looks at the last hour, then further and further back, so that what a year of missed
        minutes costs is set by *limit*.

        :param after: an aware datetime.
        :param until: an aware datetime.
        :param limit: how many slots at most; below 1 there are none.
        :returns: aware datetimes in UTC.
        :raises ScheduleError: if a datetime is naive.
        """
        whole, span, limit = self._walk(after, until), HOUR, max(limit, 0)
        while True:
            walk = whole.last(span)
            newest = deque(walk.slots(), maxlen=limit)
            if len(newest) == limit or walk.start == whole.start:
                return [_datetime(slot) for slot in newest]
            span *= 4

    def _walk(self, after: datetime, until: datetime) -> _Walk:
        start, end = max(_seconds(after) + 1, FIRST), min(_seconds(until) + 1, END)
        return _Walk(self._cron, self._zone, start, end)


class _Stretch(NamedTuple):
    """Instants of one offset from UTC, as seconds of the wall clock.

    Listed times from `first` up to `end` run in it; those before `opens`, its first whole minute,
    were skipped by the clock and run at `opens`.
    """

    first: int
    opens: int
    end: int
    offset: int


class _Walk:
    """One pass over the instants from *start* up to *end*, in stretches of even wall clock time."""

    def __init__(self, cron: Cron, zone: dt.tzinfo, start: int, end: int) -> None:
        self.cron, self.zone, self.start, self.end = cron, zone, start, end
        self.days = _Days(cron, max((start - 2 * MARGIN) // DAY, FIRST // DAY))
        self.times = [
            hour * HOUR + minute * MINUTE for hour in cron.hours for minute in cron.minutes
        ]

    def last(self, span: int) -> _Walk:
        """Return a walk over the last *span* seconds of this one."""
        return _Walk(self.cron, self.zone, max(self.start, self.end - span), self.end)

    def slots(self) -> Iterator[int]:
        """Yield the slots, ascending."""
        latest = -1
        for stretch in self._stretches():
            for wall in self._listed(stretch.first, stretch.end):
                slot = max(wall, stretch.opens) - stretch.offset
                if slot != latest:
                    yield slot
                latest = slot

    def count(self) -> int:
        """Return how many slots there are; all that a stretch makes up for is one of them."""
        total = 0
        for first, opens, end, _ in self._stretches():
            skipped = self._count(first, opens) if first < opens else 0
            total += bool(skipped) + self._count(opens + 1 if skipped else first, end)
        return total

    def _stretches(self) -> Iterator[_Stretch]:
        """Yield stretches in which listed times may run.

        1. Begin some days early, to see what the wall clock has already shown.
        2. Leap over days that list nothing.
        3. Take the instants up to the next change of the offset, for a day at most.
        4. Hand them out from the first time that is due: for a job that follows the clock, where
           the stretch opens; for another, where the clock had got to before. That lies earlier if
           the clock skipped something, and later if it repeats something.
        """
        at = self.start - MARGIN
        shown = at + _offset(self.zone, at)
        while at < self.end:
            ready = self.days.from_day((at - MARGIN) // DAY) * DAY - MARGIN
            if ready > at:
                at = ready
                shown = at + _offset(self.zone, at)
                continue
            offset = _offset(self.zone, at)
            stop = self._change(at, offset, self.start if at < self.start else self.end)
            opens, end = -(-(at + offset) // MINUTE) * MINUTE, stop + offset
            if opens < end:
                first = opens if self.cron.follows_clock else min(shown, end)
                if at >= self.start:
                    yield _Stretch(first, opens, end, offset)
                shown = max(shown, end)
            at = stop

    def _change(self, at: int, offset: int, end: int) -> int:
        """Return the instant at which *offset* ends, or a day after *at*, or *end*.

        No zone has ever kept an offset for less than six days, so a day holds one change at most.
        """
        low, high = at, min(at + DAY, end)
        if _offset(self.zone, high) == offset:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if _offset(self.zone, middle) == offset:
                low = middle
            else:
                high = middle
        return high

    def _listed(self, first: int, end: int) -> Iterator[int]:
        for midnight, low, high in self._spans(first, end):
            for time in self.times[low:high]:
                yield midnight + time

    def _count(self, first: int, end: int) -> int:
        return sum(high - low for _, low, high in self._spans(first, end))

    def _spans(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield for each day its midnight and where in `times` the wall times first..end lie."""
        day = self.days.from_day(first // DAY)
        while day * DAY < end:
            midnight = day * DAY
            low, high = (bisect_left(self.times, wall - midnight) for wall in (first, end))
            yield midnight, low, high
            day = self.days.from_day(day + 1)


class _Days:
    """The days that a schedule names, found one after the other as they are asked for."""

    def __init__(self, cron: Cron, first: int) -> None:
        self._coming = _days(cron, first)
        self._known: list[int] = []

    def from_day(self, day: int) -> int:
        """Return the first day that matches, at or after *day*; `NEVER` if none does."""
        while not self._known or self._known[-1] < day:
            self._known.append(next(self._coming, NEVER))
        return self._known[bisect_left(self._known, day)]


def _days(cron: Cron, first: int) -> Iterator[int]:
    """Yield the matching days as ordinals, from *first* on.

    The fields go to croniter as plain lists, so nothing depends on how it reads a text.
    """
    if cron.any_date:
        yield from range(first, END // DAY)
        return
    from croniter import croniter

    days, months, weekdays = map(_plain, (cron.days, cron.months, cron.weekdays), (31, 12, 7))
    text = f"0 12 {days} {months} {weekdays}"
    steps = croniter(text, datetime.fromordinal(first), day_or=cron.either_day)
    while True:
        try:
            day = steps.get_next(datetime)
        except (ValueError, OverflowError):  # the calendar ends with the year 9999
            return
        yield day.toordinal()


def _plain(values: tuple[int, ...], size: int) -> str:
    return "*" if len(values) == size else ",".join(map(str, values))


def _seconds(moment: datetime) -> int:
    offset = moment.utcoffset()
    if offset is None:
        raise ScheduleError(
            f"The datetime {moment!r} is naive, so it names no instant."
            " Pass an aware one, such as datetime.now(timezone.utc)."
        )
    time = timedelta(hours=moment.hour, minutes=moment.minute, seconds=moment.second)
    time += timedelta(microseconds=moment.microsecond) - offset
    return moment.toordinal() * DAY + time // timedelta(seconds=1)


def _datetime(seconds: int) -> datetime:
    return datetime.min.replace(tzinfo=dt.timezone.utc) + timedelta(seconds=seconds - FIRST)


def _offset(zone: dt.tzinfo, at: int) -> int:
    """Return how many seconds the wall clock of *zone* is ahead of UTC at an instant."""
    utc = _datetime(min(max(at, FIRST + MARGIN), END - MARGIN)).replace(tzinfo=zone)
    ahead = zone.fromutc(utc).replace(tzinfo=None) - utc.replace(tzinfo=None)
    return ahead // timedelta(seconds=1)
