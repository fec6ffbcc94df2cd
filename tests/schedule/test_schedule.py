"""`Schedule` as tables: texts that are read or refused, and the answers of its methods."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice

import pytest

from flask_cronjobs.errors import CronJobsError, ScheduleError
from flask_cronjobs.schedule import Schedule
from tests.schedule import oracle

UTC = timezone.utc
EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)


def at(text: str) -> datetime:
    """An aware datetime from ISO text; UTC unless the text says otherwise."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# --- the grammar ---------------------------------------------------------------------------------

SAME = [
    ("5-5/7 12 * * *", "5 12 * * *"),
    ("*/60 12 * * *", "0 12 * * *"),
    ("05 012 * * *", "5 12 * * *"),
    (" 0\t12  * * * ", "0 12 * * *"),
    ("0 12 * JAN-Mar sun,mon", "0 12 * 1-3 0,1"),
    ("0 12 * * 5-7", "0 12 * * 0,5,6"),
    ("0 12 * * mon-fri/2", "0 12 * * 1,3,5"),
    ("0 12 * * */7", "0 12 * * 0"),
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@Weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    (" @annually ", "0 0 1 1 *"),
]


@pytest.mark.parametrize(("cron", "plain"), SAME)
def test_text_means_the_same_as_plain_numbers(cron, plain):
    year = (at("2024-01-01"), at("2025-01-02"))
    assert list(Schedule(cron).between(*year)) == list(Schedule(plain).between(*year)) != []


REFUSED = [
    # No text, or one of the wrong size or with other characters.
    (None, "NoneType", "Write five fields such as '0 7 * * 1-5'"),
    (b"* * * * *", "bytes", "Write five fields"),
    ("", "it has 0 fields", "Write five: minute hour day-of-month month day-of-week."),
    ("0 * * * * *", "it has 6 fields; seconds, years and commands are not supported", "Write five"),
    ("0 7 * * *\n", r"'\n'", "Write one line of plain ASCII"),
    (
        ",".join(["1"] * 1_000_000) + " * * * *",
        "characters, and at most 200 are allowed",
        "Write ranges (1-5) and",
    ),
    # Aliases.
    ("@reboot", "no alias '@reboot'", "at start-up, enqueue it there"),
    ("@daily 5", "no alias '@daily 5'", "Write five fields"),
    # Steps.
    ("45/15 * * * *", "a step on a single number", "Write '45'"),
    (
        "29/30 * * * *",
        "the minute field says '29/30', a step on a single number",
        "Write '29-59/30'",
    ),
    ("0 0 * * mon/2", "the day-of-week field says 'mon/2'", "Write '1-6/2'"),
    ("0 0 * * */8", "from 1 to 7", "'*/2'"),
    ("1-9/" + "9" * 150 + " * * * *", "whose step", "'*/2'"),
    # Ranges and lists.
    ("0 22-2 * * *", "the hour field says '22-2', a range that runs backward", "'22-23,0-2'"),
    ("0 0 * * fri-sun", "a range that runs backward", "Write two ranges, as in '5-6,0'"),
    ("1,,2 * * * *", "the minute field says ''", "Take out the comma"),
    # Numbers and names.
    ("9" * 150 + " * * * *", "'..., which is out of range", "from 0 to 59"),
    ("0 0 * * monday", "the day-of-week field says 'monday'", "Write 'mon'."),
    ("0 0 * mon *", "the month field says 'mon'", "names (jan feb mar"),
    # Extensions of other crons.
    ("CRON_TZ=Asia/Tokyo 0 7 * * *", "a time zone", "timezone='Asia/Tokyo'"),
    ("tz=UTC @daily", "a time zone", "timezone='UTC'"),
    ("0 0 * * 5L", "'5L', which is not understood", "Write '28-31'"),
    ("0 0 15W * *", "'15W', which is not understood", "Write '1-5' in day-of-week"),
    ("0 0 * * 5#3", "'5#3', which is not understood", "Write the weekday alone"),
    ("0 0 ? * *", "'?', which is not understood", "Write '*'"),
    # Pasted text.
    ("0 7 * * 1\u20135", r"it contains '\u2013', a dash", "Write '-', as in '1-5'."),
    # Dates that never come.
    ("0 0 30 2 *", "there is no day 30 in feb", "Write a day from 1 to 29"),
    ("0 0 31 2,4,jun *", "there is no day 31 in feb,apr,jun", "Write a day from 1 to 30"),
    # Many of the same kind.
    *(
        (f"{minute} * * * *", f"'{minute}', which is not understood", "Write '*', numbers from 0")
        for minute in ("1-", "-1", "1-2-3", "*-5", "+5", "1_0", "1.5", "**", "x")
    ),
    *(
        (f"{minute} * * * *", f"'{minute}', whose step is not a number from 1 to 60", "'*/2'")
        for minute in ("*/0", "*/90", "*/", "*/-5", "*/5/2", "*/1.5")
    ),
    *(
        (f"{minute} * * * *", "which is not understood", "Write a number of your choice")
        for minute in ("H", "H/15", "H(0-29)", "R", "0~30")
    ),
    *(
        (cron, "which is out of range", f"Write a number from {low} to {high}")
        for cron, low, high in [
            *(("60 * * * *", 0, 59), ("0 24 * * *", 0, 23), ("0 0 0 * *", 1, 31)),
            *(("0 0 32 * *", 1, 31), ("0 0 * 13 *", 1, 12), ("0 0 * * 8", 0, 7)),
        ]
    ),
    *((f"{sign} 7 * * *", ascii(sign), "plain ASCII") for sign in "\u00a0\u0663\u00b2\ud800"),
]


