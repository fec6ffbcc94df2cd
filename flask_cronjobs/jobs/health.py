"""The health of the jobs: the verdict, the figures of the overview, and what needs a person."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Row, ScalarSelect, func, literal, select, text

from ..models.conditions import DEAD, RUNNING, STOPS
from .attention import CHECK, Late, Missed, late_definitions, missed_slots
from .effects import in_doubt
from .eligibility import PauseView, Stalled, list_pauses, oldest_due, ours, stalled
from .humanize import Link, ago, duration, plural, seconds_since
from .reader import (
    CAP,
    RUNS,
    TICKS,
    Count,
    Query,
    Reader,
    Source,
    capped,
    count_of,
    read_once,
    reading,
)
from .ticks import did_its_work
from .waiting import handed, overdue
from .workers import Silence, find_silence

#: ``ok``; ``never``: there was no tick yet; ``late``: the last tick was too long ago;
#: ``overdue``: ticks come, but runnable work, or a slot, has waited too long.
HealthStatus: TypeAlias = Literal["ok", "never", "late", "overdue"]
#: How the verdict looks: ``bad`` if it is not ok, ``warn`` if something needs a look.
VerdictTone: TypeAlias = Literal["good", "warn", "bad"]
Level: TypeAlias = Literal["ok", "info", "warning", "error"]


class Act(NamedTuple):
    """What a person can do about a finding on the pages.

    :ivar label: the words on the button.
    :ivar target: the page that asks first, or the action if there are *fields*.
    :ivar fields: the fields of a form.
    """

    label: str
    target: Link
    fields: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found.

    :ivar id: the name of the check; it stays the same, to search for.
    :ivar level: ``error``: jobs do not run, or run wrongly; ``warning``: this may happen.
    :ivar what: what was found, and what it means.
    :ivar todo: what to do about it; empty if there is nothing to do.
    :ivar since: since when it is so, as far as that is known.
    :ivar link: the page that shows it.
    :ivar act: what to do about it there.
    """

    id: str
    level: Level
    what: str
    todo: str = ""
    since: datetime | None = None
    link: Link | None = None
    act: Act | None = None


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
    :ivar silence: hosts that ticked for long and stopped, while others go on.
    :ivar since: since when there have been such runs or effects, by the name of the figure.
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
    silence: Silence | None = None
    since: Mapping[str, datetime | None] = field(default_factory=dict[str, "datetime | None"])


#: How many of the latest ticks are searched for the one that was seen alive last.
_RECENT_TICKS = 100


def read_verdict_and_figures(source: Source) -> tuple[Verdict, Figures]:
    """Return the verdict and the figures, in fewer statements than apart."""
    with reading(source) as reader:
        verdict = read_verdict(reader)
        return verdict, _figures(reader, verdict.oldest)


def tone_of(verdict: Verdict, figures: Figures) -> VerdictTone:
    """Return ``bad`` if unhealthy, ``warn`` if something needs a look, else ``good``."""
    if not verdict.ok:
        return "bad"
    return "warn" if any(findings_of(verdict, figures)) else "good"


def headline_of(verdict: Verdict, figures: Figures) -> str:
    """Return the verdict in a few words."""
    found = list(findings_of(verdict, figures))
    if len(found) > 1:
        return f"{len(found)} things need you"
    if not verdict.ok:
        return verdict.headline
    return f"Ticks are running, but {found[0].what}" if found else "All is well"


def findings_of(verdict: Verdict, figures: Figures) -> Iterator[Finding]:
    """Yield what needs a person: first what makes the verdict red, then what makes it amber.

    What was found is the end of a sentence.
    """
    yield from _red(verdict, figures)
    yield from _amber(verdict, figures)


def _red(verdict: Verdict, figures: Figures) -> Iterator[Finding]:
    if verdict.word in ("never", "late"):
        what = f"{verdict.sentence}; nothing runs"
        yield Finding("ticks", "error", what, verdict.todo, verdict.last_tick_at, ("ticks", {}))
    if verdict.late is not None:
        yield _late_finding(verdict, verdict.late)
    if figures.overdue and verdict.oldest is not None:
        what = f"{figures.overdue.of('run')} overdue, the oldest for {duration(verdict.oldest)}"
        todo = "See `flask jobs admin list --overdue`: are there too few --workers?"
        at = verdict.now - timedelta(seconds=verdict.oldest)
        yield Finding("overdue", "error", what, todo, at, ("runs", {"overdue": 1}))
    yield from (_stalled_finding(each) for each in verdict.stalled if each.overdue)


