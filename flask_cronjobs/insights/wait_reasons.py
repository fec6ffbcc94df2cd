"""Why one run that has not begun waits: a list of reasons, for lists, pages and commands.

How much waits, `backlog` says; `checks` what may wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import Row, and_, func, select, text

from ..core.tasks.options import Rate
from ..models.conditions import ORDERED
from ..text.humanize import late, seconds_since, since
from .pauses import is_declared, stopping
from .queues import is_unserved
from .reader import RATES, RUNS, STEPS, Reader
from .run_rows import RunRow

#: Kinds of reasons that end as other runs do.
ForOthers: TypeAlias = Literal["turn", "rate", "share", "executor", "worker"]
#: Those that end at the time when the run is due.
Timed: TypeAlias = Literal["later", "signal", "sleep"]
#: Those that somebody must end.
ForSomebody: TypeAlias = Literal["paused", "undeclared", "unserved"]


class Wait(NamedTuple):
    """One reason why a run has not begun.

    :ivar kind: its name, such as ``turn``.
    :ivar short: the reason for people, in a few words.
    :ivar what: the same as the end of "It waits".
    :ivar run_id: the run for which it waits.
    """

    kind: ForOthers | Timed | ForSomebody
    short: str
    what: str
    run_id: int | None = None


class _Waiting(NamedTuple):
    """A run that waits.

    :ivar key: what the rows say of its keys and its steps, see `_of_keys`.
    :ivar others: the runs that are named there, by id.
    """

    reader: Reader
    row: RunRow
    key: Row[Any]
    others: Mapping[int, Row[Any]]

    @property
    def now(self) -> datetime:
        """The database's now."""
        return self.reader.now

    @property
    def executors(self) -> Iterable[str]:
        """The queues that have an executor."""
        return self.reader.state.settings.executors

    @property
    def before(self) -> Row[Any] | None:
        """In a strict order, the run that must end first."""
        return self.others.get(self.key.before)


def waits_of(reader: Reader, rows: Sequence[RunRow]) -> dict[int, tuple[Wait, ...]]:
    """Return of each of *rows* that has not begun why it waits, the first reason first."""
    waiting = [row for row in rows if row.status in ("queued", "failed")]
    if not waiting:
        return {}
    keys = {row.id: row for row in reader.rows(_of_keys([row.id for row in waiting]))}
    named = {each for row in keys.values() for each in (row.holder, row.before) if each}
    c = RUNS.c
    found = select(c.id, c.status, c.started_at).where(c.id.in_(named))
    others = {row.id: row for row in reader.rows(found)} if named else {}
    return {
        row.id: _reasons(_Waiting(reader, row, keys[row.id], others))
        for row in waiting
        if row.id in keys
    }


def _of_keys(ids: Sequence[int]) -> Any:
    """Return the SELECT of runs, each with who has the shares of its key, and who comes before it.

    In ranges, so that PostgreSQL goes along the index of a key.
    """
    c = RUNS.c
    columns = c.id, c.concurrency_key.label("key"), c.concurrency_limit.label("most"), c.strict
    own = select(*columns, c.run_at, c.rate_key, c.rate_mark).where(c.id.in_(ids)).subquery()
    rate = and_(RATES.c.key == own.c.rate_key, own.c.rate_mark.is_not(None))
    has_share = (c.concurrency_key == own.c.key, c.concurrency_share.is_not(None))
    taken = select(func.count()).where(*has_share).scalar_subquery()
    first = select(c.id).where(*has_share).order_by(c.concurrency_share).limit(1)
    in_key = (c.concurrency_key >= own.c.key, c.concurrency_key <= own.c.key, c.id < own.c.id)
    earlier = select(c.id).where(text(ORDERED), own.c.strict, *in_key)
    before = earlier.order_by(c.concurrency_key, c.id).limit(1)
    s = STEPS.c
    waits = (s.run_id == own.c.id, s.due_at == own.c.run_at, s.finished_at.is_(None))
    step = select(s.kind + " " + s.name).where(*waits).limit(1)
    return select(
        own.c.id,
        *(RATES.c.tat, RATES.c.period, RATES.c.burst),
        step.scalar_subquery().label("step"),
        first.where(taken >= own.c.most).scalar_subquery().label("holder"),
        before.scalar_subquery().label("before"),
    ).select_from(own.outerjoin(RATES, rate))