@pytest.mark.parametrize(("cron", "what", "instead"), REFUSED, ids=lambda part: repr(part)[:30])
def test_refusal_says_what_is_wrong_and_what_to_write(cron, what, instead):
    with pytest.raises(ScheduleError) as caught:
        Schedule(cron)
    message = str(caught.value)
    assert what in message
    assert instead in message.partition(what)[2]
    assert message.isprintable()
    assert message.isascii()
    assert len(message) < 400


def test_refusal_is_a_value_error_of_the_package_and_quotes_the_text():
    with pytest.raises(ValueError, match=r"The schedule '99 \* \* \* \*' cannot be") as caught:
        Schedule("99 * * * *")
    assert isinstance(caught.value, CronJobsError)


@pytest.mark.parametrize(
    ("zone", "what", "instead"),
    [
        ("Mars/Base", "no time zone 'Mars/Base'", "Write an IANA name such as 'Europe/Berlin'"),
        *(
            (zone, f"no time zone {zone!r}", "IANA")
            for zone in ("", "Europe", "Europe/", "../../etc/passwd", "/etc/localtime", "zone.tab")
        ),
        *((zone, f"no time zone {zone!a}", "IANA") for zone in ("UTC\0", "\ud800", "+02:00")),
        ("UTC\n", r"no time zone 'UTC\n'", "Write 'UTC'"),
        ("utc", "no time zone 'utc'", "Write 'UTC'"),
        ("europe/BERLIN", "no time zone 'europe/BERLIN'", "Write 'Europe/Berlin'"),
        ("berlin", "no time zone 'berlin'", "Write 'Europe/Berlin'"),
        ("New York", "no time zone 'New York'", "Write 'America/New_York'"),
        ("GMT+2", "no time zone 'GMT+2'", "'Etc/GMT-2' for always 2 h ahead of UTC"),
        ("UTC-05:00", "no time zone", "'Etc/GMT+5' for always 5 h behind UTC"),
        ("GMT+99", "no time zone", "Write an IANA name"),
        *((text * 5000, f"'{text * 2}", "IANA") for text in ("a", "a/")),
        *((value, f"of type {type(value).__name__}", "IANA") for value in (None, 1, UTC)),
    ],
    ids=lambda part: repr(part)[:30],
)
def test_unknown_zone_is_refused_by_name(zone, what, instead):
    with pytest.raises(ScheduleError) as caught:
        Schedule("@daily", zone)
    assert what in str(caught.value)
    assert instead in str(caught.value)
    assert len(str(caught.value)) < 200