def _amber(verdict: Verdict, figures: Figures) -> Iterator[Finding]:
    since = figures.since
    link: Link
    if figures.dead:
        what = f"{figures.dead.of('run')} ended dead in the last 24 h"
        which = {"status": "dead", "newer": "24h"}
        act = Act("Retry", ("bulk", {"do": "retry", **which}))
        yield Finding("dead", "warning", what, _RETRY, since["dead"], ("runs", which), act)
    if figures.stale:
        runs = figures.stale.of("running run")
        todo = f"The next tick takes back {runs}. If they stay, ticks have stopped."
        link = ("runs", {"status": "running"})
        yield Finding("stale-runs", "warning", "a worker was lost", todo, since["stale"], link)
    if figures.silence:
        link = ("queues", {})
        what, at = str(figures.silence), figures.silence.since
        yield Finding("silent-host", "warning", what, _SILENT, at, link)
    if figures.doubts:
        what = f"{figures.doubts.of('effect')} in doubt"
        yield Finding(
            "effects-in-doubt", "warning", what, _DOUBTS, since["doubts"], ("effects", {})
        )
    if figures.stops:
        what = f"strict order is stopped by {figures.stops.of('dead run')}"
        link = ("order", {"stopped": 1})
        yield Finding("stopped-keys", "warning", what, _STOPPED, since["stops"], link)
    if figures.missed:
        link = ("ticks", {})
        first = figures.missed.first
        yield Finding("missed-slots", "warning", str(figures.missed), _MISSED, first, link)
    yield from (_stalled_finding(each) for each in verdict.stalled if not each.overdue)
    for pause in verdict.pauses:
        todo = f"To resume it: flask jobs admin resume --{pause.kind} {shlex.quote(pause.name)}"
        link = ("runs", {pause.kind: pause.name})
        act = Act("Resume", ("work_act", {"act": "resume"}), {"what": f"{pause.kind}:{pause.name}"})
        by = f" by {pause.paused_by}" if pause.paused_by else ""
        yield Finding("paused", "warning", f"{pause}{by}", todo, pause.paused_at, link, act)


def _late_finding(verdict: Verdict, late: Late) -> Finding:
    at = None if late.seconds is None else verdict.now - timedelta(seconds=late.seconds)
    link = ("definition", {"name": late.name})
    return Finding("late-definition", "error", str(late), verdict.todo, at, link)


def _stalled_finding(stalled: Stalled) -> Finding:
    kind = _STALLED.get(stalled.kind, "stalled")
    level: Level = "error" if stalled.overdue else "warning"
    return Finding(kind, level, stalled.what, stalled.todo, stalled.since, stalled.link)


#: Kinds of work that stands still, of which the doctor says more under these names.
_STALLED = {"undeclared": "orphaned-task", "batch": "open-batch"}
_RETRY = (
    "See `flask jobs admin list --status dead --newer-than 24h`. When the cause is fixed: "
    "flask jobs admin retry --status dead --newer-than 24h"
)
_SILENT = (
    "See `flask jobs admin workers`. Is the host up, and what does its cron log? One that is gone "
    "for good is forgotten a day after its last tick."
)
_DOUBTS = (
    "A process died before it could record the result. See `flask jobs admin effects`. Find out "
    "what happened, then use --done or --redo."
)
_STOPPED = (
    "What comes after waits. See `flask jobs admin turns --stopped`. Correct the cause, then retry "
    "or discard the dead run."
)
_MISSED = (
    "See when no tick came, on the page /ticks, and what was skipped: "
    "flask jobs admin list --status skipped --newer-than 24h"
)


class _Trouble(NamedTuple):
    """Why the status is not ``ok``.

    :ivar what: the sentence of the verdict.
    """

    word: HealthStatus
    headline: str
    what: str
    todo: str = ""


@read_once
def read_verdict(reader: Reader) -> Verdict:
    """Return whether ticks come and runnable work is claimed in time."""
    tick = _last_tick(reader)
    age = None if tick is None else _age(reader.now, tick.seen_at)
    oldest = _age(reader.now, oldest_due(reader))
    is_late = age is None or age > reader.state.settings.health_tick_age
    failing = is_late and _failing(reader, None if tick is None else tick.seen_at)
    late, still = late_definitions(reader), stalled(reader)
    last = "" if tick is None else f"Last tick {ago(age or 0.0)} from {tick.host}"
    found = _no_ticks(last, failing) if is_late else _overdue(reader, last, oldest, late, still)
    trouble = next(iter(found), _Trouble("ok", "", last))
    return Verdict(
        word=trouble.word,
        sentence=trouble.what,
        now=reader.now,
        late=late,
        failing=failing,
        last_tick_at=None if tick is None else tick.seen_at,
        age=age,
        host=None if tick is None else tick.host,
        worker=None if tick is None else tick.worker,
        oldest=oldest,
        pauses=list_pauses(reader),
        headline=trouble.headline,
        todo=trouble.todo,
        stalled=still,
    )


