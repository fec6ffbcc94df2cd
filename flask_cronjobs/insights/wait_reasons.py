"""The reasons why a run has not begun, for lists, pages and commands.

`backlog` counts the waiting runs, and `health_checks` finds runs that may wait forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Row, and_, false, func, not_, select, text, true

from ..core.tasks.rate import Rate
from ..models.conditions import ORDERED
from ..text.humanize import late, seconds_since, since
from .pauses import is_declared, not_paused, stopping
from .queues import is_unserved
from .reader import RATES, RUNS, STEPS, Reader
from .run_rows import RunRow


class Wait(NamedTuple):
    """The reason why a particular run has not begun.

    :ivar kind: the name of the reason, such as ``turn``.
    :ivar short: the reason in a few words.
    :ivar what: the reason as the rest of a sentence that begins with "It waits".
    :ivar run_id: the id of the run for which it waits.
    """

    kind: str
    short: str
    what: str
    run_id: int | None = None


class _Waiting(NamedTuple):
    """A run that waits.

    :ivar key: the row about its keys and steps; see `_of_keys`.
    :ivar others: by id, the runs that *key* refers to.
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
        """The run that must end first, if the run is in strict order."""
        return self.others.get(self.key.before)


def waits_of(reader: Reader, rows: Sequence[RunRow]) -> dict[int, tuple[Wait, ...]]:
    """Return the reasons why each unbegun run of *rows* waits, the main one first."""
    waiting = [row for row in rows if row.status in ("queued", "failed")]
    if not waiting:
        return {}
    keys = {row.id: row for row in reader.rows(_of_keys([row.id for row in waiting]))}
    other_ids = {run_id for row in keys.values() for run_id in (row.holder, row.before) if run_id}
    c = RUNS.c
    query = select(c.id, c.status, c.started_at).where(c.id.in_(other_ids))
    others = {row.id: row for row in reader.rows(query)} if other_ids else {}
    return {
        row.id: _reasons(_Waiting(reader, row, keys[row.id], others))
        for row in waiting
        if row.id in keys
    }


def _of_keys(ids: Sequence[int]) -> Any:
    """Return a SELECT of what the runs *ids* may wait for.

    These are the state of their rate, the step at which they wait, a run that holds a share of
    their key, and the run before them in strict order. Ranges make PostgreSQL follow the index of a
    key.
    """
    c = RUNS.c
    columns = c.id, c.concurrency_key.label("key"), c.concurrency_limit.label("most"), c.strict
    own = select(*columns, c.run_at, c.rate_key, c.gate).where(c.id.in_(ids)).subquery()
    rate = and_(RATES.c.key == own.c.rate_key, own.c.gate == "rate")
    has_share = (c.concurrency_key == own.c.key, c.concurrency_share <= own.c.most)
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
    waits = [wait for reason in REASONS for wait in reason.waits(waiting)]
    return tuple(waits or [_for_worker(waiting)])


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
        by = f" by {pause.paused_by}" if pause.paused_by else ""
        when = since(pause.paused_at, waiting.now)
        what = f"until the {pause.kind} {pause.name}, paused{by} {when}, is resumed"
        yield Wait("paused", f"{pause.kind} paused", what)


def _undeclared(waiting: _Waiting) -> Iterable[Wait]:
    if not is_declared(waiting.reader, waiting.row.task):
        what = "for code that declares its task: this app's code does not"
        yield Wait("undeclared", "task not declared", what)


def _unserved(waiting: _Waiting) -> Iterable[Wait]:
    row = waiting.row
    if row.queue in waiting.executors or row.run_at > waiting.now:
        return
    if is_unserved(waiting.reader, row.queue):
        what = f"for a worker that serves the queue {row.queue}: no host that ticks serves it"
        yield Wait("unserved", "no worker serves its queue", what)


def _at_its_rate(waiting: _Waiting) -> Iterable[Wait]:
    key = waiting.key
    if key.tat is None or waiting.row.run_at > waiting.now:
        return
    next_start = Rate(timedelta(seconds=key.period), key.burst).opens(key.tat)
    since_start = seconds_since(next_start, waiting.now)
    if since_start > -1:
        yield Wait("rate", "for its rate", "for a worker: its rate allows a start now")
    else:
        what = f"for its rate, next start {late(since_start)}"
        yield Wait("rate", what, what)


def _without_share(waiting: _Waiting) -> Iterable[Wait]:
    holder = waiting.others.get(waiting.key.holder)
    is_due = waiting.row.run_at <= waiting.now
    if holder is not None and waiting.before is None and is_due:
        began = since(holder.started_at, waiting.now)
        what = f"for a share of its concurrency key: run {holder.id}, started {began}, holds one"
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
        yield Wait("signal", f"for {name}", f"for the signal {name}: the wait times out {due}")
    elif kind == "sleep":
        yield Wait("sleep", f"sleeps, due {due}", f"for the end of the sleep {name}: {due}")
    else:
        yield Wait("later", due, f"until it is due: {due}")


Condition: TypeAlias = Callable[[Reader], ColumnElement[bool]]


class Reason(NamedTuple):
    """A reason why runs wait.

    :ivar waits: yields the `Wait` of a run, if the run waits for this reason.
    :ivar kind: the name of the reason for the filter; empty if the filter cannot find it.
    :ivar label: the words on the pages after "Waits for".
    :ivar condition: returns the condition that an unbegun run waits for this reason.
    """

    waits: Callable[[_Waiting], Iterable[Wait]]
    kind: str = ""
    label: str = ""
    condition: Condition | None = None


def _of_no_task_here(reader: Reader) -> ColumnElement[bool]:
    tasks = list(reader.state.registry.tasks)
    return RUNS.c.job_type.not_in(tasks) if tasks else false()


def _of_a_pause(reader: Reader) -> ColumnElement[bool]:
    return not_(and_(true(), *not_paused(reader)))


def _waits_for_rate(_: Reader) -> ColumnElement[bool]:
    return RUNS.c.gate == "rate"


def _is_behind(_: Reader) -> ColumnElement[bool]:
    """Return the condition that an earlier run comes first in the strict order of the key."""
    earlier = RUNS.alias("earlier")
    in_key = and_(earlier.c.concurrency_key == RUNS.c.concurrency_key, earlier.c.id < RUNS.c.id)
    return and_(RUNS.c.strict, select(earlier.c.id).where(text(ORDERED), in_key).exists())


def _is_later(reader: Reader) -> ColumnElement[bool]:
    return RUNS.c.run_at > reader.now


#: The reasons; lists show the first that applies. To add one, add a row and its function.
REASONS = (
    Reason(_in_order, "turn", "its turn", _is_behind),
    Reason(_paused, "paused", "the end of a pause", _of_a_pause),
    Reason(_undeclared, "undeclared", "code that declares its task", _of_no_task_here),
    Reason(_unserved),
    Reason(_at_its_rate, "rate", "its rate", _waits_for_rate),
    Reason(_without_share),
    Reason(_for_executor),
    Reason(_not_due, "later", "its due time", _is_later),
)
#: The reasons that the filter can find, by name.
WAITS = {reason.kind: reason for reason in REASONS if reason.kind}


def waits_for(reader: Reader, kind: str) -> ColumnElement[bool]:
    """Return the condition that an unbegun run waits for *kind*, one of `WAITS`."""
    condition = WAITS[kind].condition
    return false() if condition is None else condition(reader)
