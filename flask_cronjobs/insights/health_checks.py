"""The table of checks: the problems that are reported, when they count, and how to solve them.

The status page, commands, doctor, metrics and webhook all show what `findings` returns. To add a
check, add a row to `CHECKS`; `docs/alerting.md` explains each one.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    func,
    literal,
    literal_column,
    select,
    text,
    true,
    union_all,
)

from ..config import Settings
from ..core.prune import behind, growing
from ..core.ticks import DELETED_AT_ONCE
from ..db.connection import Bookkeeping
from ..models.columns import UNREADABLE
from ..models.conditions import (
    DEAD,
    ODD,
    OPEN_BATCH,
    ORDERED,
    PARKED,
    RATE_WAITS,
    READY_GROUPS,
    RUNNING,
    SCHEDULED,
    SNOOZED,
    UNCLAIMED,
)
from ..text import argument
from ..text.humanize import Link, ago, capitalized, duration, seconds_since
from ..types import HANDED_LEASES, stored_time, time_or_none
from .backlog import Waiting, oldest_due, overdue, unpaused_groups, waiting_groups
from .effects import in_doubt
from .pauses import is_declared, list_pauses, not_paused, ours
from .queues import unserved_since
from .reader import (
    BATCHES,
    CAP,
    DEFINITIONS,
    RUNS,
    TICKS,
    Query,
    Reader,
    Source,
    capped,
    count_of,
    present,
    read_once,
    reading,
)
from .schedule_needs import missed_slots, unrecorded
from .schedule_views import why_broken
from .tick_views import did_its_work

Level: TypeAlias = Literal["ok", "info", "warning", "error"]


class Button(NamedTuple):
    """A button on the pages for solving a finding.

    :ivar label: the words on the button.
    :ivar target: the page that asks for confirmation, or the action if there are *fields*.
    :ivar fields: the fields of a form.
    """

    label: str
    target: Link
    fields: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a check has found.

    :ivar id: the name of the check, which never changes, so that it can be searched for.
    :ivar level: ``error`` if jobs do not run or run wrongly; ``warning`` if that may happen.
    :ivar what: the problem and what it means, worded so that other words can come before it.
    :ivar todo: the advice; empty if there is nothing to do.
    :ivar since: the time when the problem began, if it is known.
    :ivar link: the page that shows the problem.
    :ivar act: the button for solving it, which Status shows beside it.
    :ivar by: the user who caused it, shown only to those who may see the pages.
    :ivar number: the number of affected rows.
    """

    id: str
    level: Level
    what: str
    todo: str = ""
    since: datetime | None = None
    link: Link | None = None
    act: Button | None = None
    by: str | None = None
    number: int = 1

    @property
    def sentence(self) -> str:
        """The problem, and who caused it."""
        what = capitalized(self.what)
        return f"{what} by {self.by}" if self.by else what

    @property
    def message(self) -> str:
        """The problem and the advice, for readers who may not see the pages."""
        return f"{capitalized(self.what)}{f'. {self.todo}' if self.todo else ''}"