def _last_tick(reader: Reader) -> Row[Any] | None:
    # One from the future began while the database's clock was ahead.
    works = select(TICKS).where(did_its_work(reader.dialect), TICKS.c.started_at <= reader.now)
    recent = works.order_by(TICKS.c.started_at.desc()).limit(_RECENT_TICKS).subquery()
    rows = reader.rows(select(recent).order_by(recent.c.seen_at.desc()).limit(1))
    return rows[0] if rows else None


def _no_ticks(last: str, failing: bool) -> Iterator[_Trouble]:
    """Yield why ticks do not do their work.

    :param last: when the last one did; empty if none ever has.
    """
    if failing:
        todo = "See what cron mails or logs, and run `flask jobs tick` by hand."
        if last:
            what = f"{last}: those since have begun, but failed"
            yield _Trouble("late", "Ticks fail", what, todo)
        what = "Ticks begin, but none has done its work yet"
        yield _Trouble("never", "No tick has done its work yet", what, todo)
    crontab = "Put the line that `flask jobs admin crontab` prints into the crontab"
    if last:
        todo = f"{crontab}; see its log, and run `flask jobs tick` by hand."
        yield _Trouble("late", "Ticks have stopped", f"{last}: ticks have stopped", todo)
    todo = (
        f"{crontab}. If it is there, its ticks may use another database than this command: "
        "cron does not know the variables of your shell. See its log."
    )
    yield _Trouble("never", "No tick has run yet", "No tick has run yet", todo)


def _overdue(
    reader: Reader, last: str, oldest: float | None, late: Late | None, still: tuple[Stalled, ...]
) -> Iterator[_Trouble]:
    """Yield what is wrong though ticks come, the most urgent first."""
    if late is not None:
        title = f"{plural(late.count.value, 'schedule')} without a tick that runs it"
        todo = f"{CHECK} If no code should declare it any more, pause it."
        yield _Trouble("overdue", title, f"{last}, but {late}", todo)
    if oldest is not None and oldest > reader.state.settings.health_overdue:
        what = f"{last}, but work has been waiting for {duration(oldest)}"
        yield _Trouble("overdue", "Work is waiting too long", what)
    for each in still:
        if each.overdue:
            yield _Trouble("overdue", "Work stands still", f"{last}, but {each.what}", each.todo)


def _age(now: datetime, moment: datetime | None) -> float | None:
    return None if moment is None else max(0.0, seconds_since(moment, now))


def _failing(reader: Reader, since: datetime | None) -> bool:
    """Return whether a tick has begun after *since* that did not do its work."""
    begun = select(TICKS.c.id).where(~did_its_work(reader.dialect)).limit(1)
    return bool(reader.rows(begun if since is None else begun.where(TICKS.c.started_at > since)))


#: The figures that say since when.
_DATED = ("stale", "dead", "stops", "doubts")


def _figures(reader: Reader, oldest: float | None) -> Figures:
    now = reader.now
    is_overdue = oldest is not None and oldest > reader.state.settings.health_overdue
    executors, at = bool(reader.state.settings.executors), RUNS.c.finished_at
    counted = {
        "running": _some(RUNS.c.started_at, text(RUNNING)),
        "stale": _some(RUNS.c.locked_until, text(RUNNING), RUNS.c.locked_until <= now),
        "dead": _some(at, text(DEAD), at >= now - timedelta(days=1)),
        "stops": _some(at, text(STOPS)),
        "doubts": in_doubt(reader.dialect),
        **({"handed": handed(now)} if executors else {}),
    }
    late = [capped(each.where(*ours(reader))) for each in overdue(reader)] if is_overdue else []
    row = reader.rows(
        select(
            *(capped(each).label(name) for name, each in counted.items()),
            *(_earliest(counted[name]).label(f"{name}_since") for name in _DATED),
            sum(late, literal(0)).label("overdue"),
        )
    )[0]
    counts = {name: count_of(getattr(row, name)) for name in (*counted, "overdue")}
    since = {name: getattr(row, f"{name}_since") for name in _DATED}
    missed, silence = missed_slots(reader), find_silence(reader)
    return Figures(oldest=oldest, missed=missed, silence=silence, since=since, **counts)


def _earliest(some: Query) -> ScalarSelect[datetime]:
    """Return a subquery of the earliest time in *some*, among as many as are counted."""
    counted = some.limit(CAP + 1).subquery()
    return select(func.min(counted.c.at)).scalar_subquery()


def _some(at: ColumnElement[datetime], *conditions: Any) -> Query:
    return select(at.label("at")).where(*conditions)
