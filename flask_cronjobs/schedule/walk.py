"""Compute the slots of a cron text in a time zone: pure arithmetic, with all times as arguments.

croniter only finds the days that match, on the naive calendar; it is imported when first needed.
`_Walk` alone decides what happens when a zone changes its clocks, and every method of `Schedule`
uses it.
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

# Instants and wall clock times are whole seconds; second // DAY is the day's `date.toordinal()`.
MINUTE, HOUR, DAY = 60, 3_600, 86_400
# The range of a datetime: from 0001-01-01 up to, but not including, 10000-01-01.
FIRST, END = DAY, (datetime.max.toordinal() + 1) * DAY  # noqa: DTZ901
# More than the largest offset (16 hours) and the largest clock change (24 hours) together.
MARGIN_SECONDS = 3 * DAY
NEVER = (END + 2 * MARGIN_SECONDS) // DAY

_LATEST = datetime.max.replace(tzinfo=dt.timezone.utc)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The slots that a cron text names on the wall clock of a time zone. Immutable and hashable.

    :param cron: five fields (minute, hour, day-of-month, month, day-of-week) of numbers, names,
        ``*``, ranges, lists, and steps on ``*`` or a range; or ``@hourly``, ``@daily``,
        ``@midnight``, ``@weekly``, ``@monthly``, ``@yearly``, ``@annually``; at most 200
        characters.
    :param timezone: a name of the tz database, such as ``"Europe/Berlin"``.
    :raises ScheduleError: (a `ValueError`) the text or the zone cannot be read, or the date never
        comes. The message says what to write.

    The rule at a clock change is that of Debian's cron. If the minute or hour field starts with
    ``*``, the job follows the clock: skipped times do not run, repeated times run again. Otherwise
    each listed time runs once: a time that does not exist runs at the first minute that does; a
    repeated time runs the first time only. Slots at the same minute count as one. If neither
    day-of-month nor day-of-week starts with ``*``, a day needs to match only one of them; otherwise
    it must match both.

    A slot is an instant at which the zone's wall clock shows a whole minute, even in historical
    zones whose offset from UTC had seconds.
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

        >>> winter = datetime(2026, 1, 1, tzinfo=timezone.utc)
        >>> Schedule("30 2 * * *", "Europe/Berlin").next_after(winter).isoformat()
        '2026-01-01T01:30:00+00:00'
        """
        return next(self.between(moment, _LATEST), None)

    def is_slot(self, moment: datetime) -> bool:
        """Return whether *moment* is a slot.

        :param moment: an aware datetime.
        :raises ScheduleError: if it is naive.

        >>> Schedule("@daily").is_slot(datetime(2026, 1, 1, tzinfo=timezone.utc))
        True
        """
        just_before = moment - timedelta(microseconds=1)
        return next(self.between(just_before, moment), None) == moment

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Return the slots with *after* < slot <= *until*, in order, lazily.

        :param after: an aware datetime.
        :param until: an aware datetime.
        :returns: aware datetimes in UTC.
        :raises ScheduleError: at the call, if a datetime is naive.

        >>> day = datetime(2026, 1, 1, tzinfo=timezone.utc)
        >>> [slot.hour for slot in Schedule("0 */8 * * *").between(day, day + timedelta(days=1))]
        [8, 16, 0]
        """
        return map(_datetime, self._walk(after, until).slots())

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many slots `between` would return, counted by days without computing each.

        :param after: an aware datetime.
        :param until: an aware datetime.
        :raises ScheduleError: if a datetime is naive.

        >>> day = datetime(2026, 1, 1, tzinfo=timezone.utc)
        >>> Schedule("@hourly").count(day, day + timedelta(days=365))
        8760
        """
        return self._walk(after, until).count()

    def tail(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the newest *limit* of the slots that `between` would return, in order.

        It searches the last hour first, then further back, so that the cost depends on *limit* and
        not on how long the range is.

        :param after: an aware datetime.
        :param until: an aware datetime.
        :param limit: how many slots at most; below 1, none.
        :returns: aware datetimes in UTC.
        :raises ScheduleError: if a datetime is naive.

        >>> day = datetime(2026, 1, 1, tzinfo=timezone.utc)
        >>> [slot.hour for slot in Schedule("@hourly").tail(day, day + timedelta(hours=12), 3)]
        [10, 11, 12]
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
    """A range of time with one offset from UTC, as seconds of the wall clock.

    The listed times from `first` up to `end` run in it. The clock skipped those before `opens`, its
    first whole minute; they run at `opens`.
    """

    first: int
    opens: int
    end: int
    offset: int


class _Walk:
    """One pass over the instants from *start* up to *end*, one `_Stretch` after the other."""

    def __init__(self, cron: Cron, zone: dt.tzinfo, start: int, end: int) -> None:
        self.cron, self.zone, self.start, self.end = cron, zone, start, end
        self.days = _Days(cron, max((start - 2 * MARGIN_SECONDS) // DAY, FIRST // DAY))
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
        """Return how many slots there are; all skipped times of a stretch are one slot."""
        total = 0
        for first, opens, end, _ in self._stretches():
            skipped = self._count(first, opens) if first < opens else 0
            total += bool(skipped) + self._count(opens + 1 if skipped else first, end)
        return total

    def _stretches(self) -> Iterator[_Stretch]:
        """Yield the stretches in which listed times may run.

        1. Begin some days early, to learn which times the wall clock has already shown.
        2. Skip days that do not match.
        3. Take the instants up to the next change of the offset, at most a day.
        4. Yield them from the first time that is due. For a job that follows the clock, this is
           where the stretch opens. For any other it is the latest time that the clock had shown:
           earlier if the clock skipped times, later if it repeats times.
        """
        at = self.start - MARGIN_SECONDS
        latest_shown = at + _offset(self.zone, at)
        while at < self.end:
            ready = self.days.from_day((at - MARGIN_SECONDS) // DAY) * DAY - MARGIN_SECONDS
            if ready > at:
                at = ready
                latest_shown = at + _offset(self.zone, at)
                continue
            offset = _offset(self.zone, at)
            stop = self._change(at, offset, self.start if at < self.start else self.end)
            opens, end = -(-(at + offset) // MINUTE) * MINUTE, stop + offset
            if opens < end:
                first = opens if self.cron.follows_clock else min(latest_shown, end)
                if at >= self.start:
                    yield _Stretch(first, opens, end, offset)
                latest_shown = max(latest_shown, end)
            at = stop

    def _change(self, at: int, offset: int, end: int) -> int:
        """Return when *offset* ends, or *end* or a day after *at* if that is earlier.

        No zone has ever kept an offset for less than three days, so a day has at most one change.
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
        """Yield for each day its midnight, and the indexes in `times` for the range first..end."""
        day = self.days.from_day(first // DAY)
        while day * DAY < end:
            midnight = day * DAY
            low, high = (bisect_left(self.times, wall - midnight) for wall in (first, end))
            yield midnight, low, high
            day = self.days.from_day(day + 1)


class _Days:
    """The days that match, computed lazily in order."""

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

    croniter gets the fields as plain lists, so nothing depends on how it parses cron text.
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
            f"The datetime {moment!r} is naive: it has no time zone."
            " Pass an aware one, such as datetime.now(timezone.utc)."
        )
    time = timedelta(hours=moment.hour, minutes=moment.minute, seconds=moment.second)
    time += timedelta(microseconds=moment.microsecond) - offset
    return moment.toordinal() * DAY + time // timedelta(seconds=1)


def _datetime(seconds: int) -> datetime:
    return datetime.min.replace(tzinfo=dt.timezone.utc) + timedelta(seconds=seconds - FIRST)


def _offset(zone: dt.tzinfo, at: int) -> int:
    """Return how many seconds the wall clock of *zone* is ahead of UTC at an instant."""
    utc = _datetime(min(max(at, FIRST + MARGIN_SECONDS), END - MARGIN_SECONDS)).replace(tzinfo=zone)
    ahead = zone.fromutc(utc).replace(tzinfo=None) - utc.replace(tzinfo=None)
    return ahead // timedelta(seconds=1)
