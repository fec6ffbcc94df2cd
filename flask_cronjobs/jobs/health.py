"""The health of the jobs: the verdict, the figures of the overview, and what needs a person."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    ScalarSelect,
    func,
    literal,
    literal_column,
    select,
    text,
)

from ..models.columns import UNREADABLE
from ..models.conditions import DEAD, RUNNING, STOPS
from .backlog import handed, oldest_due, overdue
from .definitions.needs import CHECK, Late, Missed, late_definitions, missed_slots
from .humanize import Link, ago, capitalized, duration, plural, seconds_between
from .once_effects import in_doubt
from .orders import behind_dead
from .pauses import PauseView, list_pauses
from .queues import Silence, find_silence, unserved_since
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
from .stalled import Stalled, stalled
from .ticks import did_its_work

#: ``ok``; ``never``: there was no tick yet; ``late``: the last tick was too long ago;
#: ``overdue``: ticks come, but runnable work, or a slot, has waited too long.
HealthStatus: TypeAlias = Literal["ok", "never", "late", "overdue"]
#: How the verdict looks: ``bad`` if it is not ok, ``warn`` if something needs a look.
VerdictTone: TypeAlias = Literal["good", "warn", "bad"]
Level: TypeAlias = Literal["ok", "info", "warning", "error"]


class Button(NamedTuple):
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
    :ivar title: the same in a few words, if it makes the verdict red.
    :ivar by: who did it. Only those who may see the pages are told.
    """

    id: str
    level: Level
    what: str
    todo: str = ""
    since: datetime | None = None
    link: Link | None = None
    act: Button | None = None
    title: str = ""
    by: str | None = None

    @property
    def sentence(self) -> str:
        """What was found, and who did it."""
        what = capitalized(self.what)
        return f"{what} by {self.by}" if self.by else what


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
    :ivar findings: why the status is not ``ok``, the most urgent first.
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
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the status is ``ok``."""
        return self.word == "ok"

    @property
    def ticks(self) -> str:
        """When the last tick came: ``Last tick 12 s ago from web-1``; empty if none ever did."""
        return "" if self.age is None else f"Last tick {ago(self.age)} from {self.host}"


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
    :ivar behind: runs that wait behind those.
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
    behind: Count
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


def verdict_tone(verdict: Verdict, findings: Sequence[Finding]) -> VerdictTone:
    """Return ``bad`` if unhealthy, ``warn`` if something needs a look, else ``good``."""
    if not verdict.ok:
        return "bad"
    return "warn" if findings else "good"


def headline_of(verdict: Verdict, findings: Sequence[Finding]) -> str:
    """Return the verdict in a few words."""
    if len(findings) > 1:
        return f"{len(findings)} things need you"
    if not verdict.ok:
        return verdict.headline
    return f"Ticks are running, but {findings[0].what}" if findings else "All is well"


def findings_of(verdict: Verdict, figures: Figures) -> list[Finding]:
    """Return what needs a person: first what makes the verdict red, then what makes it amber.

    What was found is the end of a sentence.
    """
    return [*verdict.findings, *_amber(verdict, figures)]


def _amber(verdict: Verdict, figures: Figures) -> Iterator[Finding]:
    link: Link
    if figures.dead:
        yield _dead(figures)
    if figures.stale:
        what, runs = "a worker was lost", figures.stale.of("running run")
        todo = f"The next tick takes back {runs}. If they stay, ticks have stopped."
        since, link = figures.since["stale"], ("runs", {"status": "running"})
        yield Finding("stale-runs", "warning", what, todo, since=since, link=link)
    if figures.silence:
        yield _silent(figures.silence)
    if figures.doubts:
        yield _doubtful(figures)
    if figures.stops:
        yield _stopped(figures)
    if figures.missed:
        yield _missed(figures.missed)
    yield from (_stalled(each) for each in verdict.stalled if not each.overdue)
    yield from map(_paused, verdict.pauses)


def _dead(figures: Figures) -> Finding:
    what = f"{figures.dead.of('run')} ended dead in the last 24 h"
    todo = (
        "See `flask jobs admin list --status dead --newer-than 24h`. When the cause is fixed: "
        "flask jobs admin retry --status dead --newer-than 24h"
    )
    which = {"status": "dead", "newer": "24h"}
    since, act = figures.since["dead"], Button("Retry", ("bulk", {"do": "retry", **which}))
    return Finding("dead", "warning", what, todo, since=since, link=("runs", which), act=act)


def _silent(silence: Silence) -> Finding:
    what = str(silence)
    todo = (
        "See `flask jobs admin ticks`. Is the host up, and what does its cron log? One that is "
        "gone for good is forgotten a day after its last tick."
    )
    return Finding("silent-host", "warning", what, todo, since=silence.since, link=("workers", {}))


def _doubtful(figures: Figures) -> Finding:
    doubts, since = figures.doubts, figures.since["doubts"]
    what = f"{doubts.of('effect')} {'is' if doubts.value == 1 else 'are'} in doubt"
    todo = (
        "A process died before it could record the result. See `flask jobs admin effects`. Find "
        "out what happened, then use --done or --redo."
    )
    return Finding("effects-in-doubt", "warning", what, todo, since=since)


def _stopped(figures: Figures) -> Finding:
    dead, behind = figures.stops, figures.behind
    what = f"strict order is stopped by {dead.of('dead run')}: {behind.of('run')} "
    what += f"{'waits' if behind.value == 1 else 'wait'} behind"
    todo = (
        "See `flask jobs admin list --waits turn`. Correct the cause, then retry or discard the "
        "dead run."
    )
    since, link = figures.since["stops"], ("order", {"stopped": 1})
    return Finding("stopped-keys", "warning", what, todo, since=since, link=link)


def _missed(missed: Missed) -> Finding:
    what = str(missed)
    todo = (
        "See which: flask jobs admin list --status skipped --newer-than 24h. And when no tick "
        "came: flask jobs admin ticks"
    )
    return Finding("missed-slots", "warning", what, todo, since=missed.first, link=missed.link)


def _paused(pause: PauseView) -> Finding:
    todo = f"To resume it: flask jobs admin resume --{pause.kind} {shlex.quote(pause.name)}"
    link: Link = ("runs", {pause.kind: pause.name})
    act = Button("Resume", ("work_act", {"act": "resume"}), {"what": f"{pause.kind}:{pause.name}"})
    what, at, by = str(pause), pause.paused_at, pause.paused_by
    return Finding("paused", "warning", what, todo, since=at, link=link, act=act, by=by)


#: The checks that are not called ``stalled``.
_CHECKS = {"undeclared": "orphaned-task", "batch": "open-batch"}


def _stalled(stalled: Stalled) -> Finding:
    check = _CHECKS.get(stalled.kind, "stalled")
    level: Level = "error" if stalled.overdue else "warning"
    title = "Work stands still" if stalled.overdue else ""
    what, todo, since, link = stalled.what, stalled.todo, stalled.since, stalled.link
    return Finding(check, level, what, todo, since=since, link=link, title=title)


@read_once
def read_verdict(reader: Reader) -> Verdict:
    """Return whether ticks come and runnable work is claimed in time."""
    tick = _last_tick(reader)
    facts = Verdict(
        word="ok",
        sentence="",
        now=reader.now,
        last_tick_at=tick.seen_at,
        age=seconds_between(tick.seen_at, reader.now),
        host=tick.host,
        worker=tick.worker,
        oldest=seconds_between(oldest_due(reader), reader.now),
        late=late_definitions(reader),
        pauses=list_pauses(reader),
        stalled=stalled(reader),
    )
    is_late = facts.age is None or facts.age > reader.state.settings.health_tick_age
    failing = is_late and bool(tick.failing)
    found = [_no_ticks(facts, failing)] if is_late else []
    found += _overdue(facts, reader, not is_late)
    if not found:
        return replace(facts, sentence=facts.ticks)
    first, joined = found[0], ": " if is_late else ", but "
    return replace(
        facts,
        word="overdue" if not is_late else "late" if facts.ticks else "never",
        sentence=f"{facts.ticks}{joined}{first.what}" if facts.ticks else capitalized(first.what),
        headline=first.title,
        todo=first.todo,
        failing=failing,
        findings=tuple(found),
    )


def _last_tick(reader: Reader) -> Row[Any]:
    """Return the tick that did its work and was seen last, or NULLs; and whether one failed since.

    The database's now comes with it.
    """
    works, c = did_its_work(reader.dialect), TICKS.c
    # One from the future began while the database's clock was ahead.
    is_past = c.started_at <= literal_column(reader.dialect.now)
    latest = select(TICKS).where(works, is_past).order_by(c.started_at.desc())
    recent = latest.limit(_RECENT_TICKS).subquery()
    never = literal(UNREADABLE, c.seen_at.type)
    last = func.coalesce(select(func.max(recent.c.seen_at)).scalar_subquery(), never)
    failing = select(c.id).where(~works, c.started_at > last).exists().label("failing")
    return reader.row_and_now(select(recent).order_by(recent.c.seen_at.desc()), failing)


def _no_ticks(verdict: Verdict, failing: bool) -> Finding:
    """Return why ticks do not do their work."""
    title, by_hand = "", "run `flask jobs tick` by hand."
    crontab = "Put the line that `flask jobs admin crontab` prints into the crontab"
    if failing:
        what = "ticks begin, but none has done its work yet"
        title, todo = "No tick has done its work yet", f"See what cron mails or logs, and {by_hand}"
        if verdict.ticks:
            title, what = "Ticks fail", "ticks begin, but fail"
    elif verdict.ticks:
        what, todo = "ticks have stopped", f"{crontab}; see its log, and {by_hand}"
    else:
        what = "no tick has run yet"
        todo = (
            f"{crontab}. If it is there, its ticks may use another database than this command: "
            "cron does not know the variables of your shell. See its log."
        )
    since, title = verdict.last_tick_at, title or capitalized(what)
    return Finding("ticks", "error", what, todo, since=since, link=("workers", {}), title=title)


def _overdue(verdict: Verdict, reader: Reader, ticks_come: bool) -> Iterator[Finding]:
    """Yield what waits too long, the most urgent first."""
    link: Link
    overdue = reader.state.settings.health_overdue
    if (late := verdict.late) is not None and ticks_come:
        title = f"{plural(late.count.value, 'schedule')} without a tick that runs it"
        todo = f"{CHECK} If no code should declare it any more, pause it."
        what, link = str(late), ("definition", {"name": late.name})
        since = None if late.seconds is None else verdict.now - timedelta(seconds=late.seconds)
        yield Finding("late-definition", "error", what, todo, since=since, link=link, title=title)
    if verdict.oldest is not None and verdict.oldest > overdue:
        what = f"work has been waiting for {duration(verdict.oldest)}"
        todo = "See `flask jobs admin list --overdue`: are there too few --workers?"
        since = verdict.now - timedelta(seconds=verdict.oldest)
        title, link = "Work is waiting too long", ("runs", {"overdue": 1})
        queue = unserved_since(reader, reader.now - timedelta(seconds=overdue))
        if queue is not None:
            what = f"{what}: no worker serves the queue {queue}"
            todo = "See `flask jobs admin queues`, and start a worker that serves it."
        yield Finding("overdue", "error", what, todo, since=since, link=link, title=title)
    yield from (_stalled(each) for each in verdict.stalled if each.overdue)


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
    late = [capped(each) for each in overdue(reader)] if is_overdue else []
    row = reader.rows(
        select(
            *(capped(each).label(name) for name, each in counted.items()),
            *(_earliest(counted[name]).label(f"{name}_since") for name in _DATED),
            sum(late, literal(0)).label("overdue"),
            literal_column(f"({behind_dead(reader.dialect)})", Integer).label("behind"),
        )
    )[0]
    counts = {name: count_of(getattr(row, name)) for name in (*counted, "overdue", "behind")}
    since = {name: getattr(row, f"{name}_since") for name in _DATED}
    missed, silence = missed_slots(reader), find_silence(reader)
    return Figures(oldest=oldest, missed=missed, silence=silence, since=since, **counts)


def _earliest(some: Query) -> ScalarSelect[datetime]:
    """Return a subquery of the earliest time in *some*, among as many as are counted."""
    counted = some.limit(CAP + 1).subquery()
    return select(func.min(counted.c.at)).scalar_subquery()


def _some(at: ColumnElement[datetime], *conditions: Any) -> Query:
    return select(at.label("at")).where(*conditions)