def _reasons(waiting: _Waiting) -> tuple[Wait, ...]:
    found = [wait for reason in REASONS for wait in reason(waiting)]
    return tuple(found or [_for_worker(waiting)])


def _for_worker(waiting: _Waiting) -> Wait:
    due = _due(waiting)
    return Wait("worker", f"for a worker, {due}", f"for a worker: {due}")


def _due(waiting: _Waiting) -> str:
    return late(seconds_since(waiting.row.run_at, waiting.now))


def _in_order(waiting: _Waiting) -> Iterable[Wait]:
    before = waiting.before
    if before is not None:
        what = f"for run {before.id}, which comes before it in the order of its key"
        yield Wait("turn", f"behind run {before.id}", what, before.id)


def _paused(waiting: _Waiting) -> Iterable[Wait]:
    row = waiting.row
    for pause in stopping(waiting.reader, row.task, row.queue):
        by, when = pause.paused_by or "somebody", since(pause.paused_at, waiting.now)
        what = f"until the {pause.kind} {pause.name} is resumed: {by} paused it {when}"
        yield Wait("paused", f"{pause.kind} paused", what)


def _undeclared(waiting: _Waiting) -> Iterable[Wait]:
    if not is_declared(waiting.reader, waiting.row.task):
        what = "for code that declares its task: this app's does not"
        yield Wait("undeclared", "task not declared", what)


def _unserved(waiting: _Waiting) -> Iterable[Wait]:
    row = waiting.row
    if row.queue in waiting.executors or row.run_at > waiting.now:
        return
    if is_unserved(waiting.reader, row.queue):
        what = f"for a worker that serves the queue {row.queue}: of those that tick, none does"
        yield Wait("unserved", "no worker serves its queue", what)


def _at_its_rate(waiting: _Waiting) -> Iterable[Wait]:
    key = waiting.key
    if key.tat is None or waiting.row.run_at > waiting.now:
        return
    next_start = Rate(timedelta(seconds=key.period), key.burst).opens(key.tat)
    since_start = seconds_since(next_start, waiting.now)
    if since_start > -1:
        yield Wait("rate", "for its rate", "for its rate, a worker takes the next")
    else:
        what = f"for its rate, next {late(since_start)}"
        yield Wait("rate", what, what)


def _without_share(waiting: _Waiting) -> Iterable[Wait]:
    holder = waiting.others.get(waiting.key.holder)
    if holder is not None and waiting.before is None:
        began = since(holder.started_at, waiting.now)
        what = f"for a share of its concurrency key: run {holder.id} has one, begun {began}"
        yield Wait("share", f"key busy: run {holder.id}", what, holder.id)


def _for_executor(waiting: _Waiting) -> Iterable[Wait]:
    if waiting.row.queue in waiting.executors and waiting.row.run_at <= waiting.now:
        yield Wait("executor", "for its executor", "to be handed to the executor of its queue")


def _not_due(waiting: _Waiting) -> Iterable[Wait]:
    if seconds_since(waiting.row.run_at, waiting.now) > -1:
        return
    due = _due(waiting)
    kind, _, name = (waiting.key.step or "").partition(" ")
    if kind == "wait":
        yield Wait("signal", f"for {name}", f"for the signal {name}: it times out {due}")
    elif kind == "sleep":
        yield Wait("sleep", f"sleeps, {due}", f"for the end of the sleep {name}: {due}")
    else:
        yield Wait("later", due, f"for its time: {due}")


#: The first is the one that lists show. A new one is a function here.
REASONS: tuple[Callable[[_Waiting], Iterable[Wait]], ...] = (
    _in_order,
    _paused,
    _undeclared,
    _unserved,
    _at_its_rate,
    _without_share,
    _for_executor,
    _not_due,
)
