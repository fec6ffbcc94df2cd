"""The latest ticks, and what the ticks of the last day did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import ColumnElement, Integer, Row, cast, func, literal, select

from .reader import TICKS, Reader, Source, reading


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


@dataclass(frozen=True, slots=True)
class TickView:
    """One tick: where and when it ran, and what it did."""

    id: int
    worker: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    finished_at: datetime | None
    clock_offset: float | None
    recorded: int
    skipped: int
    reclaimed: int
    succeeded: int
    failed: int
    dead: int
    cancelled: int
    released: int
    lost: int
    pruned: int


_HOURS = 24
_SUMMED = ("succeeded", "failed", "dead", "cancelled", "skipped")


def activity(source: Source) -> tuple[Bucket, ...]:
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


def _epoch_hour(reader: Reader) -> ColumnElement[int]:
    if reader.sqlite:
        seconds: ColumnElement[Any] = func.strftime("%s", TICKS.c.started_at)
        return cast(seconds, Integer) // literal(3600, Integer)
    return cast(func.floor(func.extract("epoch", TICKS.c.started_at) / 3600), Integer)


def _bucket(start: datetime, row: Row[Any] | None) -> Bucket:
    if row is None:
        return Bucket(start)
    return Bucket(start, **{name: int(getattr(row, name)) for name in (*_SUMMED, "ticks")})


def ticks(source: Source, limit: int = 20) -> tuple[TickView, ...]:
    """Return the latest ticks, newest first."""
    names = tuple(TickView.__dataclass_fields__)
    statement = (
        select(*(TICKS.c[name] for name in names))
        .order_by(TICKS.c.started_at.desc(), TICKS.c.id.desc())
        .limit(limit)
    )
    with reading(source) as reader:
        rows = reader.rows(statement)
    return tuple(TickView(**{name: getattr(row, name) for name in names}) for row in rows)
