"""Work that may never start, though ticks come: a list of reasons, and what has waited longest.

A pause, a task of other code, a taken share and a turn keep runs waiting, see `runs.wait_reasons`.
Most such waiting is as somebody wants it, and ends by itself. `REASONS` are those that may never
end: each has an age from which on the verdict, the pages, the commands, the doctor and the metrics
name it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import Row, String, and_, func, literal, select, text, union_all

from ..models.conditions import (
    KEYED,
    KEYED_GROUPS,
    OPEN_BATCH,
    ORDERED,
    RATE_WAITS,
    RUNNABLE,
    SNOOZED,
)
from ..text import one_line
from .backlog import Waiting, unpaused_groups, waiting_groups
from .humanize import Link, ago, duration, seconds_since
from .pauses import is_declared, not_paused, ours
from .reader import BATCHES, RUNS, Query, Reader

#: ``order``: behind a run in strict order whose task no code here declares; ``held``: for a run
#: that has had its key for longer than any timeout; ``share``: for a share of its key;
#: ``undeclared``: for code that declares its task; ``snoozes``: by its own handler; ``batch``: for
#: somebody to close it.
Kind: TypeAlias = Literal["order", "held", "share", "undeclared", "snoozes", "batch"]
#: How long work may wait that somebody may want to wait.
_A_DAY = timedelta(days=1)
#: How many first runs of a strict order are looked at.
_HEADS = 1_000


class Reason(NamedTuple):
    """Why work may never start, though ticks come.

    :ivar overdue: whether health is ``overdue`` for it; if not, somebody may want it so.
    :ivar patience: for how long work may wait before it is named; None:
        ``CRONJOBS_HEALTH_OVERDUE``.
    :ivar what: what is said of it, as the end of a sentence.
    :ivar todo: what to do about it.
    :ivar link: the page that shows it, with which value of the SELECT's row each argument gets.
    :ivar waiting: returns a SELECT, made by `_columns`, of what has waited since before a time, the
        oldest first; None if nothing has.
    """

    kind: Kind
    overdue: bool
    patience: timedelta | None
    what: str
    todo: str
    link: tuple[str, Mapping[str, str]]
    waiting: Callable[[Reader, datetime], Query | None]


@dataclass(frozen=True, slots=True)
class Stalled:
    """The work of one kind that stands still, by what has waited longest.

    :ivar seconds: for how long it has waited.
    :ivar what: the same for people, as the end of a sentence.
    :ivar todo: what to do about it.
    :ivar overdue: whether health is ``overdue`` for it.
    :ivar since: since when it has waited.
    :ivar link: the page that shows it.
    """

    kind: Kind
    seconds: float
    what: str
    todo: str
    overdue: bool
    since: datetime
    link: Link


def stalled(reader: Reader) -> tuple[Stalled, ...]:
    """Return the work that stands still, the most urgent first; of each kind, the oldest."""
    parts: list[Query] = []
    overdue = timedelta(seconds=reader.state.settings.health_overdue)
    for reason in REASONS:
        some = reason.waiting(reader, reader.now - (reason.patience or overdue))
        if some is not None:
            named = literal(reason.kind, String).label("kind")
            parts.append(select(named, some.limit(1).subquery()))
    found = union_all(*parts).subquery()
    label = select(RUNS.c.label).where(RUNS.c.id == found.c.run).scalar_subquery()
    rows = reader.rows(select(found, label.label("label")))
    return tuple(
        _stalled(reader, reason, row)
        for reason in REASONS
        for row in rows
        if row.kind == reason.kind
    )


def _stalled(reader: Reader, reason: Reason, row: Row[Any]) -> Stalled:
    seconds = max(seconds_since(row.since, reader.now), 0.0)
    values = {
        "run": f"{row.run} ({one_line(row.label)})" if row.label else row.run,
        "id": row.run,
        "name": repr(row.name),
        "quoted": shlex.quote(row.name),
        "other": row.other,
        "number": f"{row.other:,}",
        "long": duration(seconds),
        "ago": ago(seconds),
    }
    what, todo = reason.what.format(**values), reason.todo.format(**values)
    page, arguments = reason.link
    link = (page, {name: getattr(row, value) for name, value in arguments.items()})
    return Stalled(reason.kind, seconds, what, todo, reason.overdue, row.since, link)


def _columns(run_id: Any, name: Any, other: Any, since: Any) -> Query:
    """Return a SELECT of what the texts of a `Reason` may name."""
    named = {"run": run_id, "name": name, "other": other, "since": since}
    return select(*(value.label(key) for key, value in named.items()))


def _behind(reader: Reader, before: datetime) -> Query | None:
    """Select a run that waits in a strict order behind one whose task no code here declares."""
    unknown = [each for each in waiting_groups(reader) if not is_declared(reader, each.task)]
    if not unknown:
        return None
    at_rate = RUNS.c.rate_key.in_({each.rate_key for each in unknown if each.rate_key is not None})
    heads = (
        select(RUNS.c.id, RUNS.c.concurrency_key, RUNS.c.job_type, RUNS.c.run_at)
        .where(*rows, RUNS.c.job_type.in_({each.task for each in unknown}), RUNS.c.run_at <= before)
        .where(RUNS.c.on_dead.is_not(None), *not_paused(reader))
        .limit(_HEADS)
        .subquery()
        for rows in ([text(KEYED_GROUPS)], [text(RATE_WAITS), at_rate])
    )
    head: Any = union_all(*(select(each) for each in heads)).subquery()
    waiter = _next_in_order(reader, before, head.c.concurrency_key, head.c.id)
    found = select(waiter.label("waiter"), head).subquery()
    rows = _columns(found.c.waiter, found.c.job_type, found.c.id, found.c.run_at)
    return rows.where(found.c.waiter.is_not(None)).order_by(found.c.run_at)


def _held(reader: Reader, before: datetime) -> Query:
    """Select a run that waits for others, which have all shares of its key too long."""
    settings, c = reader.state.settings, RUNS.c
    timeouts = (task.options.timeout or 0.0 for task in reader.state.registry.tasks.values())
    longest = timedelta(seconds=max(settings.timeout, *timeouts, 0.0) + settings.shutdown_grace)
    held = (
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
        .where(text(KEYED), c.concurrency_key == held.c.key, c.run_at <= before, *ours(reader))
        .where(c.concurrency_limit <= held.c.shares)
        .order_by(c.concurrency_key, c.priority.desc(), c.run_at, c.id)
        .limit(1)
        .scalar_subquery()
    )
    for_turn = _next_in_order(reader, before, held.c.key, held.c.holder)
    found = select(func.coalesce(for_share, for_turn).label("waiter"), held).subquery()
    rows = _columns(found.c.waiter, found.c.key, found.c.holder, found.c.since)
    return rows.where(found.c.waiter.is_not(None)).order_by(found.c.since)


def _next_in_order(reader: Reader, before: datetime, key: Any, run_id: Any) -> Query:
    """Return a subquery of the run that waits behind *run_id* in the strict order of *key*."""
    # In ranges, so that PostgreSQL goes along the index of the key.
    c = RUNS.c
    in_key = and_(c.concurrency_key >= key, c.concurrency_key <= key, c.id > run_id)
    waits = select(c.id).where(text(ORDERED), text(RUNNABLE), in_key, c.run_at <= before)
    first = waits.where(*ours(reader)).order_by(c.concurrency_key, c.id).limit(1)
    return first.scalar_subquery()


def _without_share(reader: Reader, before: datetime) -> Query | None:
    groups = (each for each in unpaused_groups(reader) if is_declared(reader, each.task))
    return _first(
        each
        for each in groups
        if each.oldest <= before and each.due != each.oldest and each.rate_key is None
    )


def _undeclared(reader: Reader, before: datetime) -> Query | None:
    groups = (each for each in unpaused_groups(reader) if not is_declared(reader, each.task))
    return _first(each for each in groups if each.oldest <= before)


def _first(groups: Iterable[Waiting]) -> Query | None:
    first = min(groups, key=lambda group: group.oldest, default=None)
    if first is None:
        return None
    since = literal(first.oldest, RUNS.c.run_at.type)
    return _columns(literal(0), literal(first.task, String), literal(0), since)


def _snoozed(reader: Reader, before: datetime) -> Query:
    c = RUNS.c
    rows = _columns(c.id, c.job_type, c.snoozes, c.scheduled_for)
    return rows.where(text(SNOOZED), c.scheduled_for <= before, *ours(reader)).order_by(c.id)


def _open_batches(reader: Reader, before: datetime) -> Query:
    c = BATCHES.c
    rows = _columns(literal(0), c.key, literal(0), c.opened_at)
    return rows.where(text(OPEN_BATCH), c.closed_at.is_(None), c.opened_at < before).order_by(c.id)


_ITS_RUN = ("run", {"run_id": "run"})
#: The most urgent first. A new one is a row here; `docs/pages.md` lists them.
REASONS = (
    Reason(
        "order",
        True,
        None,
        "run {run} waits in strict order behind run {other}, whose task {name} this app's code "
        "does not declare",
        "Declare the task, import the module that does, or: flask jobs admin cancel {other}",
        _ITS_RUN,
        _behind,
    ),
    Reason(
        "held",
        True,
        None,
        "run {run} waits for run {other}, which has held the concurrency key {name} for {long}",
        "See what it does, and end it: flask jobs admin show {other}",
        _ITS_RUN,
        _held,
    ),
    Reason(
        "share",
        False,
        _A_DAY,
        "runs of {name} have waited for a share of their concurrency key for {long}",
        "See what has the shares: flask jobs admin list --status running",
        ("runs", {"task": "name"}),
        _without_share,
    ),
    Reason(
        "undeclared",
        False,
        _A_DAY,
        "runs of {name} have waited for {long}: this app's code does not declare that task",
        "Declare it, import the module that does, or: flask jobs admin cancel --task {quoted}",
        ("runs", {"task": "name"}),
        _undeclared,
    ),
    Reason(
        "snoozes",
        False,
        _A_DAY,
        "run {run} of {name} was due {ago} and has been snoozed {number} times",
        "See what it waits for, or cancel it: flask jobs admin show {id}",
        _ITS_RUN,
        _snoozed,
    ),
    Reason(
        "batch",
        False,
        _A_DAY,
        "the batch {name} was opened {ago} and not closed",
        "If all of its runs are in: flask jobs admin batches {quoted} --close",
        ("batch", {"key": "name"}),
        _open_batches,
    ),
)
