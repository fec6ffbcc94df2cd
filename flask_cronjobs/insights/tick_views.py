"""Ticks for people: the activity of a day, the gaps, and the ticks themselves."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Row, func, literal_column, select, text

from ..core.ticks import SEEN_AFTER_SECONDS, TICK_COUNTS
from ..db.dialect import Dialect
from .reader import NUMBER, TICKS, Count, Page, Source, number_of, page_of, reading


class Bucket(NamedTuple):
    """The work of the ticks that started in one hour.

    :ivar start: the beginning of the hour, in UTC.
    """

    start: datetime
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0
    ticks: int = 0


_SHOWN = (
    *("id", "worker", "host", "pid", "started_at", "seen_at", "finished_at", "clock_offset"),
    *TICK_COUNTS,
)
_HOURS = 24
_SUMMED = Bucket._fields[1:-1]


def read_activity(source: Source) -> tuple[Bucket, ...]:
    """Return the work of the last 24 hours' ticks by the hour in which they began, oldest first.

    It sums the counts that ticks record, so the cost does not depend on the number of runs.
    """
    with reading(source) as reader:
        last = reader.now.astimezone(timezone.utc).replace(minute=0, second=0, microsecond=0)
        first = last - timedelta(hours=_HOURS - 1)
        hour = literal_column(f"{reader.dialect.epoch('started_at')} / 3600", BigInteger)
        sums = (func.sum(TICKS.c[name]).label(name) for name in _SUMMED)
        rows = reader.rows(
            select(hour.label("hour"), *sums, func.count().label("ticks"))
            .where(TICKS.c.started_at >= first)
            .group_by(hour)
        )
    counts_by_hour = {int(row.hour): map(int, row[1:]) for row in rows}
    starts = (first + timedelta(hours=number) for number in range(_HOURS))
    return tuple(
        Bucket(start, *counts_by_hour.get(int(start.timestamp()) // 3600, ())) for start in starts
    )


def did_its_work(d: Dialect) -> ColumnElement[Any]:
    """Return the condition that a tick recorded its slots: it finished or was seen again.

    A tick that fails is neither finished nor seen again after its start.
    """
    is_seen_again = f"{d.epoch('seen_at')} > {d.epoch('started_at')} + {SEEN_AFTER_SECONDS}"
    return literal_column(f"(finished_at IS NOT NULL OR {is_seen_again})")


class Gap(NamedTuple):
    """A time without a tick that did its work; *end* is None if there has been none since."""

    start: datetime
    end: datetime | None


_GAPS = 50


def list_gaps(source: Source) -> Page[Gap]:
    """Return up to 50 gaps longer than ``CRONJOBS_HEALTH_TICK_AGE``, newest first.

    A gap is a time in which no tick did its work. Only the ticks of the last day are kept.
    """
    with reading(source) as reader:
        d, age = reader.dialect, reader.state.settings.health_tick_age
        order = TICKS.c.started_at, TICKS.c.id
        before = func.max(TICKS.c.seen_at).over(order_by=order, rows=(None, -1)).label("before")
        works = did_its_work(d)
        ticks = select(TICKS.c.started_at, before).where(works).subquery()
        too_long = f"{d.epoch('started_at')} - {d.epoch('before')} > :age"
        rows = reader.rows(
            select(ticks.c.before, ticks.c.started_at, NUMBER)
            .where(text(too_long).bindparams(age=age))
            .order_by(ticks.c.started_at.desc())
            .limit(_GAPS)
        )
        last = reader.value(select(func.max(TICKS.c.seen_at)).where(works))
        now = reader.now
    gaps, number = [Gap(row.before, row.started_at) for row in rows], number_of(rows)
    if isinstance(last, datetime) and (now - last).total_seconds() > age:
        gaps, number = [Gap(last, None), *gaps], Count(number.value + 1)
    return Page(gaps, None, now, number)


def list_ticks(source: Source, limit: int = 20, before: int | None = None) -> Page[Row[Any]]:
    """Return the latest ticks with their hosts, times and work, newest first.

    :param before: return only ticks before the tick with this id.
    """
    ticks = select(*(TICKS.c[name] for name in _SHOWN))
    newest = TICKS.c.started_at, TICKS.c.id
    with reading(source) as reader:
        return page_of(reader, ticks, limit, newest=newest, before=before)
