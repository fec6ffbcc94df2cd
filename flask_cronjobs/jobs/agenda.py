"""What ran and what will run between two moments, a lane for each definition; what runs next."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from heapq import merge
from itertools import islice
from statistics import median
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import Row, select, text

from ..errors import ScheduleError
from ..models.columns import UNREADABLE
from ..models.conditions import KEYED, RATE_WAITS, SCHEDULED, UNKEYED
from ..registry.options import is_moment
from ..schedule import Schedule
from ..schedule.cron_text import parse_zone
from .backlog import first_due
from .definitions.views import HORIZON, last_runs
from .humanize import parse_age, parse_time
from .reader import DEFINITIONS, RUNS, Count, Query, Reader, Source, capped, count_of, reading
from .runs.rows import seconds_taken

#: How far back and ahead a page shows, unless somebody asks for more or less, and at most.
HOURS, LONGEST = timedelta(hours=12), timedelta(days=7)
#: At most so many definitions, those that run next.
LANES = 60
#: Of each, so many of its latest runs.
RUNS_SHOWN = 50
#: Where more slots are to come, they are one band.
SLOTS_SHOWN = 24
#: At most so many delayed runs of one priority are read.
DELAYED = 500
#: At most so many groups of definitions that begin at once.
COLLISIONS = 10

#: What a piece of a lane is: a run that ended or runs, a slot that was missed or skipped, a run to
#: come, a band of many of them, or a time whose runs are left out.
Kind: TypeAlias = Literal[
    "succeeded", "failed", "dead", "running", "missed", "planned", "band", "older"
]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a lane, from *start* to *end*.

    :ivar number: how many slots it stands for.
    """

    kind: Kind
    start: datetime
    end: datetime
    run_id: int | None = None
    number: int = 1


@dataclass(frozen=True, slots=True)
class Lane:
    """One definition.

    :ivar pieces: by time.
    :ivar expected: how many seconds a run takes, by the median of its last runs; None if unknown.
    :ivar late: since when a slot has been due that no tick records; None if none is overdue.
    """

    name: str
    task: str
    timezone: str
    pieces: tuple[Piece, ...]
    expected: float | None
    late: datetime | None = None

    def of(self, *kinds: Kind) -> tuple[Piece, ...]:
        """Return the pieces of some kinds."""
        return tuple(piece for piece in self.pieces if piece.kind in kinds)


