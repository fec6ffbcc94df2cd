"""What ran in the last hours and what will run in the next ones, a lane for each definition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import islice
from statistics import median
from typing import Any, Literal, TypeAlias

from sqlalchemy import Row, select, text

from ..errors import ScheduleError
from ..models.conditions import KEYED, SCHEDULED, UNKEYED
from ..schedule import Schedule
from ..schedule.cron_text import parse_zone
from .definitions.views import last_runs
from .reader import DEFINITIONS, RUNS, Count, Reader, Source, reading
from .runs.list import seconds_taken
from .waiting import first_due

#: How far back and ahead a page shows.
HOURS = timedelta(hours=12)
#: At most so many definitions, those that run next.
LANES = 60
#: Of each, so many of its latest runs.
RUNS_SHOWN = 50
#: Where more slots are to come, they are one band.
SLOTS_SHOWN = 24
#: At most so many delayed runs of one priority are read.
DELAYED = 500
#: At most so many moments at which several begin.
COLLISIONS = 10

#: What a piece of a lane is: a run that ended or runs, a slot that was missed or skipped, a run to
#: come, or a band of many of them.
Kind: TypeAlias = Literal["succeeded", "failed", "dead", "running", "missed", "planned", "band"]


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
    :ivar capped: whether older runs of the time that is shown are left out.
    """

    name: str
    task: str
    timezone: str
    pieces: tuple[Piece, ...]
    expected: float | None
    capped: bool

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
    """Several definitions that begin at the same moment."""

    at: datetime
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A moment at which the clocks of a zone change, by so many seconds."""

    at: datetime
    timezone: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Agenda:
    """What ran since *start*, and what will run until *end*.

    :ivar lanes: by when they run next.
    :ivar more: whether there are more definitions.
    :ivar workers: how many processes a tick runs; more definitions than that wait for each other.
    """

    start: datetime
    end: datetime
    now: datetime
    lanes: tuple[Lane, ...]
    more: bool
    delayed: tuple[Delayed, ...]
    collisions: tuple[Collision, ...]
    clock_changes: tuple[ClockChange, ...]
    workers: int


def read_agenda(source: Source, until: datetime | None = None) -> Agenda:
    """Return what ran in the last twelve hours and will run in the next ones.

    :param until: None: in twelve hours. At most a week from now.
    """
    with reading(source) as reader:
        now = reader.now.astimezone(timezone.utc)
        start, end = now - HOURS, min(until or now + HOURS, now + timedelta(days=7))
        found = _definitions(reader)
        ran = _ran(reader, [row.id for row in found[:LANES]])
        lanes = tuple(_lane(row, ran[row.id], start, now, end) for row in found[:LANES])
        workers = reader.state.settings.workers
        return Agenda(
            start=start,
            end=end,
            now=now,
            lanes=lanes,
            more=len(found) > LANES,
            delayed=tuple(_delayed(reader, end)),
            collisions=tuple(_collisions(lanes, workers)),
            clock_changes=tuple(find_clock_changes(lanes, start, end)),
            workers=workers,
        )


def _definitions(reader: Reader) -> Sequence[Row[Any]]:
    names = ("id", "name", "job_type", "schedule", "timezone", "next_run_at")
    return reader.rows(
        select(*(DEFINITIONS.c[name] for name in names))
        .where(text(SCHEDULED))
        .order_by(DEFINITIONS.c.next_run_at)
        .limit(LANES + 1)
    )


def _ran(reader: Reader, ids: Sequence[int]) -> dict[int, list[Row[Any]]]:
    """Return the latest runs of each definition, newest first."""
    found: dict[int, list[Row[Any]]] = defaultdict(list)
    for row in reader.rows(last_runs(reader, ids, RUNS_SHOWN)) if ids else ():
        found[row.definition_id].append(row)
    return found


def _lane(
    row: Row[Any], ran: Sequence[Row[Any]], start: datetime, now: datetime, end: datetime
) -> Lane:
    took = [
        seconds
        for run in ran
        if run.status == "succeeded"
        and (seconds := seconds_taken(run.status, run.started_at, run.finished_at)) is not None
    ]
    expected = median(took) if took else None
    past = [piece for run in reversed(ran) if (piece := _piece(run, now)) and piece.end >= start]
    coming = _coming(row, now, end, timedelta(seconds=expected or 0.0))
    capped = len(ran) == RUNS_SHOWN and ran[-1].scheduled_for > start
    pieces = (*past, *coming)
    return Lane(row.name, row.job_type, row.timezone, pieces, expected, capped)


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


def _delayed(reader: Reader, end: datetime) -> Iterator[Delayed]:
    """Yield the runs that wait for a time until *end*, also for a retry, by task."""
    later = select(RUNS.c.job_type, RUNS.c.run_at).where(
        RUNS.c.run_at > reader.now, RUNS.c.run_at <= end
    )
    parts = [later.where(text(which)).limit(DELAYED) for which in (UNKEYED, KEYED)]
    times: dict[str, list[datetime]] = defaultdict(list)
    capped = False
    for statement in first_due(reader, parts, DELAYED):
        rows = reader.rows(statement)
        capped = capped or len(rows) == DELAYED
        for row in rows:
            times[row.job_type].append(row.run_at)
    for task, found in sorted(times.items(), key=lambda each: min(each[1])):
        yield Delayed(task, Count(len(found), capped), min(found), max(found))


def _collisions(lanes: Sequence[Lane], workers: int) -> Iterator[Collision]:
    """Yield the moments at which more definitions begin than *workers*, the most first."""
    names: dict[datetime, list[str]] = defaultdict(list)
    for lane in lanes:
        for piece in lane.of("planned"):
            names[piece.start].append(lane.name)
    several = [(at, found) for at, found in names.items() if len(found) > workers]
    several.sort(key=lambda each: (-len(each[1]), each[0]))
    for at, found in sorted(several[:COLLISIONS]):
        yield Collision(at, tuple(sorted(found)))


def find_clock_changes(
    lanes: Sequence[Lane], start: datetime, end: datetime
) -> Iterator[ClockChange]:
    """Yield the changes of clocks in the zones of *lanes*."""
    for name in sorted({lane.timezone for lane in lanes}):
        try:
            zone = parse_zone(name)
        except ScheduleError:  # Nothing is to come in a zone that is not there.
            continue
        if change := _change(zone, start, end):
            yield ClockChange(change, name, _offset(zone, end) - _offset(zone, start))


def _change(zone: tzinfo, start: datetime, end: datetime) -> datetime | None:
    """Return the minute at which the clocks of *zone* change; None if they do not."""
    if _offset(zone, start) == _offset(zone, end):
        return None
    before, after = start.replace(second=0, microsecond=0), end
    while after - before > timedelta(minutes=1):
        middle = (before + (after - before) / 2).replace(second=0, microsecond=0)
        if middle == before:
            break
        if _offset(zone, middle) == _offset(zone, start):
            before = middle
        else:
            after = middle
    return after


def _offset(zone: tzinfo, moment: datetime) -> int:
    offset = moment.astimezone(zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())