# --- far away, and odd minutes; all else is held against a second reading, by properties ---------

FAR = [
    ("leap day over 2100", "0 0 29 2 *", "2096-01-01", ["2096-02-29", "2104-02-29"]),
    # Feb 29 on a Sunday: 28 years apart, 40 over 2100.
    ("leap day on Sundays", "0 0 29 2 */7", "2080-01-01", ["2088-02-29", "2128-02-29"]),
]


@pytest.mark.parametrize(("case", "cron", "after", "days"), FAR, ids=lambda part: str(part))
def test_a_slot_may_be_far_away(case, cron, after, days):
    slots = Schedule(cron).between(at(after), LATEST)
    assert [slot.date().isoformat() for slot in islice(slots, len(days))] == days


def test_offset_with_seconds_counts_whole_minutes_of_the_wall_clock():
    """Monrovia was 44:30 behind UTC until 1972-01-07, when 00:00:00 became 00:44:30."""
    noon = Schedule("0 12 6 1 *", "Africa/Monrovia")
    assert noon.next_after(at("1972-01-01")) == at("1972-01-06T12:44:30")
    skipped = Schedule("10 0 7 1 *", "Africa/Monrovia")
    assert skipped.next_after(at("1972-01-01")) == at("1972-01-07T00:45")
    window = (at("1972-01-07T00:43"), at("1972-01-07T00:46"))
    every = list(Schedule("* * * * *", "Africa/Monrovia").between(*window))
    assert every == [at("1972-01-07T00:43:30"), at("1972-01-07T00:45"), at("1972-01-07T00:46")]


@pytest.mark.parametrize("second", range(0, 60, 7))
def test_window_that_ends_before_the_first_whole_minute_after_a_gap(second):
    """The gap in Monrovia ends at 00:44:30; what it skipped waits for 00:45."""
    schedule = Schedule("10 0 7 1 *", "Africa/Monrovia")
    cut = at("1972-01-07T00:44:30") + timedelta(seconds=second)
    before = list(schedule.between(at("1972-01-01"), cut))
    rest = list(schedule.between(cut, at("1972-01-08")))
    assert before + rest == [at("1972-01-07T00:45")]
    assert all(slot <= cut for slot in before)
    assert schedule.count(at("1972-01-01"), cut) == len(before)
    assert schedule.count(cut, at("1972-01-08")) == len(rest)


# --- moments -------------------------------------------------------------------------------------


def test_moment_of_any_zone_is_an_instant():
    schedule = Schedule("0 7 * * *", "Europe/Berlin")
    assert schedule.next_after(at("2026-01-01T07:00+01:00")) == at("2026-01-02T06:00")
    assert schedule.next_after(at("2026-01-01T00:59:59-05:00")) == at("2026-01-01T06:00")


def test_is_slot_looks_at_the_date_and_the_second_too():
    schedule = Schedule("30 7 1 * *", "Europe/Berlin")
    assert schedule.is_slot(at("2026-01-01T06:30"))
    assert schedule.is_slot(at("2026-07-01T07:30+02:00"))
    assert not schedule.is_slot(at("2026-01-01T06:30:01"))
    assert not schedule.is_slot(at("2026-01-02T06:30"))


