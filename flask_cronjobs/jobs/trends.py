"""This week against last: how long runs of a task took, by day, and what has become slower."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import dropwhile
from typing import Any

from sqlalchemy import ColumnElement, Row, case, func, select

from ..schedule.cron_text import parse_zone
from .history import Mark, counted, list_marks, percentile
from .humanize import duration, plural
from .reader import HOURS, Query, Reader, Source, readable, reading

#: How many days a page shows.
DAYS = 28
DAY, WEEK = timedelta(days=1), timedelta(days=7)
#: A task is slower if its median is so many times what it was, and so many seconds more.
FACTOR, SECONDS = 2.0, 0.1
#: Each day since then has so many times the old median, so that one odd day does not count.
_EACH_DAY = 1.5
#: Both before and since then, so many runs ended at least.
SAMPLES = 20
#: What stands for 0 s, to divide by.
_INSTANT = 0.001
#: From which factor on a week is called slower or faster than the one before.
_DIFFERENT = 1.25
#: By how much the mean of the last two days exceeds that of the twelve before, for a closer look.
_LOOK_AT = 1.5
_LOOK_EVERY = 300.0
#: At most so many tasks are looked at.
_TASKS = 50
#: Of so many tasks at most are there trends, and numbers of the last hour, the busiest first.
BUSIEST, _BUSIEST_HOUR = 200, 500


@dataclass(frozen=True, slots=True)
class Period:
    """What ended of a task in a week or on a day, by whole hours.

    :ivar p50: half of the runs took no longer, in seconds; None if none ended.
    :ivar p95: 95 of 100 took no longer.
    :ivar waited: 95 of 100 had waited no longer.
    """

    start: datetime
    ended: int
    dead: int
    p50: float | None
    p95: float | None
    waited: float | None
    took: Counter[int] = field(repr=False)

    def __str__(self) -> str:
        """Return the same for people."""
        if self.p50 is None or self.p95 is None:
            return "no runs"
        dead = f"{self.dead:,} dead" if self.dead else "none dead"
        took = f"median {duration(self.p50)}, 95 % within {duration(self.p95)}"
        return f"{plural(self.ended, 'run')}, {dead}, {took}"


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A task takes *factor* times as long since the day that began at *since*."""

    factor: float
    since: datetime

    def __str__(self) -> str:
        """Return the same for people."""
        day = f"{self.since:%a} {self.since.day} {self.since:%b}"
        return f"{self.factor:.1f} times slower since {day}"


@dataclass(frozen=True, slots=True)
class Trend:
    """How a task does.

    :ivar this_week: the last seven days.
    :ivar last_week: the seven days before.
    :ivar factor: how many times as long the median of this week is; None if few runs ended.
    :ivar slower: since when it has been slower, if it is.
    :ivar days: the last `DAYS`, oldest first, from the first on which a run ended; none in a list.
    :ivar marks: those within *days*, newest first.
    """

    task: str
    this_week: Period
    last_week: Period
    factor: float | None
    slower: Slowdown | None
    days: tuple[Period, ...] = ()
    marks: Sequence[Mark] = ()

    def __str__(self) -> str:
        """Return the same for people."""
        weeks = f"This week {self.this_week}; last week {self.last_week}"
        return f"{weeks}: {self.compared}." if self.compared else f"{weeks}."

    @property
    def compared(self) -> str:
        """How this week compares to the last, in a few words; empty if few runs ended."""
        if self.slower is not None or self.factor is None:
            return "" if self.slower is None else str(self.slower)
        if self.factor >= _DIFFERENT:
            return f"{self.factor:.1f} times slower"
        is_faster = self.factor <= 1 / _DIFFERENT
        return f"{1 / self.factor:.1f} times faster" if is_faster else "about as fast"


def read_trend(source: Source, task: str, zone: str | None = None) -> Trend:
    """Return how *task* did in the last `DAYS` days.

    :param zone: the time zone in which days begin; None: ``CRONJOBS_TIMEZONE``.
    """
    with reading(source) as reader:
        rows, days = _days(reader, task, zone)
        marks = list_marks(reader, since=days[0].start).rows if days else ()
        return _trend(task, rows, reader.now, slowdown(days), days=days, marks=marks)


def read_trends(source: Source) -> tuple[Trend, ...]:
    """Return how the `BUSIEST` tasks of the last two weeks did, the slower first."""
    with reading(source) as reader:
        recent = HOURS.c.hour >= reader.now - 2 * WEEK, HOURS.c.job_type != ""
        tasks: Query = select(HOURS.c.job_type).where(*recent).group_by(HOURS.c.job_type)
        most = tasks.order_by(func.sum(HOURS.c.ended).desc(), HOURS.c.job_type).limit(BUSIEST)
        by_task: dict[str, list[Row[Any]]] = defaultdict(list)
        for row in reader.rows(
            _hours(reader, *recent, HOURS.c.job_type.in_(select(most.subquery())))
        ):
            by_task[row.job_type].append(row)
        slower = slow_tasks(reader)
        found = [_trend(task, rows, reader.now, slower.get(task)) for task, rows in by_task.items()]
    return tuple(sorted(found, key=lambda each: (-(each.factor or 0.0), each.task)))


