"""What needs a person, and what happened lately: groups, orphans, effects, ticks, the last day."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    cast,
    func,
    literal,
    select,
    text,
    union_all,
)

from ..models.tables import DEAD, FREE, KEYED, OPEN_EFFECT
from ..store.operations import doubtful
from .health import capped, count_of
from .reader import EFFECTS, RUNS, TICKS, Reader, Source, reading
from .views import Bucket, Count, DeadGroup, EffectView, Orphan, TickView

#: How many dead runs, the newest, `dead_groups` looks through.
DEAD_LOOKED_AT = 10_000
#: How many waiting runs `orphans` looks through, those that are claimed first.
WAITING_LOOKED_AT = 100_000
_GROUPS = 50
_NAMES = 10_000
_HOURS = 24


def dead_groups(source: Source) -> tuple[DeadGroup, ...]:
    """Dead runs by task and type of error, the group with the newest first; at most 50 groups."""
    with reading(source) as reader:
        newest = (
            select(RUNS.c.id, RUNS.c.job_type, RUNS.c.error_type, RUNS.c.finished_at)
            .where(text(DEAD))
            .order_by(RUNS.c.finished_at.desc())
            .limit(DEAD_LOOKED_AT)
            .subquery()
        )
        rows = reader.rows(
            select(
                newest.c.job_type,
                newest.c.error_type,
                func.count().label("number"),
                func.max(newest.c.finished_at).label("newest"),
                func.max(newest.c.id).label("sample"),
            )
            .group_by(newest.c.job_type, newest.c.error_type)
            .order_by(func.max(newest.c.finished_at).desc())
            .limit(_GROUPS)
        )
    full = sum(row.number for row in rows) >= DEAD_LOOKED_AT
    return tuple(
        DeadGroup(row.job_type, row.error_type, Count(row.number, full), row.newest, row.sample)
        for row in rows
    )


def orphans(source: Source) -> tuple[Orphan, ...]:
    """Task names in waiting runs that this app's code does not declare; at most 50."""
    arms = [
        select(RUNS.c.job_type, RUNS.c.run_at).where(text(part)).limit(WAITING_LOOKED_AT)
        for part in (FREE, KEYED)
    ]
    either = union_all(*(select(arm.subquery()) for arm in arms)).subquery()
    number = func.count().label("number")
    statement = (
        select(either.c.job_type, number, func.min(either.c.run_at).label("oldest"))
        .group_by(either.c.job_type)
        .order_by(number.desc(), either.c.job_type)
        .limit(_NAMES)
    )
    with reading(source) as reader:
        # The declared ones go here, not there: a long NOT IN would be compared with each row.
        known = reader.state.registry.tasks
        rows = [row for row in reader.rows(statement) if row.job_type not in known]
    return tuple(
        Orphan(row.job_type, Count(row.number, row.number >= WAITING_LOOKED_AT), row.oldest)
        for row in rows[:_GROUPS]
    )


def activity(source: Source) -> tuple[Bucket, ...]:
    """What the ticks of the last 24 hours did, by the hour in which each began, oldest first.

    Summed from the ticks' own counts, so it costs the same however many runs there are.
    """
    with reading(source) as reader:
        last = reader.now.astimezone(timezone.utc).replace(minute=0, second=0, microsecond=0)
        first = last - timedelta(hours=_HOURS - 1)
        hour = _epoch_hour(reader)
        rows = reader.rows(
            select(
                hour.label("hour"),
                func.sum(TICKS.c.succeeded).label("succeeded"),
                func.sum(TICKS.c.failed).label("failed"),
                func.sum(TICKS.c.dead).label("dead"),
                func.sum(TICKS.c.cancelled).label("cancelled"),
                func.sum(TICKS.c.skipped).label("skipped"),
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
    return Bucket(
        start=start,
        succeeded=int(row.succeeded),
        failed=int(row.failed),
        dead=int(row.dead),
        cancelled=int(row.cancelled),
        skipped=int(row.skipped),
        ticks=int(row.ticks),
    )


def ticks(source: Source, limit: int = 20) -> tuple[TickView, ...]:
    """The latest ticks, newest first."""
    names = tuple(TickView.__dataclass_fields__)
    statement = (
        select(*(TICKS.c[name] for name in names))
        .order_by(TICKS.c.started_at.desc(), TICKS.c.id.desc())
        .limit(limit)
    )
    with reading(source) as reader:
        rows = reader.rows(statement)
    return tuple(TickView(**{name: getattr(row, name) for name in names}) for row in rows)


def effects(
    source: Source, *, open_only: bool = False, before: int | None = None, limit: int = 50
) -> tuple[EffectView, ...]:
    """Effects, newest first.

    :param open_only: leave out what is done: so what is being done, or in doubt.
    :param before: only those with a smaller id, for paging.
    """
    with reading(source) as reader:
        statement = select(EFFECTS, doubtful(reader.now).label("doubtful"))
        if open_only:
            statement = statement.where(text(OPEN_EFFECT))
        if before is not None:
            statement = statement.where(EFFECTS.c.id < before)
        rows = reader.rows(statement.order_by(EFFECTS.c.id.desc()).limit(limit))
    return tuple(
        EffectView(
            id=row.id,
            key=row.key,
            state="in_doubt" if row.doubtful else row.state,
            run_id=row.run_id,
            worker=row.locked_by,
            created_at=row.created_at,
            done_at=row.done_at,
        )
        for row in rows
    )


def doubts(source: Source) -> Count:
    """How many effects are in doubt, up to a cap."""
    with reading(source) as reader:
        found = select(EFFECTS.c.id).where(text(OPEN_EFFECT), doubtful(reader.now))
        return count_of(reader.rows(select(capped(found)))[0][0])
