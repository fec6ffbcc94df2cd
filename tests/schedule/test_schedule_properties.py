"""Properties of every schedule, zone and window, and a comparison with a second implementation.

`test_schedule` has the cases that were worked out by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flask_cronjobs.errors import ScheduleError
from flask_cronjobs.schedule import Schedule
from tests.schedule import oracle

UTC = timezone.utc
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
START, END = datetime(1970, 1, 1, tzinfo=UTC), datetime(2037, 12, 31, tzinfo=UTC)

pytestmark = pytest.mark.filterwarnings("error")
quick = settings(max_examples=40, deadline=None)


@dataclass(frozen=True)
class Change:
    """A change of a zone's offset from UTC."""

    zone: str
    instant: datetime
    before: timedelta | None
    after: timedelta | None


@cache
def changes() -> list[Change]:
    """Return the clock changes of all zones from 1970 to 2037, each once.

    The zones are compared every two weeks, so the few summers that were shorter are missed.
    """
    weeks = [START + index * 14 * DAY for index in range((END - START) // (14 * DAY))]
    alike: dict[tuple[timedelta | None, ...], str] = {}
    for zone in sorted(available_timezones()):
        alike.setdefault(tuple(_offset(ZoneInfo(zone), week) for week in weeks), zone)
    changes: dict[tuple[object, ...], Change] = {}
    for offsets, zone in alike.items():
        for (early, before), (late, after) in pairwise(zip(weeks, offsets, strict=True)):
            if before != after:
                change = Change(zone, _turn(ZoneInfo(zone), early, late), before, after)
                changes.setdefault((change.instant, before, after), change)
    return list(changes.values())


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def _turn(zone: ZoneInfo, early: datetime, late: datetime) -> datetime:
    before = _offset(zone, early)
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) // 2
        if _offset(zone, middle) == before:
            early = middle
        else:
            late = middle
    return late.replace(microsecond=0)


def texts(low: int, high: int) -> st.SearchStrategy[str]:
    """Return a strategy for one field: mostly short texts, as people write them."""
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    steps = st.integers(1, min(high, 7)).map(lambda step: f"/{step}")
    stepped = st.tuples(spans | st.just("*"), steps).map("".join)
    terms = st.lists(number.map(str) | spans | stepped, min_size=1, max_size=3).map(",".join)
    return st.just("*") | number.map(str) | stepped | terms


MINUTES = st.sampled_from(["0", "30", "15,45", "0-59", "7-59/13", "*", "*/20", "*,5"]) | texts(
    0, 59
)
HOURS = st.sampled_from(["*", "0", "1", "2", "3", "23", "0-4", "0-23", "*/2"]) | texts(0, 23)
DAYS, MONTHS, WEEKDAYS = texts(1, 31), st.just("*") | texts(1, 12), texts(0, 7)
EVERY_DAY = st.tuples(MINUTES, HOURS, st.just("*"), st.just("*"), st.just("*")).map(" ".join)
CRONS = st.tuples(MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS).map(" ".join)


def usable(cron: str, zone: str = "UTC") -> Schedule | None:
    """Return the schedule, or `None` if its date never comes."""
    try:
        return Schedule(cron, zone)
    except ScheduleError as error:
        assert "never comes" in str(error)  # noqa: PT017
        return None


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, datetime, datetime]:
    """Draw a zone and a window around one of its clock changes, in whole minutes."""
    whole = [change for change in changes() if not _has_seconds(change)]
    change = draw(st.sampled_from(whole))
    start = change.instant + timedelta(minutes=draw(st.integers(-1600, 200)))
    return change.zone, start, start + timedelta(minutes=draw(st.integers(0, 1800)))


def _has_seconds(change: Change) -> bool:
    return any(offset and offset % timedelta(minutes=1) for offset in (change.before, change.after))


def window(zone: str, start: str, hours: int) -> tuple[str, datetime, datetime]:
    moment = datetime.fromisoformat(start).replace(tzinfo=UTC)
    return zone, moment, moment + timedelta(hours=hours)


