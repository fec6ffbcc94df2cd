"""How long the runs of a task took day by day, and which tasks have become slower."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from sqlalchemy import ColumnElement, case, func, select

from .history import counted, percentile
from .reader import HOURS, Query, Reader, Source, readable, reading, record

#: How many days a page shows.
DAYS = 28
DAY = timedelta(days=1)
#: A task is slower if its median is so many times what it was, and so many seconds more.
FACTOR, SECONDS = 2.0, 0.1
#: Each day since then has so many times the old median, so that one odd day does not count.
_EACH_DAY = 1.5
#: Both before and since then, so many runs ended at least.
SAMPLES = 20
#: By how much the mean of the last two days exceeds that of the twelve before, for a closer look.
_LOOK_AT = 1.5
_LOOK_EVERY = 300.0
#: At most so many tasks are looked at.
_TASKS = 50


@dataclass(frozen=True, slots=True)
class Day:
    """What ended of a task on one day, in UTC.

    :ivar p50: half of the runs took no longer, in seconds; None if none ended.
    :ivar p95: 95 of 100 took no longer.
    :ivar waited: 95 of 100 had waited no longer.
    """

    start: datetime
    ended: int = 0
    dead: int = 0
    p50: float | None = None
    p95: float | None = None
    waited: float | None = None
    took: Counter[int] = field(default_factory=Counter[int], repr=False)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A task takes *factor* times as long since the day that began at *since*."""

    factor: float
    since: datetime

    def __str__(self) -> str:
        """Return the same for people."""
        day = f"{self.since:%a} {self.since.day} {self.since:%b}"
        return f"{self.factor:.1f} times slower since {day}"


def read_days(source: Source, task: str) -> tuple[Day, ...]:
    """Return the last `DAYS` days of *task*, oldest first, from the first on which a run ended."""
    with reading(source) as reader:
        today = reader.now.astimezone(timezone.utc).replace(hour=0, minute=0, second=0)
        first = today.replace(microsecond=0) - (DAYS - 1) * DAY
        rows = reader.rows(_hours_of(reader, task, first))
    found = [_day(first + n * DAY, [row for row in rows if (row.hour - first).days == n])
             for n in range(DAYS)]  # fmt: skip
    begins = next((n for n, day in enumerate(found) if day.ended), DAYS)
    return tuple(found[begins:])


def _hours_of(reader: Reader, task: str, first: datetime) -> Query:
    return select(
        *(HOURS.c[name] for name in ("hour", "ended", "dead")),
        *(readable(reader, HOURS.c[name]) for name in ("took", "waited")),
    ).where(HOURS.c.job_type == task, HOURS.c.hour >= first)


def _day(start: datetime, rows: Sequence[Query]) -> Day:
    took = sum((counted(row.took) for row in rows), Counter[int]())
    waited = sum((counted(row.waited) for row in rows), Counter[int]())
    return Day(
        start=start,
        ended=sum(row.ended for row in rows),
        dead=sum(row.dead for row in rows),
        p50=percentile(took, 50),
        p95=percentile(took, 95),
        waited=percentile(waited, 95),
        took=took,
    )


def slowdown(days: Sequence[Day]) -> Slowdown | None:
    """Return since when a task has been slower, at the earliest; None if it has not, or few ended.

    :param days: oldest first.
    """
    for split in range(1, len(days)):
        before = sum((day.took for day in days[:split]), Counter[int]())
        since = sum((day.took for day in days[split:]), Counter[int]())
        if min(before.total(), since.total()) < SAMPLES or not days[split].ended:
            continue
        usual, now = percentile(before, 50) or 0.001, percentile(since, 50) or 0.0
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
        looked = ((row.job_type, slowdown(read_days(reader, row.job_type))) for row in suspects)
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


@dataclass(frozen=True, slots=True)
class HourOfTask:
    """What ended of a task in one hour, as `flask_cronjobs.models.JobHour`."""

    task: str
    took: Counter[int]
    took_seconds: float
    waited: Counter[int]
    waited_seconds: float


#: Of so many tasks at most, the busiest first.
_BUSIEST = 500


def read_last_hour(source: Source) -> tuple[HourOfTask, ...]:
    """Return the last hour that is written, by task: of the 500 of which most runs ended."""
    with reading(source) as reader:
        last = select(func.max(HOURS.c.hour)).scalar_subquery()
        rows = reader.rows(
            select(
                *(HOURS.c[name] for name in ("job_type", "took_seconds", "waited_seconds")),
                *(readable(reader, HOURS.c[name]) for name in ("took", "waited")),
            )
            .where(HOURS.c.hour == last, HOURS.c.job_type != "")
            .order_by(HOURS.c.ended.desc(), HOURS.c.job_type)
            .limit(_BUSIEST)
        )
    return tuple(
        record(HourOfTask, row, task=row.job_type, took=counted(row.took),
               waited=counted(row.waited)) for row in rows
    )  # fmt: skip
