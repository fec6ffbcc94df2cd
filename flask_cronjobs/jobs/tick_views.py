"""What pages and commands show of ticks: the latest, the gaps between, and the sums by the hour."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)

from ..db.dialect import dialect_of
from .pruning import behind
from .reader import TICKS, Page, Reader, Source, cut_page, reading


@dataclass(frozen=True, slots=True)
class Bucket:
    """What the ticks that started in one hour did.

    :ivar start: when the hour began, in UTC.
    """

    start: datetime
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0
    ticks: int = 0


#: What a tick counts, in the order in which it does it.
TICK_COUNTS = (
    *("recorded", "skipped", "reclaimed", "succeeded", "failed", "dead"),
    *("cancelled", "released", "snoozed", "lost", "pruned"),
)
_SHOWN = (
    *("id", "worker", "host", "pid", "started_at", "seen_at", "finished_at", "clock_offset"),
    *TICK_COUNTS,
)
_HOURS = 24
_SUMMED = ("succeeded", "failed", "dead", "cancelled", "skipped")


def read_activity(source: Source) -> tuple[Bucket, ...]:
    """Return what the ticks of the last 24 hours did, by the hour they began in, oldest first.

    Sums the counts that ticks record, so the cost does not depend on the number of runs.
    """
    with reading(source) as reader:
        last = reader.now.astimezone(timezone.utc).replace(minute=0, second=0, microsecond=0)
        first = last - timedelta(hours=_HOURS - 1)
        hour = _epoch_hour(reader)
        rows = reader.rows(
            select(
                hour.label("hour"),
                *(func.sum(TICKS.c[name]).label(name) for name in _SUMMED),
                func.count().label("ticks"),
            )
            .where(TICKS.c.started_at >= first)
            .group_by(hour)
        )
    found = {int(row.hour): row for row in rows}
    starts = (first + timedelta(hours=number) for number in range(_HOURS))
    return tuple(_bucket(start, found.get(int(start.timestamp()) // 3600)) for start in starts)


def seconds_unpruned(reader: Reader) -> float:
    """Return for how many seconds the oldest row has been past its retention."""
    state = reader.state
    return behind(reader.rows, dialect_of(state.engine), state.settings)


def _epoch_hour(reader: Reader) -> ColumnElement[int]:
    return literal_column(f"{reader.dialect.epoch('started_at')} / 3600", BigInteger)


def _epoch(reader: Reader, column: str) -> ColumnElement[int]:
    """Return SQL for a time in whole seconds."""
    return literal_column(reader.dialect.epoch(column), BigInteger)


def did_its_work(reader: Reader) -> ColumnElement[bool]:
    """Return the condition that a tick recorded its slots: it finished, or its workers were seen.

    A tick that fails begins, and is neither finished nor seen again.
    """
    seen = _epoch(reader, "seen_at") > _epoch(reader, "started_at") + 1
    return or_(TICKS.c.finished_at.is_not(None), seen)


def _bucket(start: datetime, row: Row[Any] | None) -> Bucket:
    if row is None:
        return Bucket(start)
    return Bucket(start, **{name: int(getattr(row, name)) for name in (*_SUMMED, "ticks")})


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a tick that did its work; *end* is None if there has been none since."""

    start: datetime
    end: datetime | None


_GAPS = 50


def list_gaps(source: Source) -> tuple[Gap, ...]:
    """Return when no tick came for ``CRONJOBS_HEALTH_TICK_AGE``, newest first; at most 50.

    This looks at the ticks that are kept, those of the last day.
    """
    with reading(source) as reader:
        age = reader.state.settings.health_tick_age
        seen = (
            func.max(TICKS.c.seen_at)
            .over(order_by=(TICKS.c.started_at, TICKS.c.id), rows=(None, -1))
            .label("before")
        )
        each = select(TICKS.c.started_at, seen).where(did_its_work(reader)).subquery()
        wait = _epoch(reader, "started_at") - _epoch(reader, "before")
        found = reader.rows(
            select(each.c.before, each.c.started_at)
            .where(wait > age)
            .order_by(each.c.started_at.desc())
            .limit(_GAPS)
        )
        last = reader.value(select(func.max(TICKS.c.seen_at)).where(did_its_work(reader)))
        now = reader.now
    over = [Gap(row.before, row.started_at) for row in found]
    if isinstance(last, datetime) and (now - last).total_seconds() > age:
        over.insert(0, Gap(last, None))
    return tuple(over)


def list_ticks(source: Source, limit: int = 20, before: int | None = None) -> Page[Row[Any]]:
    """Return the latest ticks, newest first: where and when they ran, and what they did.

    :param before: only ticks before the one with this id.
    """
    statement = (
        select(*(TICKS.c[name] for name in _SHOWN))
        .order_by(TICKS.c.started_at.desc(), TICKS.c.id.desc())
        .limit(limit + 1)
    )
    if before is not None:
        place = tuple_(TICKS.c.started_at, TICKS.c.id)
        cursor = select(TICKS.c.started_at, TICKS.c.id).where(TICKS.c.id == before)
        statement = statement.where(place < cursor.scalar_subquery())
    with reading(source) as reader:
        return cut_page(reader.rows(statement), limit, reader.now)
