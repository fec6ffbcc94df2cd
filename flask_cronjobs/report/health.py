"""The health of the jobs: the verdict and the figures of the overview."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy import ColumnElement, func, literal, select, text, union_all

from ..config import Settings
from ..models.tables import DEAD, FREE, KEYED, RUNNING
from .counts import Count, capped, count_of
from .humanize import ago, duration, seconds_since
from .reader import RUNS, TICKS, Query, Reader, Source, reading

#: ``ok``; ``never``: there was no tick yet; ``late``: the last tick was too long ago;
#: ``overdue``: ticks come, but runnable work has waited too long.
HealthStatus: TypeAlias = Literal["ok", "never", "late", "overdue"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether ticks come and work is claimed in time.

    :ivar word: the health status.
    :ivar sentence: the same for people, such as "Last tick 12 s ago from web-1".
    :ivar now: the database's now.
    :ivar last_tick_at: when a tick was last seen alive.
    :ivar age: seconds since then.
    :ivar oldest: for how many seconds the oldest runnable run has been due.
    """

    word: HealthStatus
    sentence: str
    now: datetime
    last_tick_at: datetime | None = None
    age: float | None = None
    host: str | None = None
    worker: str | None = None
    oldest: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the status is ``ok``."""
        return self.word == "ok"


@dataclass(frozen=True, slots=True)
class Figures:
    """The four figures of the overview.

    :ivar overdue: runnable runs due for longer than ``CRONJOBS_HEALTH_OVERDUE``, without those that
        wait for a concurrency key.
    :ivar oldest: for how many seconds the oldest runnable run has been due; None if none is.
    :ivar stale: running runs whose lease ran out.
    :ivar dead: runs that ended dead in the last 24 hours.
    """

    overdue: Count
    oldest: float | None
    running: Count
    stale: Count
    dead: Count


#: How many of the latest ticks are searched for the one that was seen alive last.
_RECENT_TICKS = 100


def verdict(source: Source) -> Verdict:
    """Return whether ticks come and runnable work is claimed in time."""
    with reading(source) as reader:
        return _verdict(reader, _oldest_due(reader))


def verdict_and_figures(source: Source) -> tuple[Verdict, Figures]:
    """Return the verdict and the figures, in fewer statements than apart."""
    with reading(source) as reader:
        oldest = _oldest_due(reader)
        return _verdict(reader, oldest), _figures(reader, oldest)


def waiting(before: datetime) -> tuple[Query, Query]:
    """Return statements for runnable runs due *before*: without a concurrency key, and with one.

    These are two statements, since each has its own partial index. Runs whose key is at its limit
    are left out, since no tick can run them.
    """
    free = select(RUNS.c.id, RUNS.c.run_at).where(text(FREE), RUNS.c.run_at <= before)
    return free, _keyed(before)


def _keyed(before: datetime) -> Query:
    full = (
        select(RUNS.c.concurrency_key.label("key"), func.count().label("taken"))
        .where(RUNS.c.concurrency_share.is_not(None))
        .group_by(RUNS.c.concurrency_key)
        .cte("taken")
    )
    # The condition of the partial index must name no table, so this is a subquery, not a join.
    taken = select(full.c.taken).where(full.c.key == RUNS.c.concurrency_key).scalar_subquery()
    return select(RUNS.c.id, RUNS.c.run_at).where(
        text(KEYED),
        RUNS.c.run_at <= before,
        func.coalesce(taken, 0) < RUNS.c.concurrency_limit,
    )


def _oldest_due(reader: Reader) -> datetime | None:
    either = union_all(*waiting(reader.now)).subquery()
    return cast("datetime | None", reader.value(select(func.min(either.c.run_at))))


def _verdict(reader: Reader, oldest: datetime | None) -> Verdict:
    recent = select(TICKS).order_by(TICKS.c.started_at.desc()).limit(_RECENT_TICKS).subquery()
    rows = reader.rows(select(recent).order_by(recent.c.seen_at.desc()).limit(1))
    due_for = _age(reader.now, oldest)
    if not rows:
        return Verdict("never", "No tick has run yet", reader.now, oldest=due_for)
    tick = rows[0]
    age = _age(reader.now, tick.seen_at) or 0.0
    status = _status(age, due_for, reader.state.settings)
    return Verdict(
        word=status,
        sentence=_sentence(status, age, tick.host, due_for),
        now=reader.now,
        last_tick_at=tick.seen_at,
        age=age,
        host=tick.host,
        worker=tick.worker,
        oldest=due_for,
    )


def _age(now: datetime, moment: datetime | None) -> float | None:
    return None if moment is None else max(0.0, seconds_since(moment, now))


def _status(age: float, oldest: float | None, settings: Settings) -> HealthStatus:
    if age > settings.health_tick_age:
        return "late"
    if oldest is not None and oldest > settings.health_overdue:
        return "overdue"
    return "ok"


def _sentence(status: HealthStatus, age: float, host: str, oldest: float | None) -> str:
    tick = f"Last tick {ago(age)} from {host}"
    if status == "late":
        return f"{tick}: ticks have stopped"
    if status == "overdue" and oldest is not None:
        return f"{tick}, but work has been waiting for {duration(oldest)}"
    return tick


def _figures(reader: Reader, oldest: datetime | None) -> Figures:
    now = reader.now
    free, keyed = waiting(now - timedelta(seconds=reader.state.settings.health_overdue))
    row = reader.rows(
        select(
            (capped(free) + capped(keyed)).label("overdue"),
            capped(_some(text(RUNNING))).label("running"),
            capped(_some(text(RUNNING), RUNS.c.locked_until <= now)).label("stale"),
            capped(_some(text(DEAD), RUNS.c.finished_at >= now - timedelta(days=1))).label("dead"),
        )
    )[0]
    return Figures(
        overdue=count_of(row.overdue),
        oldest=_age(now, oldest),
        running=count_of(row.running),
        stale=count_of(row.stale),
        dead=count_of(row.dead),
    )


def _some(*conditions: ColumnElement[bool] | Any) -> Query:
    return select(literal(1)).select_from(RUNS).where(*conditions)
