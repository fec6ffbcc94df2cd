"""The health of the jobs: the verdict and the figures of the overview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, Integer, literal, select, text

from ..config import Settings
from ..models.conditions import DEAD, RUNNING, STOPS
from .activity import did_its_work
from .counts import Count, capped, count_of
from .effects import doubts
from .humanize import ago, duration, plural, seconds_since
from .late import Late, late_definitions
from .missed import Missed, missed_slots
from .pauses import PauseView, pauses
from .reader import RUNS, TICKS, Query, Reader, Source, reading
from .waiting import Waiting, handed, oldest_due, waiting_for_us, waiting_groups

#: ``ok``; ``never``: there was no tick yet; ``late``: the last tick was too long ago;
#: ``overdue``: ticks come, but runnable work, or a slot, has waited too long.
HealthStatus: TypeAlias = Literal["ok", "never", "late", "overdue"]
#: How the verdict looks: ``bad`` if it is not ok, ``warn`` if something needs a look.
VerdictTone: TypeAlias = Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether ticks come and work is claimed in time.

    :ivar word: the health status.
    :ivar sentence: the same for people, such as "Last tick 12 s ago from web-1".
    :ivar now: the database's now.
    :ivar last_tick_at: when a tick that did its work was last seen alive.
    :ivar age: seconds since then.
    :ivar oldest: for how many seconds the oldest runnable run has been due, of the tasks that this
        app's code declares.
    :ivar late: definitions whose slots no tick records.
    :ivar failing: whether ticks begin and do not do their work.
    :ivar pauses: the tasks and queues that are paused. Their runs do not count as overdue.
    """

    word: HealthStatus
    sentence: str
    now: datetime
    last_tick_at: datetime | None = None
    age: float | None = None
    host: str | None = None
    worker: str | None = None
    oldest: float | None = None
    late: Late | None = None
    failing: bool = False
    pauses: tuple[PauseView, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the status is ``ok``."""
        return self.word == "ok"


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the overview.

    :ivar overdue: runnable runs due for longer than ``CRONJOBS_HEALTH_OVERDUE``, without those that
        wait for a concurrency key.
    :ivar oldest: for how many seconds the oldest runnable run has been due; None if none is.
    :ivar stale: running runs whose lease ran out.
    :ivar dead: runs that ended dead in the last 24 hours.
    :ivar missed: slots that were missed in the last 24 hours.
    :ivar doubts: effects in doubt.
    :ivar stops: dead runs behind which a strict order stands still.
    :ivar handed: runs that wait in the brokers of engines; None if there are no engines.
    """

    overdue: Count
    oldest: float | None
    running: Count
    stale: Count
    dead: Count
    missed: Missed | None
    doubts: Count
    stops: Count
    handed: Count | None = None


#: How many of the latest ticks are searched for the one that was seen alive last.
_RECENT_TICKS = 100


def verdict(source: Source) -> Verdict:
    """Return whether ticks come and runnable work is claimed in time."""
    with reading(source) as reader:
        paused = pauses(reader)
        return _verdict(reader, oldest_due(reader, waiting_groups(reader), paused), paused)


def verdict_and_figures(
    source: Source, groups: Sequence[Waiting] | None = None
) -> tuple[Verdict, Figures]:
    """Return the verdict and the figures, in fewer statements than apart.

    :param groups: what `waiting_groups` found, if that was read before.
    """
    with reading(source) as reader:
        paused = pauses(reader)
        found = waiting_groups(reader) if groups is None else groups
        oldest = oldest_due(reader, found, paused)
        return _verdict(reader, oldest, paused), _figures(reader, oldest, paused)


def tone(verdict: Verdict, figures: Figures) -> VerdictTone:
    """Return ``bad`` if unhealthy, ``warn`` if something needs a look, else ``good``."""
    if not verdict.ok:
        return "bad"
    return "warn" if _worries(verdict, figures) else "good"


def headline(verdict: Verdict, figures: Figures) -> str:
    """Return the verdict in a few words."""
    if verdict.word != "ok":
        if verdict.word == "overdue" and verdict.late is not None:
            return f"{plural(verdict.late.count.value, 'schedule')} without a tick that runs it"
        return {
            "never": "No tick has done its work yet" if verdict.failing else "No tick has run yet",
            "late": "Ticks fail" if verdict.failing else "Ticks have stopped",
            "overdue": "Work is waiting too long",
        }[verdict.word]
    worries = _worries(verdict, figures)
    return f"Ticks are running, but {', and '.join(worries)}" if worries else "All is well"


def _worries(verdict: Verdict, figures: Figures) -> list[str]:
    worries: list[str] = []
    if figures.dead:
        worries.append(f"{figures.dead.of('run')} ended dead in the last 24 h")
    if figures.stale:
        worries.append("a worker was lost")
    if figures.stops:
        worries.append(f"strict order is stopped by {figures.stops.of('dead run')}")
    if figures.missed:
        worries.append(str(figures.missed))
    if len(verdict.pauses) > 1:
        worries.append(f"{len(verdict.pauses)} tasks and queues are paused")
    return worries + [str(paused) for paused in verdict.pauses[:1] if len(verdict.pauses) == 1]


def _verdict(reader: Reader, oldest: datetime | None, paused: tuple[PauseView, ...]) -> Verdict:
    # One from the future began while the database's clock was ahead.
    works = select(TICKS).where(did_its_work(reader), TICKS.c.started_at <= reader.now)
    recent = works.order_by(TICKS.c.started_at.desc()).limit(_RECENT_TICKS).subquery()
    rows = reader.rows(select(recent).order_by(recent.c.seen_at.desc()).limit(1))
    due_for = _age(reader.now, oldest)
    if not rows:
        failing = _failing(reader, None)
        what = "Ticks begin, but none has done its work yet" if failing else "No tick has run yet"
        return Verdict("never", what, reader.now, oldest=due_for, failing=failing, pauses=paused)
    tick = rows[0]
    age = _age(reader.now, tick.seen_at) or 0.0
    late = late_definitions(reader)
    status = _status(age, due_for, late, reader.state.settings)
    failing = status == "late" and _failing(reader, tick.seen_at)
    return Verdict(
        word=status,
        sentence=_sentence(status, age, tick.host, due_for, late, failing),
        now=reader.now,
        late=late,
        failing=failing,
        last_tick_at=tick.seen_at,
        age=age,
        host=tick.host,
        worker=tick.worker,
        oldest=due_for,
        pauses=paused,
    )


def _age(now: datetime, moment: datetime | None) -> float | None:
    return None if moment is None else max(0.0, seconds_since(moment, now))


def _failing(reader: Reader, since: datetime | None) -> bool:
    """Return whether a tick has begun after *since* that did not do its work."""
    begun = select(TICKS.c.id).where(~did_its_work(reader)).limit(1)
    return bool(reader.rows(begun if since is None else begun.where(TICKS.c.started_at > since)))


def _status(
    age: float, oldest: float | None, late: Late | None, settings: Settings
) -> HealthStatus:
    if age > settings.health_tick_age:
        return "late"
    if late is not None or (oldest is not None and oldest > settings.health_overdue):
        return "overdue"
    return "ok"


def _sentence(
    status: HealthStatus,
    age: float,
    host: str,
    oldest: float | None,
    late: Late | None,
    failing: bool,
) -> str:
    tick = f"Last tick {ago(age)} from {host}"
    if status == "late" and failing:
        return f"{tick}: those since have begun, but failed"
    if status == "late":
        return f"{tick}: ticks have stopped"
    if status == "overdue" and late is not None:
        return f"{tick}, but {late}"
    if status == "overdue" and oldest is not None:
        return f"{tick}, but work has been waiting for {duration(oldest)}"
    return tick


def _figures(reader: Reader, oldest: datetime | None, paused: tuple[PauseView, ...]) -> Figures:
    now = reader.now
    long_ago = now - timedelta(seconds=reader.state.settings.health_overdue)
    overdue: ColumnElement[int] = literal(0, Integer)
    if oldest is not None and oldest <= long_ago:
        some, *more = map(capped, waiting_for_us(reader, long_ago, paused))
        overdue = sum(more, some)
    engines = bool(reader.state.settings.executors)
    row = reader.rows(
        select(
            overdue.label("overdue"),
            *([capped(handed(now)).label("handed")] if engines else []),
            capped(_some(text(RUNNING))).label("running"),
            capped(_some(text(RUNNING), RUNS.c.locked_until <= now)).label("stale"),
            capped(_some(text(DEAD), RUNS.c.finished_at >= now - timedelta(days=1))).label("dead"),
            doubts(now).label("doubts"),
            capped(_some(text(STOPS))).label("stops"),
        )
    )[0]
    return Figures(
        overdue=count_of(row.overdue),
        oldest=_age(now, oldest),
        running=count_of(row.running),
        stale=count_of(row.stale),
        dead=count_of(row.dead),
        missed=missed_slots(reader),
        doubts=count_of(row.doubts),
        stops=count_of(row.stops),
        handed=count_of(row.handed) if engines else None,
    )


def _some(*conditions: ColumnElement[bool] | Any) -> Query:
    return select(literal(1)).select_from(RUNS).where(*conditions)