#: The values for a check's texts. ``since``, ``by`` and ``number`` also go into the finding, and
#: ``link`` replaces the check's link.
Seen: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A kind of problem to look for.

    The texts are format strings. They may name the values that *look* yields and, if ``since`` is
    among them, ``long`` (how long that is) and ``ago``.

    :ivar level: ``error`` if the problem makes the verdict red.
    :ivar look: yields the problems that began before a given time, oldest first.
    :ivar patience: the time that the problem may last before it counts; default:
        ``CRONJOBS_HEALTH_OVERDUE``.
    :ivar rare: the rows without which the check is skipped, by their name in `present`.
    :ivar setting: the name of the setting without which the check is skipped.
    """

    id: str
    level: Level
    look: Callable[[Reader, datetime], Iterable[Seen]]
    what: str
    todo: str
    link: Link | None = None
    patience: timedelta | None = None
    act: Button | None = None
    rare: str | None = None
    setting: str = ""

    def findings(self, reader: Reader) -> Iterator[Finding]:
        """Yield the problems that the check finds."""
        overdue = timedelta(seconds=reader.state.settings.health_overdue)
        before = reader.now - (overdue if self.patience is None else self.patience)
        for seen in self.look(reader, before):
            yield self._finding(seen, reader.now)

    def _finding(self, seen: Seen, now: datetime) -> Finding:
        since: datetime | None = seen.get("since")
        link: Link | None = seen.get("link", self.link)
        values = dict(seen)
        if since is not None:
            seconds = max(seconds_since(since, now), 0.0)
            values |= {"long": duration(seconds), "ago": ago(seconds)}
        return Finding(
            self.id,
            self.level,
            self.what.format(**values),
            self.todo.format(**values),
            since,
            link and _filled(link, values),
            self.act and _filled_button(self.act, values),
            seen.get("by"),
            seen.get("number", 1),
        )


def findings(source: Source, *, only_errors: bool = False) -> list[Finding]:
    """Return the findings that need attention, worst first.

    :param only_errors: run only the checks that can make the verdict red.
    """
    with reading(source) as reader:
        settings, rare = reader.state.settings, {None, *present(reader)}
        return [
            finding
            for check in CHECKS
            if check.rare in rare
            and (check.level == "error" or not only_errors)
            and (not check.setting or getattr(settings, check.setting) is not None)
            for finding in check.findings(reader)
        ]


def _filled(link: Link, values: Seen) -> Link:
    page, arguments = link
    filled = ((name.format(**values), str(value)) for name, value in arguments.items())
    return page, {name: value.format(**values) for name, value in filled}


def _filled_button(button: Button, values: Seen) -> Button:
    fields = button.fields or {}
    filled = {name: value.format(**values) for name, value in fields.items()} or None
    return Button(button.label, _filled(button.target, values), filled)


#: How long work may wait if the wait may be intended.
_A_DAY = timedelta(days=1)
#: How far pruning may be behind, since only one tick in 19 prunes.
_UNPRUNED = timedelta(hours=1)
#: How many of the latest ticks are searched for the one that was last seen alive.
_RECENT_TICKS = 100
#: How many seconds a stored time may be ahead of the clock.
AHEAD = 60.0
#: The maximum number of runs at the head of a strict order that are read.
_HEADS = 1_000
#: The id of the check of the webhook, which is not sent to the webhook itself.
WEBHOOK = "webhook"
#: The advice if no tick records a schedule.
CHECK_IMPORT = "Check that the FLASK_APP in the crontab imports the module that declares it."


@read_once
def last_tick(reader: Reader) -> Row[Any]:
    """Return the last seen tick that did its work, or NULLs; and whether one has failed since."""
    works, c = did_its_work(reader.dialect), TICKS.c
    # Leave out ticks that began while the database's clock was ahead.
    is_past = c.started_at <= literal_column(reader.dialect.now)
    latest = select(TICKS).where(works, is_past).order_by(c.started_at.desc())
    recent = latest.limit(_RECENT_TICKS).subquery()
    never = literal(UNREADABLE, c.seen_at.type)
    last = func.coalesce(select(func.max(recent.c.seen_at)).scalar_subquery(), never)
    failing = select(c.id).where(~works, c.started_at > last).exists().label("failing")
    single_row = select(literal(1).label("one")).subquery()
    statement = select(recent, failing).select_from(single_row.outerjoin(recent, true()))
    return reader.rows(statement.order_by(recent.c.seen_at.desc()).limit(1))[0]


def _are_ticks_late(reader: Reader) -> bool:
    last_seen, longest = last_tick(reader).seen_at, reader.state.settings.health_tick_age
    return last_seen is None or seconds_since(last_seen, reader.now) > longest


def _no_ticks(reader: Reader, before: datetime) -> Iterator[Seen]:
    if not _are_ticks_late(reader):
        return
    tick = last_tick(reader)
    never = tick.seen_at is None
    crontab = "Put the line that `flask jobs admin crontab` prints into the crontab"
    if tick.failing:
        what = "ticks start, but none has done its work yet" if never else "ticks start, but fail"
        todo = "See what cron mails or logs, and run `flask jobs tick` by hand."
    elif never:
        what = "no tick has run yet"
        todo = (
            f"{crontab}. If the line is there already, see the log that it names. Ticks may use "
            "another database, since cron does not know your shell's variables."
        )
    else:
        what = "ticks have stopped"
        todo = f"{crontab}; see the log that it names, and run `flask jobs tick` by hand."
    yield {"what": what, "todo": todo, "since": tick.seen_at}


def _late_definitions(reader: Reader, before: datetime) -> Iterator[Seen]:
    if _are_ticks_late(reader):
        return
    c = DEFINITIONS.c
    waiting = select(c.name, c.next_run_at).where(text(SCHEDULED), c.next_run_at < before)
    columns = c.payload, c.schedule, c.timezone, capped(waiting).label("number")
    for row in reader.rows(waiting.add_columns(*columns).order_by(c.next_run_at).limit(1)):
        since = None if row.next_run_at == UNREADABLE else row.next_run_at
        seen = _late_definition(reader, row.name, count_of(row.number).value, since)
        todo = f"{CHECK_IMPORT} If no code should declare it any more, pause it."
        if why := why_broken(row):
            todo = (
                f"It is broken: {why} Correct it in the code or in job_definitions, or pause it: "
                f"flask jobs admin pause {argument(row.name)}"
            )
        yield {**seen, "todo": todo}
        return
    waited = time.monotonic() - reader.state.started > reader.state.settings.health_overdue
    if waited and (names := unrecorded(reader)):
        seen = _late_definition(reader, names[0], len(names), None)
        todo = "If add_definition has made another one of that name, rename or remove one of them."
        # It has no page before it is recorded, and cannot be paused.
        yield {**seen, "todo": f"{CHECK_IMPORT} {todo}", "link": ("workers", {})}


def _late_definition(reader: Reader, name: str, number: int, since: datetime | None) -> Seen:
    others = f" (and {number - 1} more)" if number > 1 else ""
    what = f"no tick has recorded the definition {name!r}{others}"
    if since is not None:
        long = duration(seconds_since(since, reader.now))
        what = (
            f"the definition {name!r}{others} has been due for {long}, and no tick has enqueued "
            "its run"
        )
    return {"what": what, "name": name, "number": number, "since": since}


def _overdue(reader: Reader, before: datetime) -> Iterator[Seen]:
    oldest = oldest_due(reader)
    if oldest is None or oldest >= before:
        return
    parts = overdue(reader)
    (row,) = reader.rows(select(sum((capped(part) for part in parts), literal(0)).label("number")))
    todo = "See `flask jobs admin list --overdue`. If all workers are busy, use more --workers."
    unserved, queue = "", unserved_since(reader, before)
    if queue is not None:
        unserved = f": no worker serves the queue {queue}"
        todo = "See `flask jobs admin queues`, and start a worker that serves it."
    yield {
        "unserved": unserved,
        "todo": todo,
        "since": oldest,
        "number": count_of(row.number).value,
    }


def _behind_undeclared(reader: Reader, before: datetime) -> Iterable[Seen]:
    """Find a run that waits in strict order behind a run of a task that this app lacks."""
    unknown = [group for group in waiting_groups(reader) if not is_declared(reader, group.task)]
    if not unknown:
        return ()
    at_rate = RUNS.c.rate_key.in_(
        {group.rate_key for group in unknown if group.rate_key is not None}
    )
    heads = (
        select(RUNS.c.id, RUNS.c.concurrency_key, RUNS.c.job_type, RUNS.c.run_at)
        .where(
            *rows, RUNS.c.job_type.in_({group.task for group in unknown}), RUNS.c.run_at <= before
        )
        .where(RUNS.c.strict, *not_paused(reader))
        .limit(_HEADS)
        .subquery()
        for rows in ([text(READY_GROUPS)], [text(RATE_WAITS), at_rate])
    )
    head: Any = union_all(*(select(query) for query in heads)).subquery()
    waiter = _next_in_order(reader, before, head.c.concurrency_key, head.c.id)
    pairs = select(waiter.label("waiter"), head).subquery()
    rows = _columns(pairs.c.waiter, pairs.c.job_type, pairs.c.id, pairs.c.run_at)
    return _first(reader, rows.where(pairs.c.waiter.is_not(None)).order_by(pairs.c.run_at))


def _held_keys(reader: Reader, before: datetime) -> Iterable[Seen]:
    """Find a run that waits for others, which have held all shares of its key for too long."""
    settings, c = reader.state.settings, RUNS.c
    timeouts = (task.options.timeout or 0.0 for task in reader.state.registry.tasks.values())
    longest = timedelta(seconds=max(settings.timeout, *timeouts, 0.0) + settings.shutdown_grace)
    held_keys = (
        select(
            c.concurrency_key.label("key"),
            func.min(c.id).label("holder"),
            func.count().label("shares"),
            func.max(c.started_at).label("since"),
        )
        .where(c.concurrency_share.is_not(None), c.started_at <= before - longest)
        .group_by(c.concurrency_key)
        .subquery()
    )
    for_share = (
        select(c.id)
        .where(
            text(PARKED), c.gate == "keys", c.concurrency_key == held_keys.c.key, c.run_at <= before
        )
        .where(c.concurrency_limit <= held_keys.c.shares, *ours(reader))
        .order_by(c.gate, c.concurrency_key, c.job_type, c.queue, c.priority.desc(), c.run_at, c.id)
        .limit(1)
        .scalar_subquery()
    )
    for_turn = _next_in_order(reader, before, held_keys.c.key, held_keys.c.holder)
    pairs = select(func.coalesce(for_share, for_turn).label("waiter"), held_keys).subquery()
    rows = _columns(pairs.c.waiter, pairs.c.key, pairs.c.holder, pairs.c.since)
    return _first(reader, rows.where(pairs.c.waiter.is_not(None)).order_by(pairs.c.since))


def _next_in_order(reader: Reader, before: datetime, key: Any, run_id: Any) -> Query:
    """Return a subquery of the run that waits behind *run_id* in the strict order of *key*."""
    # Ranges make PostgreSQL follow the index of the key.
    c = RUNS.c
    in_key = and_(c.concurrency_key >= key, c.concurrency_key <= key, c.id > run_id)
    waits = select(c.id).where(text(ORDERED), text(UNCLAIMED), in_key, c.run_at <= before)
    first = waits.where(*ours(reader)).order_by(c.concurrency_key, c.id).limit(1)
    return first.scalar_subquery()


def _ahead(reader: Reader, before: datetime) -> Iterator[Seen]:
    """Find times that no correct clock has written, each with the UPDATE that corrects it."""
    d, lease = reader.dialect, reader.state.settings.lease
    last = f"SELECT max(started_at) FROM job_ticks WHERE started_at <= {d.now}"
    since = f"COALESCE(({last} AND finished_at IS NOT NULL), {d.now})"
    wrong = {
        "job_definitions": f"considered_until > {d.later(str(AHEAD))}",
        "job_ticks": f"started_at > {d.later(str(AHEAD))}",
        "job_rates": f"tat > {d.later(f'period * burst + {AHEAD}')}",
        "job_runs": f"{RUNNING} AND locked_until > {d.later(str(HANDED_LEASES * lease + AHEAD))}",
    }
    right = {
        "job_definitions": f"considered_until = {since}, next_run_at = {since}",
        "job_ticks": f"started_at = {d.now}, seen_at = {d.now}",
        "job_rates": f"tat = {d.now}",
        "job_runs": f"locked_until = {d.later(str(lease))}",
    }
    exist = (f"SELECT '{of}' WHERE EXISTS (SELECT 1 FROM {of} WHERE {wrong[of]})" for of in wrong)
    for (table,) in reader.rows(text(" UNION ALL ".join(exist))):
        sql = f"UPDATE {table} SET {right[table]} WHERE {wrong[table]}"
        column = right[table].partition(" ")[0]
        yield {"table": table, "column": column, "sql": " ".join(sql.split())}


def _dead(reader: Reader, before: datetime) -> Iterator[Seen]:
    at = RUNS.c.finished_at
    return _counted(reader, "run", _some(at, text(DEAD), at >= reader.now - _A_DAY))


def _stale(reader: Reader, before: datetime) -> Iterator[Seen]:
    until = RUNS.c.locked_until
    expired = _some(until, text(RUNNING), until <= reader.now)
    return _counted(reader, "running run", expired)


def _doubts(reader: Reader, before: datetime) -> Iterator[Seen]:
    return _counted(reader, "effect", in_doubt(reader.dialect))


def _missed(reader: Reader, before: datetime) -> Iterator[Seen]:
    if (missed := missed_slots(reader)) is not None:
        yield {"missed": str(missed), "since": missed.first, "number": missed.slots}


def _without_share(reader: Reader, before: datetime) -> Iterable[Seen]:
    groups = (group for group in unpaused_groups(reader) if is_declared(reader, group.task))
    return _oldest(
        group
        for group in groups
        if group.oldest <= before and group.due != group.oldest and group.rate_key is None
    )


def _undeclared(reader: Reader, before: datetime) -> Iterable[Seen]:
    groups = (group for group in unpaused_groups(reader) if not is_declared(reader, group.task))
    return _oldest(group for group in groups if group.oldest <= before)


def _snoozed(reader: Reader, before: datetime) -> Iterable[Seen]:
    c = RUNS.c
    rows = _columns(c.id, c.job_type, c.snoozes, c.scheduled_for)
    snoozed = rows.where(text(f"{ODD} AND {SNOOZED}"), c.scheduled_for <= before, *ours(reader))
    return _first(reader, snoozed.order_by(c.id))


def _open_batches(reader: Reader, before: datetime) -> Iterable[Seen]:
    c = BATCHES.c
    rows = _columns(literal(0), c.key, literal(0), c.opened_at)
    still_open = rows.where(text(OPEN_BATCH), c.closed_at.is_(None), c.opened_at < before)
    return _first(reader, still_open.order_by(c.id))


def _unpruned(reader: Reader, before: datetime) -> Iterator[Seen]:
    since = reader.now - timedelta(seconds=seconds_behind(reader, reader.state.settings))
    if since < before:
        yield {"since": since}


def seconds_behind(source: Reader | Bookkeeping, settings: Settings) -> float:
    """Return how many seconds the most overdue prunable row is past its retention."""
    ages = {"retention": settings.retention, "retention_dead": settings.retention_dead}
    first = {"place": source.dialect.earliest, "chunk": DELETED_AT_ONCE}
    (row,) = source.rows(text(behind(source.dialect)), {**ages, **first})
    now, late = stored_time(row[0]), 0.0
    for kind, at in zip(growing(), map(time_or_none, row[1:]), strict=True):
        if at is not None:  # A row exists, and has a time.
            late = max(late, seconds_since(at, now) - ages[kind.age])
    return late


def _failed_webhook(reader: Reader, before: datetime) -> Iterator[Seen]:
    """Find the time since which finished ticks have not reached the webhook.

    A single unreported tick may be about to call the webhook, so it counts only when overdue.
    """
    c = TICKS.c
    last_reported = select(func.max(c.started_at)).where(c.findings.is_not(None)).scalar_subquery()
    since_then = c.started_at > func.coalesce(last_reported, literal(UNREADABLE, c.started_at.type))
    unreported = select(func.min(c.started_at).label("since"), func.count().label("number"))
    (row,) = reader.rows(unreported.where(c.finished_at.is_not(None), since_then))
    if isinstance(row.since, datetime) and (row.number > 1 or row.since <= before):
        yield {"since": row.since}


def _paused(reader: Reader, before: datetime) -> Iterator[Seen]:
    for pause in list_pauses(reader):
        at, by = pause.paused_at, pause.paused_by
        names = {"name": pause.name, "quoted": shlex.quote(pause.name)}
        yield {"kind": pause.kind, "since": at, "by": by, **names}


def _columns(run_id: Any, name: Any, other: Any, since: Any) -> Query:
    """Return a SELECT of the values that the texts of a check may name."""
    values = {"run": run_id, "name": name, "other": other, "since": since}
    return select(*(value.label(key) for key, value in values.items()))


def _first(reader: Reader, rows: Query) -> Iterator[Seen]:
    for row in reader.rows(rows.limit(1)):
        seen = dict(zip(rows.selected_columns.keys(), row, strict=True))
        yield {**seen, "argument": argument(row.name)}


def _oldest(groups: Iterable[Waiting]) -> Iterator[Seen]:
    first = min(groups, key=lambda group: group.oldest, default=None)
    if first is not None:
        yield {"name": first.task, "quoted": shlex.quote(first.task), "since": first.oldest}


def _counted(reader: Reader, noun: str, query: Query) -> Iterator[Seen]:
    """Yield the number of rows of *query*, up to the cap, with the earliest time; none if empty."""
    counted = query.limit(CAP + 1).subquery()
    number, since = func.count().label("number"), func.min(counted.c.at).label("since")
    (row,) = reader.rows(select(number, since).select_from(counted))
    if row.number:
        count = count_of(row.number)
        are = "is" if row.number == 1 else "are"
        yield {"some": count.of(noun), "are": are, "number": count.value, "since": row.since}


def _some(at: ColumnElement[datetime], *conditions: Any) -> Query:
    return select(at.label("at")).where(*conditions)


_RUN: Link = ("run", {"run_id": "{run}"})
_OF_TASK: Link = ("runs", {"task": "{name}"})
_DEAD_TODAY = {"status": "dead", "newer": "24h"}
#: The checks, worst first. The verdict is red while an ``error`` is found.
CHECKS = (
    Check(
        id="ticks",
        level="error",
        look=_no_ticks,
        what="{what}",
        todo="{todo}",
        link=("workers", {}),
    ),
    Check(
        id="late-definition",
        level="error",
        look=_late_definitions,
        what="{what}",
        todo="{todo}",
        link=("definition", {"name": "{name}"}),
    ),
    Check(
        id="overdue",
        level="error",
        look=_overdue,
        what="work has been waiting for {long}{unserved}",
        todo="{todo}",
        link=("runs", {"overdue": "1"}),
    ),
    Check(
        id="undeclared-order",
        level="error",
        look=_behind_undeclared,
        what="run {run} waits in strict order behind run {other}, whose task {name!r} this app's "
        "code does not declare",
        todo="Declare the task, import the module that declares it, or cancel run {other}: flask "
        "jobs admin cancel {other}",
        link=_RUN,
    ),
    Check(
        id="held-key",
        level="error",
        look=_held_keys,
        rare="shares",
        what="run {run} waits for run {other}, which has held the concurrency key {name!r} for "
        "{long}",
        todo="See what it is doing: flask jobs admin show {other}. To end it: flask jobs admin "
        "cancel {other}",
        link=_RUN,
    ),
    Check(
        id="ahead",
        level="error",
        look=_ahead,
        what="{table}.{column} is too far in the future: the database's clock was ahead",
        todo="Work that depends on it is late. Correct the clock, then run this SQL: {sql}",
    ),
    Check(
        id="dead",
        level="warning",
        look=_dead,
        what="{some} died in the last 24 h",
        todo="See `flask jobs admin list --status dead --newer-than 24h`. When the cause is fixed: "
        "flask jobs admin retry --status dead --newer-than 24h",
        link=("runs", _DEAD_TODAY),
        act=Button("Retry", ("bulk", {"do": "retry", **_DEAD_TODAY})),
    ),
    Check(
        id="stale-runs",
        level="warning",
        look=_stale,
        what="a worker was lost",
        todo="The next tick reclaims {some}. If none is reclaimed, ticks have stopped.",
        link=("runs", {"status": "running"}),
    ),
    Check(
        id="effects-in-doubt",
        level="warning",
        look=_doubts,
        rare="effects",
        what="{some} {are} in doubt",
        todo="A process died, or a handler was interrupted, before the result was recorded. See "
        "`flask jobs admin effects`. Find out what happened, then use --done or --redo.",
    ),
    Check(
        id="missed-slots",
        level="warning",
        look=_missed,
        what="{missed}",
        todo="To see which: flask jobs admin list --status skipped --newer-than 24h. To see when "
        "no tick ran: flask jobs admin ticks",
        link=("runs", {"status": "skipped", "error_type": "Missed", "newer": "24h"}),
    ),
    Check(
        id="no-share",
        level="warning",
        look=_without_share,
        patience=_A_DAY,
        what="runs of {name!r} have waited for a share of their concurrency key for {long}",
        todo="To see which runs hold the shares: flask jobs admin list --status running",
        link=_OF_TASK,
    ),
    Check(
        id="orphaned-task",
        level="warning",
        look=_undeclared,
        patience=_A_DAY,
        what="runs of {name!r} have waited for {long}: this app's code does not declare that task",
        todo="Declare it, import the module that declares it, or cancel the runs: flask jobs admin "
        "cancel --task {quoted}",
        link=_OF_TASK,
    ),
    Check(
        id="snoozed",
        level="warning",
        look=_snoozed,
        rare="snoozed",
        patience=_A_DAY,
        what="run {run} of {name!r} was due {ago} and has been snoozed {other:,} times",
        todo="See what it waits for: flask jobs admin show {run}. To cancel it: flask jobs admin "
        "cancel {run}",
        link=_RUN,
    ),
    Check(
        id="open-batch",
        level="warning",
        look=_open_batches,
        rare="open_batches",
        patience=_A_DAY,
        what="the batch {name!r} was opened {ago} and has not been closed",
        todo="If all of its runs have been enqueued, close it: flask jobs admin batches "
        "--close {argument}",
        link=("runs", {"batch": "{name}"}),
    ),
    Check(
        id="pruning",
        level="warning",
        look=_unpruned,
        patience=_UNPRUNED,
        what="pruning is {long} behind: some rows should have been deleted that long ago",
        todo="If the delay grows, ticks cannot keep up or cannot delete: see their log. To delete "
        "the rows now: flask jobs admin prune",
    ),
    Check(
        id=WEBHOOK,
        level="warning",
        look=_failed_webhook,
        setting="alert_url",
        what="CRONJOBS_ALERT_URL has not answered for {long}",
        todo="It receives no findings meanwhile. The log of the ticks says why: search it for "
        "CRONJOBS_ALERT_URL.",
    ),
    Check(
        id="paused",
        level="warning",
        look=_paused,
        what="the {kind} {name} is paused",
        todo="To resume it: flask jobs admin resume --{kind} {quoted}",
        link=("runs", {"{kind}": "{name}"}),
        act=Button("Resume", ("work_act", {"act": "resume"}), {"what": "{kind}:{name}"}),
    ),
)
