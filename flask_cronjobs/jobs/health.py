"""The health of the jobs: the verdict and the figures of the overview."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Integer, literal, select, text

from ..models.conditions import DEAD, RUNNING, STOPS
from .effects import doubts
from .humanize import ago, duration, plural, seconds_since
from .needs import CHECK, Late, Missed, late_definitions, missed_slots
from .reader import RUNS, TICKS, Count, Query, Reader, Source, capped, count_of, reading
from .stalled import Stalled, stalled
from .ticks import did_its_work
from .waiting import (
    PauseView,
    Waiting,
    handed,
    list_pauses,
    oldest_due,
    waiting_for_us,
    waiting_groups,
)

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
    :ivar headline: the same in a few words; empty if the status is ``ok``.
    :ivar todo: what to do about it, if that is always the same.
    :ivar stalled: work that stands still, since what it waits for does not come.
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
    headline: str = ""
    todo: str = ""
    stalled: tuple[Stalled, ...] = ()

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
    :ivar handed: runs that wait in the brokers of executors; None if there are no executors.
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


def read_verdict(source: Source) -> Verdict:
    """Return whether ticks come and runnable work is claimed in time."""
    with reading(source) as reader:
        return _verdict(reader, waiting_groups(reader), list_pauses(reader))


def read_verdict_and_figures(
    source: Source, groups: Sequence[Waiting] | None = None
) -> tuple[Verdict, Figures]:
    """Return the verdict and the figures, in fewer statements than apart.

    :param groups: what `waiting_groups` found, if that was read before.
    """
    with reading(source) as reader:
        paused = list_pauses(reader)
        found = waiting_groups(reader) if groups is None else groups
        verdict = _verdict(reader, found, paused)
        return verdict, _figures(reader, verdict.oldest, paused)


def tone_of(verdict: Verdict, figures: Figures) -> VerdictTone:
    """Return ``bad`` if unhealthy, ``warn`` if something needs a look, else ``good``."""
    if not verdict.ok:
        return "bad"
    return "warn" if _worries(verdict, figures) else "good"


def headline_of(verdict: Verdict, figures: Figures) -> str:
    """Return the verdict in a few words."""
    if not verdict.ok:
        return verdict.headline
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
    worries += [each.what for each in verdict.stalled]
    if len(verdict.pauses) > 1:
        worries.append(f"{len(verdict.pauses)} tasks and queues are paused")
    return worries + [str(paused) for paused in verdict.pauses[:1] if len(verdict.pauses) == 1]


class _Trouble(NamedTuple):
    """What is wrong, so that the status is not ``ok``.

    :ivar what: the end of the sentence, after the tick.
    """

    word: HealthStatus
    headline: str
    what: str
    todo: str = ""


def _verdict(reader: Reader, groups: Sequence[Waiting], paused: tuple[PauseView, ...]) -> Verdict:
    # One from the future began while the database's clock was ahead.
    works = select(TICKS).where(did_its_work(reader.dialect), TICKS.c.started_at <= reader.now)
    recent = works.order_by(TICKS.c.started_at.desc()).limit(_RECENT_TICKS).subquery()
    rows = reader.rows(select(recent).order_by(recent.c.seen_at.desc()).limit(1))
    oldest = _age(reader.now, oldest_due(reader, groups, paused))
    if not rows:
        failing = _failing(reader, None)
        what = "Ticks begin, but none has done its work yet" if failing else "No tick has run yet"
        title = "No tick has done its work yet" if failing else what
        return Verdict(
            "never", what, reader.now, oldest=oldest, failing=failing, pauses=paused, headline=title
        )
    tick, age = rows[0], _age(reader.now, rows[0].seen_at) or 0.0
    is_late = age > reader.state.settings.health_tick_age
    failing = is_late and _failing(reader, tick.seen_at)
    late, still = late_definitions(reader), stalled(reader, groups, paused)
    found = list(_late(failing) if is_late else _overdue(reader, oldest, late, still))
    trouble = found[0] if found else _Trouble("ok", "", "")
    return Verdict(
        word=trouble.word,
        sentence=f"Last tick {ago(age)} from {tick.host}{trouble.what}",
        now=reader.now,
        late=late,
        failing=failing,
        last_tick_at=tick.seen_at,
        age=age,
        host=tick.host,
        worker=tick.worker,
        oldest=oldest,
        pauses=paused,
        headline=trouble.headline,
        todo=trouble.todo,
        stalled=still,
    )


def _late(failing: bool) -> Iterator[_Trouble]:
    if failing:
        yield _Trouble("late", "Ticks fail", ": those since have begun, but failed")
    yield _Trouble("late", "Ticks have stopped", ": ticks have stopped")


def _overdue(
    reader: Reader, oldest: float | None, late: Late | None, still: Sequence[Stalled]
) -> Iterator[_Trouble]:
    """Yield what is wrong though ticks come, the most urgent first."""
    if late is not None:
        title = f"{plural(late.count.value, 'schedule')} without a tick that runs it"
        todo = f"{CHECK} If no code should declare it any more, pause it."
        yield _Trouble("overdue", title, f", but {late}", todo)
    if oldest is not None and oldest > reader.state.settings.health_overdue:
        what = f", but work has been waiting for {duration(oldest)}"
        yield _Trouble("overdue", "Work is waiting too long", what)
    for each in still:
        if each.overdue:
            yield _Trouble("overdue", "Work stands still", f", but {each.what}", each.todo)


def _age(now: datetime, moment: datetime | None) -> float | None:
    return None if moment is None else max(0.0, seconds_since(moment, now))


def _failing(reader: Reader, since: datetime | None) -> bool:
    """Return whether a tick has begun after *since* that did not do its work."""
    begun = select(TICKS.c.id).where(~did_its_work(reader.dialect)).limit(1)
    return bool(reader.rows(begun if since is None else begun.where(TICKS.c.started_at > since)))


def _figures(reader: Reader, oldest: float | None, paused: tuple[PauseView, ...]) -> Figures:
    now, patience = reader.now, reader.state.settings.health_overdue
    long_ago = now - timedelta(seconds=patience)
    overdue: ColumnElement[int] = literal(0, Integer)
    if oldest is not None and oldest >= patience:
        some, *more = map(capped, waiting_for_us(reader, long_ago, paused))
        overdue = sum(more, some)
    executors = bool(reader.state.settings.executors)
    row = reader.rows(
        select(
            overdue.label("overdue"),
            *([capped(handed(now)).label("handed")] if executors else []),
            capped(_some(text(RUNNING))).label("running"),
            capped(_some(text(RUNNING), RUNS.c.locked_until <= now)).label("stale"),
            capped(_some(text(DEAD), RUNS.c.finished_at >= now - timedelta(days=1))).label("dead"),
            doubts(reader.dialect).label("doubts"),
            capped(_some(text(STOPS))).label("stops"),
        )
    )[0]
    return Figures(
        overdue=count_of(row.overdue),
        oldest=oldest,
        running=count_of(row.running),
        stale=count_of(row.stale),
        dead=count_of(row.dead),
        missed=missed_slots(reader),
        doubts=count_of(row.doubts),
        stops=count_of(row.stops),
        handed=count_of(row.handed) if executors else None,
    )


def _some(*conditions: ColumnElement[bool] | Any) -> Query:
    return select(literal(1)).select_from(RUNS).where(*conditions)
