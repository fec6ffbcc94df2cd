"""A second implementation of the rule at a clock change: a daemon that wakes each minute.

It shares no code with the package, does not use croniter, and is slow. It walks whole minutes of
UTC, so it is right for zones whose offset from UTC is whole minutes.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def slots(cron: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    """Return every minute in (after, until] at which a job with this cron text is due."""
    sets = [numbers(text, *bounds) for text, bounds in zip(cron.split(), BOUNDS, strict=True)]
    follows = cron.startswith("*") or cron.split()[1].startswith("*")
    moment = after.astimezone(timezone.utc).replace(second=0, microsecond=0)
    before = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    slots: list[datetime] = []
    while (moment := moment + MINUTE) <= until:
        wall = moment.astimezone(ZoneInfo(zone))
        now = wall.replace(tzinfo=None)
        again = wall.fold == 1
        due = is_due(cron, sets, now) and (follows or not again)
        if due or (not follows and any(is_due(cron, sets, gone) for gone in skipped(before, now))):
            slots.append(moment)
        before = now
    return slots


def skipped(before: datetime, now: datetime) -> Iterator[datetime]:
    """Return the readings that the wall clock skipped between two minutes."""
    while (before := before + MINUTE) < now:
        yield before


def is_due(cron: str, sets: list[set[int]], wall: datetime) -> bool:
    return wall.minute in sets[0] and wall.hour in sets[1] and is_day(cron, sets, wall)


def is_day(cron: str, sets: list[set[int]], day: date) -> bool:
    """Return whether the day fields match this day."""
    if day.month not in sets[3]:
        return False
    by_date = day.day in sets[2]
    by_weekday = day.isoweekday() % 7 in {number % 7 for number in sets[4]}
    if any(cron.split()[index].startswith("*") for index in (2, 4)):
        return by_date and by_weekday
    return by_date or by_weekday


def days(cron: str, first: date, last: date) -> list[date]:
    """Return the days from *first* to *last* that the day fields match."""
    sets = [numbers(text, *bounds) for text, bounds in zip(cron.split(), BOUNDS, strict=True)]
    every = map(date.fromordinal, range(first.toordinal(), last.toordinal() + 1))
    return [day for day in every if is_day(cron, sets, day)]


def numbers(text: str, low: int, high: int) -> set[int]:
    """Return the numbers that one field matches."""
    for names, offset in ((calendar.month_abbr[1:], 1), (calendar.day_abbr, 1)):
        for index, name in enumerate(names):
            text = re.sub(name, str(index + offset), text, flags=re.IGNORECASE)
    text = text.replace("*", f"{low}-{high}")
    days: set[int] = set()
    for term in text.split(","):
        start, end, step = re.fullmatch(r"(\d+)(?:-(\d+))?(?:/(\d+))?", term).groups()  # type: ignore[union-attr]
        days |= {
            number
            for number in range(int(start), int(end or start) + 1)
            if (number - int(start)) % int(step or 1) == 0
        }
    return days