@dataclass(frozen=True, slots=True)
class Delayed:
    """Runs of one task that wait for a time to come, from *first* to *last*."""

    task: str
    count: Count
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class Collision:
    """Several definitions that begin at the same moment: *number* times from *at* to *last*."""

    at: datetime
    names: tuple[str, ...]
    number: int
    last: datetime


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A moment at which the clocks of a zone change, by so many seconds."""

    at: datetime
    timezone: str
    seconds: int

    def __str__(self) -> str:
        """Say what the clocks there show: at 03:00 it is 02:00 again."""
        after = self.at.astimezone(parse_zone(self.timezone)).replace(tzinfo=None)
        before = after - timedelta(seconds=self.seconds)
        way = "forward" if self.seconds > 0 else "back"
        day = f"{before:%a} {before.day} {before:%b}"
        by = f"from {before:%H:%M} to {after:%H:%M}"
        return f"On {day} the clocks in {self.timezone} go {way}, {by}"


@dataclass(frozen=True, slots=True)
class Agenda:
    """What ran from *start* on, and what will run until *end*.

    :ivar lanes: by when they run next.
    :ivar number: how many definitions are scheduled.
    :ivar workers: how many processes a tick runs; more definitions than that wait for each other.
    """

    start: datetime
    end: datetime
    now: datetime
    lanes: tuple[Lane, ...]
    number: Count
    delayed: tuple[Delayed, ...]
    collisions: tuple[Collision, ...]
    clock_changes: tuple[ClockChange, ...]
    workers: int


class Span(NamedTuple):
    """From when to when, and the time zone in which that was asked for."""

    start: datetime
    end: datetime
    zone: str


def span_of(now: datetime, zone: str, start: str | None = None, end: str | None = None) -> Span:
    """Return from when to when an agenda is to be, at most a week back and a week ahead.

    :param zone: the time zone of a text that names none.
    :param start: ``22:00``: the last one before *end*; ``2h``: so long ago; or a date and time,
        such as ``2026-11-20T22:00``. None: twelve hours ago.
    :param end: ``08:00``: the next one; ``24h``: in so long; or a date and time. None: in twelve
        hours.
    :raises ValueError: with what is wrong, and what to write.
    """
    now = now.astimezone(timezone.utc)
    until, since = moment_of(end or "12h", zone), moment_of(start or "12h", zone)
    if isinstance(until, Schedule):
        until = until.next_after(now) or now
    until = min(now + until if isinstance(until, timedelta) else until, now + LONGEST)
    if isinstance(since, Schedule):
        (since,) = since.tail(until - timedelta(days=2), until - timedelta(seconds=1), 1)
    since = max(now - since if isinstance(since, timedelta) else since, now - LONGEST)
    if since >= until:
        raise ValueError(f"{start or 'Twelve hours ago'} is not before {end or 'in twelve hours'}.")
    return Span(since, until, zone)


def moment_of(given: str, zone: str) -> datetime | timedelta | Schedule:
    """Return the moment, the distance from now, or the time of each day that *given* says.

    :param zone: the time zone of a text that names none.
    :raises ValueError: with what to write instead.
    """
    age = parse_age(given)
    if age is not None:
        return min(timedelta(seconds=age), LONGEST)
    if daily := re.fullmatch("([01]?[0-9]|2[0-3]):([0-5][0-9])", given.strip()):
        return Schedule(f"{int(daily[2])} {int(daily[1])} * * *", zone)
    moment = parse_time(given)
    if moment is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=parse_zone(zone))
    if not is_moment(moment):
        raise ValueError(f"{given!r} is not a time. Write 08:00, 24h or 2026-11-20T06:00.")
    return moment.astimezone(timezone.utc)


def read_agenda(source: Source, span: Span | None = None) -> Agenda:
    """Return what ran and what will run from the start of *span* to its end."""
    with reading(source) as reader:
        workers, zone = reader.state.settings.workers, reader.state.settings.timezone
        start, end, zone = span or span_of(reader.now, zone)
        found = _definitions(reader, LANES)
        ran = last_runs(reader, [row.id for row in found], RUNS_SHOWN, end)
        lanes = tuple(_lane(reader, row, ran[row.id], start, end) for row in found)
        return Agenda(
            start=start,
            end=end,
            now=reader.now,
            lanes=lanes,
            number=count_of(found[0].number if found else 0),
            delayed=tuple(_delayed(reader, max(start, reader.now), end)),
            collisions=tuple(_collisions(lanes, workers)),
            clock_changes=tuple(
                clock_changes({zone, *(lane.timezone for lane in lanes)}, start, end)
            ),
            workers=workers,
        )


def scheduled_zones(source: Source) -> tuple[str, ...]:
    """Return the time zones of the definitions that are scheduled, at most two of them."""
    with reading(source) as reader:
        zones: Query = select(DEFINITIONS.c.timezone).where(text(SCHEDULED)).distinct().limit(2)
        return tuple(row.timezone for row in reader.rows(zones))


class NextRun(NamedTuple):
    """A slot to come of a definition; past, if it is due and no tick has recorded it yet."""

    at: datetime
    definition: str
    task: str


def next_runs(source: Source, limit: int = 50) -> tuple[NextRun, ...]:
    """Return the next slots of all definitions that are not paused, soonest first."""
    with reading(source) as reader:
        # No other definition comes before the first slots of so many.
        slots = [_slots(row, reader.now) for row in _definitions(reader, limit)]
        return tuple(islice(merge(*slots), limit))


def _slots(row: Row[Any], now: datetime) -> Iterator[NextRun]:
    try:
        coming = Schedule(row.schedule, row.timezone).between(now, now + HORIZON)
    except ScheduleError:
        return
    if UNREADABLE != row.next_run_at <= now:
        yield NextRun(row.next_run_at, row.name, row.job_type)
    for slot in coming:
        yield NextRun(slot, row.name, row.job_type)


def _definitions(reader: Reader, limit: int) -> Sequence[Row[Any]]:
    """Return definitions that are scheduled, by when they run next, each with their number."""
    names = ("id", "name", "job_type", "schedule", "timezone", "next_run_at")
    number = capped(select(DEFINITIONS.c.id).where(text(SCHEDULED))).label("number")
    return reader.rows(
        select(*(DEFINITIONS.c[name] for name in names), number)
        .where(text(SCHEDULED))
        .order_by(DEFINITIONS.c.next_run_at)
        .limit(limit)
    )


def _lane(
    reader: Reader, row: Row[Any], ran: Sequence[Row[Any]], start: datetime, end: datetime
) -> Lane:
    now, due = reader.now, row.next_run_at
    took = [
        seconds
        for run in ran
        if run.status == "succeeded"
        and (seconds := seconds_taken(run.status, run.started_at, run.finished_at)) is not None
    ]
    expected = median(took) if took else None
    past = [piece for run in reversed(ran) if (piece := _piece(run, now)) and piece.end >= start]
    if len(ran) == RUNS_SHOWN and start < (oldest := ran[-1].scheduled_for):
        past.insert(0, Piece("older", start, oldest))
    # A slot at the start is one of the span.
    coming = _coming(
        row, max(start - timedelta(seconds=1), now), end, timedelta(seconds=expected or 0.0)
    )
    overdue = now - timedelta(seconds=reader.state.settings.health_overdue)
    late = due if UNREADABLE != due <= overdue else None
    return Lane(row.name, row.job_type, row.timezone, (*past, *coming), expected, late)


def _piece(run: Row[Any], now: datetime) -> Piece | None:
    """Return what a lane shows of a run; None if it has not begun, or was set aside."""
    if run.status == "skipped" and run.error_type == "Missed":
        return Piece("missed", run.scheduled_for, run.scheduled_for, run.id)
    if run.status not in ("succeeded", "failed", "dead", "running") or run.started_at is None:
        return None
    ended = run.finished_at or (now if run.status == "running" else run.started_at)
    return Piece(run.status, run.started_at, max(ended, run.started_at), run.id)


def _coming(row: Row[Any], now: datetime, end: datetime, expected: timedelta) -> Iterator[Piece]:
    """Yield the slots to come: each, or a band if there are many; none of a broken schedule."""
    try:
        schedule = Schedule(row.schedule, row.timezone)
    except ScheduleError:
        return
    slots = list(islice(schedule.between(now, end), SLOTS_SHOWN + 1))
    if len(slots) > SLOTS_SHOWN:
        yield Piece("band", slots[0], end, number=schedule.count(now, end))
        return
    for slot in slots:
        yield Piece("planned", slot, slot + expected)


def _delayed(reader: Reader, start: datetime, end: datetime) -> Iterator[Delayed]:
    """Yield the runs that wait for a time from *start* to *end*, also for a retry, by task."""
    later = select(RUNS.c.job_type, RUNS.c.run_at).where(
        RUNS.c.run_at > start, RUNS.c.run_at <= end
    )
    parts = [later.where(text(which)).limit(DELAYED) for which in (UNKEYED, KEYED, RATE_WAITS)]
    times: dict[str, list[datetime]] = defaultdict(list)
    is_cut = False
    for statement in first_due(reader, parts, DELAYED):
        rows = reader.rows(statement)
        is_cut = is_cut or len(rows) == DELAYED
        for row in rows:
            times[row.job_type].append(row.run_at)
    for task, found in sorted(times.items(), key=lambda each: min(each[1])):
        yield Delayed(task, Count(len(found), is_cut), min(found), max(found))


def _collisions(lanes: Sequence[Lane], workers: int) -> Iterator[Collision]:
    """Yield which definitions begin at once, more than *workers*; of many groups the largest."""
    names: dict[datetime, list[str]] = defaultdict(list)
    for lane in lanes:
        for piece in lane.of("planned"):
            names[piece.start].append(lane.name)
    times: dict[tuple[str, ...], list[datetime]] = defaultdict(list)
    for at, found in sorted(names.items()):
        if len(found) > workers:
            times[tuple(sorted(found))].append(at)
    several = sorted(times.items(), key=lambda each: (-len(each[0]), each[1]))
    for group, moments in sorted(several[:COLLISIONS], key=lambda each: each[1]):
        yield Collision(moments[0], group, len(moments), moments[-1])


def clock_changes(zones: Iterable[str], start: datetime, end: datetime) -> Iterator[ClockChange]:
    """Yield the changes of the clocks in *zones*: they come at a quarter of an hour."""
    quarter = timedelta(minutes=15)
    for name in sorted(zones):
        try:
            zone = parse_zone(name)
        except ScheduleError:  # Nothing is to come in a zone that is not there.
            continue
        at = start.replace(minute=start.minute // 15 * 15, second=0, microsecond=0)
        while (at := at + quarter) <= end:
            if change := _offset(zone, at) - _offset(zone, at - quarter):
                yield ClockChange(at, name, change)


def _offset(zone: tzinfo, moment: datetime) -> int:
    offset = moment.astimezone(zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())