@settings(max_examples=25, deadline=None)
@given(EVERY_DAY | CRONS, windows(), st.integers(-1, 5))
@example("0-59 5-9 * * *", window("Pacific/Apia", "2011-12-29T06:00", 60), 2)
@example("0 5 21 8 *", window("Pacific/Kwajalein", "1993-08-20T00:00", 60), 2)
@example("0 5 * * *", window("Pacific/Kwajalein", "1969-09-29T00:00", 72), 2)
@example("0 0 * * *", window("America/Havana", "2024-03-09T12:00", 48), 2)
@example("30 0,1 * * *", window("Asia/Gaza", "2040-10-19T00:00", 240), 2)
@example("0,1 0,23 * * *", window("America/St_Johns", "2010-11-06T12:00", 40), 2)
@example("*/15 * * * *", window("Australia/Lord_Howe", "2026-04-04T10:00", 24), 2)
@example("0,15,30 2,3 * * *", window("Europe/Berlin", "2026-03-29T00:00", 12), 2)
@example("30 2 * * *", window("Europe/Berlin", "2026-03-29T00:59:59.999999", 1), 2)
@example("30 2 * * *", window("Europe/Berlin", "2026-03-29T01:00", 11), 2)
@example("30 2 * * *", window("Europe/Berlin", "2026-10-25T00:45", 12), 2)
@example("0,30 1-3 * * *", window("Europe/Berlin", "2026-10-24T22:59", 5), 3)
@example("30 23 * * *", window("Asia/Beirut", "2026-10-24T12:00", 24), 2)
def test_rule_agrees_with_a_minute_by_minute_reading(cron, window, limit):
    zone, after, until = window
    if (schedule := usable(cron, zone)) is None:
        return
    slots = oracle.slots(cron, zone, after, until)
    assert list(schedule.between(after, until)) == slots
    assert schedule.count(after, until) == len(slots)
    assert schedule.tail(after, until, limit) == slots[len(slots) - min(limit, len(slots)) :]
    assert all(slot.utcoffset() == timedelta(0) for slot in schedule.between(after, until))
    following = [schedule.next_after(moment) for moment in (after, *slots[:50])]
    assert following[: len(slots)] == slots[:51]
    assert slots or following[0] is None or following[0] > until


@quick
@given(
    DAYS,
    MONTHS,
    WEEKDAYS,
    st.dates(date(1, 1, 2), date(9997, 1, 1)) | st.sampled_from([date(2095, 6, 1), date(1, 1, 2)]),
)
@example("29", "2", "*", date(2096, 3, 1))
@example("30", "2", "1", date(2026, 2, 20))
@example("1-31", "*", "1", date(2026, 3, 1))
@example("9", "2", "0-6", date(2026, 2, 27))
@example("*/2", "*", "1", date(2026, 3, 1))
@example("*,5", "*", "1", date(2026, 3, 1))
@example("5,*/30", "*", "1", date(2026, 3, 2))
@example("*", "*", "1", date(9999, 11, 1))
@example("31", "12", "1-5", date(9998, 11, 1))
def test_days_agree_with_a_plain_walk_over_the_calendar(days, months, weekdays, first):
    cron = f"0 0 {days} {months} {weekdays}"
    if (schedule := usable(cron)) is None:
        return
    last = date.fromordinal(min(first.toordinal() + 500, date.max.toordinal()))
    midnights = [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in (first, last)]
    slots = schedule.between(midnights[0] - timedelta(seconds=1), midnights[1])
    assert [slot.date() for slot in slots] == oracle.days(cron, first, last)


@pytest.mark.parametrize(
    ("cron", "part"),
    [
        ("0,30 0-23 * * *", 0),
        ("*/30 * * * *", 1),
        pytest.param("0,30 0-23 * * *", 2, marks=pytest.mark.slow),
        pytest.param("*/30 * * * *", 3, marks=pytest.mark.slow),
    ],
)
def test_next_is_later_than_last_at_every_change_of_every_zone(cron, part):
    schedules: dict[str, Schedule] = {}
    for change in changes()[part::4]:
        schedule = schedules.setdefault(change.zone, Schedule(cron, change.zone))
        until = change.instant + 3 * HOUR
        slots = list(schedule.between(change.instant - 2 * HOUR, until))
        assert all(earlier < later for earlier, later in pairwise(slots))
        for moment in (change.instant - timedelta(seconds=1), change.instant):
            following = schedule.next_after(moment)
            assert following is not None
            assert following > moment
            later = [slot for slot in slots if slot > moment]
            assert following == later[0] if later else following > until


@quick
@given(CRONS, st.sampled_from(sorted(available_timezones())), st.datetimes(), st.integers(0, 800))
def test_window_can_be_cut_anywhere(cron, zone, start, days):
    if (schedule := usable(cron, zone)) is None:
        return
    after = start.replace(tzinfo=UTC)
    until = min(after, datetime(9990, 1, 1, tzinfo=UTC)) + days * DAY
    middle = after + (until - after) / 3
    whole = schedule.count(after, until)
    assert whole == schedule.count(after, middle) + schedule.count(middle, until)
    newest = schedule.tail(after, until, 20)
    assert len(newest) == min(whole, 20)
    if newest:
        assert newest == list(schedule.between(newest[0] - timedelta(seconds=1), until))


def _terms(alphabet: str) -> st.SearchStrategy[str]:
    return st.lists(st.text(alphabet, max_size=6), min_size=4, max_size=6).map(" ".join)


@settings(max_examples=250, deadline=None)
@given(
    st.text(max_size=300)
    | _terms("0123456789*/,-")
    | _terms("0159*/,-#LWHR?~@ \tajnmosu\u0663\x00")
    | CRONS.flatmap(lambda cron: st.permutations(cron).map("".join)),
    st.just("UTC") | st.text(max_size=30) | st.text("./ETCutc+-\x00", max_size=12),
)
def test_text_from_anywhere_is_a_schedule_or_a_schedule_error(cron, zone):
    try:
        schedule = Schedule(cron, zone)
    except ScheduleError as error:
        assert str(error).isascii()  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
        return
    following = schedule.next_after(START)
    assert following is not None
    assert following > START