def _hours(reader: Reader, *which: ColumnElement[bool]) -> Any:
    """Return a SELECT of hours."""
    numbers = "ended", "dead", "took_seconds", "waited_seconds"
    columns = (HOURS.c[name] for name in ("hour", "job_type", *numbers))
    buckets = (readable(reader, HOURS.c[name]) for name in ("took", "waited"))
    return select(*columns, *buckets).where(*which)


def _days(
    reader: Reader, task: str, zone: str | None = None
) -> tuple[Sequence[Row[Any]], tuple[Period, ...]]:
    """Return the hours of *task*, and their days, from the first on which a run ended."""
    local = parse_zone(zone or reader.state.settings.timezone)
    today = reader.now.astimezone(local).date()
    starts = [datetime.combine(today - n * DAY, time(), local) for n in reversed(range(DAYS))]
    rows = reader.rows(_hours(reader, HOURS.c.job_type == task, HOURS.c.hour >= starts[0]))
    by_day: dict[date, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        by_day[row.hour.astimezone(local).date()].append(row)
    days = [_period(start, by_day[start.date()]) for start in starts]
    return rows, tuple(dropwhile(lambda day: not day.ended, days))


def _trend(
    task: str, rows: Sequence[Row[Any]], now: datetime, slower: Slowdown | None, **more: Any
) -> Trend:
    begins = now - WEEK
    this_week = _period(begins, [row for row in rows if row.hour >= begins])
    before = [row for row in rows if begins - WEEK <= row.hour < begins]
    last_week = _period(begins - WEEK, before)
    factor = None
    if min(this_week.ended, last_week.ended) >= SAMPLES:
        factor = (this_week.p50 or _INSTANT) / (last_week.p50 or _INSTANT)
    return Trend(task, this_week, last_week, factor, slower, **more)


def _period(start: datetime, rows: Sequence[Row[Any]]) -> Period:
    took = sum((counted(row.took) for row in rows), Counter[int]())
    waited = sum((counted(row.waited) for row in rows), Counter[int]())
    return Period(
        start=start,
        ended=sum(row.ended for row in rows),
        dead=sum(row.dead for row in rows),
        p50=percentile(took, 50),
        p95=percentile(took, 95),
        waited=percentile(waited, 95),
        took=took,
    )


def slowdown(days: Sequence[Period]) -> Slowdown | None:
    """Return since when a task has been slower, at the earliest; None if it has not, or few ended.

    :param days: oldest first.
    """
    for split in range(1, len(days)):
        before = sum((day.took for day in days[:split]), Counter[int]())
        since = sum((day.took for day in days[split:]), Counter[int]())
        if min(before.total(), since.total()) < SAMPLES or not days[split].ended:
            continue
        usual, now = percentile(before, 50) or _INSTANT, percentile(since, 50) or 0.0
        lasts = all(day.p50 is None or day.p50 >= _EACH_DAY * usual for day in days[split:])
        if lasts and now >= FACTOR * usual and now - usual >= SECONDS:
            return Slowdown(now / usual, days[split].start)
    return None


def slow_tasks(reader: Reader) -> Mapping[str, Slowdown]:
    """Return the tasks that have become slower within days, at most fifty.

    A process looks once in five minutes: the hours that this reads are an hour apart.
    """
    period = reader.now.timestamp() // _LOOK_EVERY
    found: dict[str, Slowdown] | None = reader.state.slow_tasks.get(period)
    if found is None:
        last = reader.value(select(func.max(HOURS.c.hour)))
        suspects = reader.rows(_suspects(last)) if isinstance(last, datetime) else ()
        looked = ((row.job_type, slowdown(_days(reader, row.job_type)[1])) for row in suspects)
        found = {name: slower for name, slower in looked if slower is not None}
        reader.state.slow_tasks.clear()
        reader.state.slow_tasks[period] = found
    return found


def _suspects(last: datetime) -> Query:
    """Return a SELECT of the tasks whose runs took longer of late, by the mean."""
    late = HOURS.c.hour > last - 2 * DAY

    def of(which: ColumnElement[bool], column: str) -> ColumnElement[float]:
        return func.sum(case((which, HOURS.c[column]), else_=0))

    ended, before = of(late, "ended"), of(~late, "ended")
    longer = of(late, "took_seconds") * before > (_LOOK_AT * of(~late, "took_seconds") * ended)
    return (
        select(HOURS.c.job_type)
        .where(HOURS.c.hour > last - 14 * DAY, HOURS.c.job_type != "")
        .group_by(HOURS.c.job_type)
        .having(ended >= SAMPLES, before >= SAMPLES, longer)
        .order_by(HOURS.c.job_type)
        .limit(_TASKS)
    )


def read_last_hour(source: Source) -> Sequence[Row[Any]]:
    """Return the last hour that is written, by task: of the 500 of which most runs ended."""
    with reading(source) as reader:
        last = select(func.max(HOURS.c.hour)).scalar_subquery()
        hours = _hours(reader, HOURS.c.hour == last, HOURS.c.job_type != "")
        busiest = hours.order_by(HOURS.c.ended.desc(), HOURS.c.job_type)
        return reader.rows(busiest.limit(_BUSIEST_HOUR))
