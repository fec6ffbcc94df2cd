"""Work that stands still though ticks come, since what it waits for does not come.

Each kind of waiting has an age from which on the verdict names it. Those that no tick ends make
health ``overdue``; those that somebody may want are told, and no more.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from sqlalchemy import String, and_, func, literal, select, text, union_all

from ..models.conditions import KEYED, KEYED_GROUPS, OPEN_BATCH, ORDERED, RUNNABLE, SNOOZED
from .humanize import ago, duration, seconds_since
from .reader import BATCHES, RUNS, Query, Reader
from .waiting import PauseView, Waiting, names, not_paused, ours

#: ``order``: behind a run in strict order whose task no code here declares; ``held``: for a run
#: that has had its key for longer than any timeout; ``share``: for a share of its key;
#: ``undeclared``: for code that declares its task; ``snoozes``: by its own handler; ``batch``: for
#: somebody to close it. The most urgent first.
Kind: TypeAlias = Literal["order", "held", "share", "undeclared", "snoozes", "batch"]
#: How long work may wait that somebody may want to wait.
PATIENCE = timedelta(days=1)
#: How many first runs of a strict order are looked at.
_HEADS = 1_000


@dataclass(frozen=True, slots=True)
class Stalled:
    """The work of one kind that stands still, by what has waited longest.

    :ivar seconds: for how long it has waited.
    :ivar what: the same for people, as the end of a sentence.
    :ivar todo: what to do about it.
    :ivar overdue: whether health is ``overdue`` for it.
    """

    kind: Kind
    seconds: float
    what: str
    todo: str
    overdue: bool


def stalled(
    reader: Reader, groups: Sequence[Waiting], paused: Sequence[PauseView]
) -> tuple[Stalled, ...]:
    """Return what stands still, the most urgent first.

    :param groups: what `waiting_groups` found.
    :param paused: what `pauses` found; it waits for somebody to resume it.
    """
    found = [*_of_groups(reader, groups, paused), *_of_runs(reader, groups, paused)]
    order = {kind: at for at, kind in enumerate(_KINDS)}
    return tuple(sorted(found, key=lambda each: order[each.kind]))


def _of_groups(
    reader: Reader, groups: Sequence[Waiting], paused: Sequence[PauseView]
) -> Iterator[Stalled]:
    before, known = reader.now - PATIENCE, reader.state.registry.tasks
    tasks, queues = names(paused, "task"), names(paused, "queue")
    first: dict[Kind, Waiting] = {}
    for group in groups:
        if group.oldest > before or group.task in tasks or group.queue in queues:
            continue
        kind: Kind = "share" if not known or group.task in known else "undeclared"
        waits = kind == "undeclared" or group.due is None or group.due > group.oldest
        if waits and (kind not in first or group.oldest < first[kind].oldest):
            first[kind] = group
    for kind, group in first.items():
        yield _stalled(reader, kind, 0, group.task, 0, group.oldest)


def _of_runs(
    reader: Reader, groups: Sequence[Waiting], paused: Sequence[PauseView]
) -> list[Stalled]:
    before = reader.now - timedelta(seconds=reader.state.settings.health_overdue)
    known = reader.state.registry.tasks
    unknown = {each.task for each in groups if known and each.task not in known}
    parts = [
        _held(reader, paused, before),
        _snoozed(reader, paused),
        _open_batch(reader),
        *([_behind(reader, paused, before, sorted(unknown))] if unknown else []),
    ]
    rows = reader.rows(union_all(*(select(part.subquery()) for part in parts)))
    return [_stalled(reader, row.kind, row.run, row.name, row.other, row.since) for row in rows]


def _held(reader: Reader, paused: Sequence[PauseView], before: datetime) -> Query:
    """Return a SELECT of a run that waits for others, which have all shares of its key too long."""
    settings = reader.state.settings
    timeouts = (task.options.timeout or 0.0 for task in reader.state.registry.tasks.values())
    longest = max(settings.timeout, *timeouts, 0.0) + settings.shutdown_grace
    held = (
        select(
            RUNS.c.concurrency_key.label("held_key"),
            func.min(RUNS.c.id).label("holder"),
            func.count().label("shares"),
            func.max(RUNS.c.started_at).label("since"),
        )
        .where(
            RUNS.c.concurrency_share.is_not(None),
            RUNS.c.started_at <= before - timedelta(seconds=longest),
        )
        .group_by(RUNS.c.concurrency_key)
        .subquery()
    )
    waits = select(RUNS.c.id).where(
        RUNS.c.concurrency_key == held.c.held_key, RUNS.c.run_at <= before
    )
    for_share = waits.where(text(KEYED), RUNS.c.concurrency_limit <= held.c.shares).order_by(
        RUNS.c.concurrency_key, RUNS.c.priority.desc(), RUNS.c.run_at, RUNS.c.id
    )
    shares, turn = ours(
        reader, [for_share, _next_in_order(waits, held.c.held_key, held.c.holder)], paused
    )
    waiter = func.coalesce(
        shares.limit(1).scalar_subquery(), turn.limit(1).scalar_subquery()
    ).label("waiter")
    found = select(waiter, held.c.held_key, held.c.holder, held.c.since).subquery()
    rows = _columns("held", found.c.waiter, found.c.held_key, found.c.holder, found.c.since)
    return rows.where(found.c.waiter.is_not(None)).order_by(found.c.since).limit(1)


def _behind(
    reader: Reader, paused: Sequence[PauseView], before: datetime, unknown: Sequence[str]
) -> Query:
    """Return a SELECT of a run that waits behind one of the *unknown* tasks in a strict order."""
    head = (
        select(RUNS.c.id, RUNS.c.concurrency_key, RUNS.c.job_type, RUNS.c.run_at)
        .where(text(KEYED_GROUPS), RUNS.c.job_type.in_(unknown), RUNS.c.run_at <= before)
        .where(RUNS.c.on_dead.is_not(None), *not_paused(reader, paused))
        .limit(_HEADS)
        .subquery()
    )
    waits = select(RUNS.c.id).where(RUNS.c.run_at <= before)
    (turn,) = ours(reader, [_next_in_order(waits, head.c.concurrency_key, head.c.id)], paused)
    found = select(turn.limit(1).scalar_subquery().label("waiter"), head).subquery()
    rows = _columns("order", found.c.waiter, found.c.job_type, found.c.id, found.c.run_at)
    return rows.where(found.c.waiter.is_not(None)).order_by(found.c.run_at).limit(1)


def _next_in_order(waits: Query, key: Any, run_id: Any) -> Query:
    """Return *waits* for those that wait behind *run_id* in the strict order of *key*."""
    # In ranges, so that PostgreSQL goes along the index of the key.
    c = RUNS.c
    in_key = and_(c.concurrency_key >= key, c.concurrency_key <= key, c.id > run_id)
    return waits.where(text(ORDERED), text(RUNNABLE), in_key).order_by(c.concurrency_key, c.id)


def _snoozed(reader: Reader, paused: Sequence[PauseView]) -> Query:
    c = RUNS.c
    rows = _columns("snoozes", c.id, c.job_type, c.snoozes, c.scheduled_for)
    rows = rows.where(text(SNOOZED), c.scheduled_for <= reader.now - PATIENCE)
    return ours(reader, [rows], paused)[0].order_by(c.id).limit(1)


def _open_batch(reader: Reader) -> Query:
    c = BATCHES.c
    rows = _columns("batch", literal(0), c.key, literal(0), c.opened_at)
    left = (text(OPEN_BATCH), c.closed_at.is_(None), c.opened_at < reader.now - PATIENCE)
    return rows.where(*left).order_by(c.id).limit(1)


def _columns(kind: Kind, run_id: Any, name: Any, other: Any, since: Any) -> Query:
    """Return a SELECT of the parameters of `_stalled`."""
    named = {"kind": literal(kind, String), "run": run_id, "name": name, "other": other}
    return select(*(value.label(key) for key, value in named.items()), since.label("since"))


def _stalled(
    reader: Reader, kind: Kind, run_id: int, name: str, other: int, since: datetime
) -> Stalled:
    seconds = max(seconds_since(since, reader.now), 0.0)
    what, todo, overdue = _KINDS[kind]
    values = {
        "run": run_id,
        "name": repr(name),
        "quoted": shlex.quote(name),
        "other": other,
        "number": f"{other:,}",
        "long": duration(seconds),
        "ago": ago(seconds),
    }
    return Stalled(kind, seconds, what.format(**values), todo.format(**values), overdue)


#: Of each kind, the most urgent first: what it is, what to do, and whether health is overdue.
_KINDS: dict[Kind, tuple[str, str, bool]] = {
    "order": (
        "run {run} waits in strict order behind run {other}, whose task {name} this app's code "
        "does not declare",
        "Declare the task, import the module that does, or: flask jobs admin cancel {other}",
        True,
    ),
    "held": (
        "run {run} waits for run {other}, which has held the concurrency key {name} for {long}",
        "See what it does, and end it: flask jobs admin show {other}",
        True,
    ),
    "share": (
        "runs of {name} have waited for a share of their concurrency key for {long}",
        "See what has the shares: flask jobs admin list --status running",
        False,
    ),
    "undeclared": (
        "runs of {name} have waited for {long}: this app's code does not declare that task",
        "Declare it, import the module that does, or: flask jobs admin cancel --task {quoted}",
        False,
    ),
    "snoozes": (
        "run {run} of {name} was due {ago} and has been snoozed {number} times",
        "See what it waits for, or cancel it: flask jobs admin show {run}",
        False,
    ),
    "batch": (
        "the batch {name} was opened {ago} and not closed",
        "If all of its runs are in: flask jobs admin batches {quoted} --close",
        False,
    ),
}