def test_naive_datetime_is_refused_at_the_call():
    schedule, naive, aware = Schedule("@daily"), datetime(2026, 1, 1), at("2026-01-01")
    for method in (schedule.between, schedule.count, partial(schedule.tail, limit=1)):
        for window in ((naive, aware), (aware, naive)):
            with pytest.raises(ScheduleError, match=r"naive.*Pass an aware one"):
                method(*window)


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "America/Juneau"])
@pytest.mark.parametrize("cron", ["* * * * *", "0 5 * * 1", "0 0 29 2 *", "59 23 31 12 *"])
def test_ends_of_the_calendar(cron, zone):
    schedule = Schedule(cron, zone)
    for offset in (timedelta(0), timedelta(hours=14), timedelta(hours=-14)):
        earliest, latest = (m.replace(tzinfo=timezone(offset)) for m in (EARLIEST, LATEST))
        first = schedule.next_after(earliest)
        assert first is not None
        assert earliest < first < at("0005-01-01")
        assert schedule.next_after(latest) is None or offset
        assert all(slot <= LATEST for slot in schedule.between(at("9999-12-30"), latest))
        assert schedule.count(latest, earliest) == 0
        assert len(schedule.tail(earliest, latest, 2)) == 2


# --- changes of the clock -------------------------------------------------------------------------

# These are in UTC. Berlin: 02:00 -> 03:00 at 01:00, and 03:00 -> 02:00 at 01:00. Apia had no
# 2011-12-30: 24:00 of the 29th was 00:00 of the 31st. 1969-09-30 24:00 in Kwajalein became 01:00 of
# that day.
BY_HAND = [
    ("gap, fixed: the first minute that exists", "30 2 * * *",
     "Europe/Berlin", "2026-03-28T12:00", 48, ["29T01:00", "30T00:30"]),
    ("gap, follows: skipped", "30 */2 * * *",
     "Europe/Berlin", "2026-03-28T23:00", 4, ["28T23:30", "29T02:30"]),
    ("overlap, fixed: the first time only", "30 2 * * *",
     "Europe/Berlin", "2026-10-24T12:00", 48, ["25T00:30", "26T01:30"]),
    ("overlap, follows: again", "*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 24,
     ["25T00:00", "25T00:30", "25T01:00", "25T01:30"]),
    ("no midnight", "0 0 * * *", "Africa/Cairo", "2026-04-22T12:00", 58,
     ["22T22:00", "23T22:00", "24T21:00"]),
    ("two midnights", "0 0 * * *", "America/St_Johns", "2010-11-06T12:00", 24, ["07T02:30"]),
    ("no day, fixed: as the next begins", "0 5 * * *",
     "Pacific/Apia", "2011-12-29T12:00", 48, ["29T15:00", "30T10:00", "30T15:00"]),
    ("no day, fixed: many times are one slot", "0-59 5-9 30 12 *",
     "Pacific/Apia", "2011-12-29T12:00", 48, ["30T10:00"]),
    ("a day twice, follows: again", "0 */12 * * *", "Pacific/Kwajalein", "1969-09-29T12:00", 48,
     ["29T13:00", "30T01:00", "01T00:00", "01T12:00"]),
]  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND, ids=lambda case: case[0])
def test_both_readings_are_as_was_worked_out_by_hand(case):
    _, cron, zone, start, hours, slots = case
    after = at(start)
    until = after + timedelta(hours=hours)
    assert [slot.strftime("%dT%H:%M") for slot in oracle.slots(cron, zone, after, until)] == slots
    between = Schedule(cron, zone).between(after, until)
    assert [slot.strftime("%dT%H:%M") for slot in between] == slots


# --- the value -----------------------------------------------------------------------------------


def test_schedule_is_a_value():
    schedule = Schedule("0 7 * * 1-5", "Europe/Berlin")
    assert (schedule.cron, schedule.timezone) == ("0 7 * * 1-5", "Europe/Berlin")
    assert schedule == Schedule("0 7 * * 1-5", timezone="Europe/Berlin")
    assert schedule != Schedule("0 7 * * 1-5")
    assert schedule != Schedule("0 8 * * 1-5", "Europe/Berlin")
    assert repr(schedule) == "Schedule(cron='0 7 * * 1-5', timezone='Europe/Berlin')"
    with pytest.raises(AttributeError):
        schedule.cron = "* * * * *"  # type: ignore[misc]
