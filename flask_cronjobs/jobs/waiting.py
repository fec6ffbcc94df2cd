"""What waits to run: by task and queue, however many runs there are; the runs; what is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, String, and_, bindparam, column, func, or_, select, text

from ..db.dialect import Dialect
from ..models.columns import UTCDateTime
from ..models.conditions import (
    HANDED,
    KEYED,
    KEYED_GROUPS,
    RUNNING,
    SCHEDULED,
    UNKEYED,
    UNKEYED_GROUPS,
)
from ..types import PauseKind
from .reader import DEFINITIONS, PAUSES, RUNS, Query, Reader, Source, reading

#: From so many tasks, queues and priorities on, each with a step of its own, it is faster to read
#: all runs.
MOST_STEPS = 1_000
#: For more priorities than these, `first_due` reads all runs.
MOST_PRIORITIES = 10
_GROUP = ("job_type", "queue", "priority")
_UP = f"{', '.join(_GROUP)}, run_at, id"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting runs of a task in a queue, of one priority or of several.

    :ivar oldest: when the first of them was, or will be, due.
    :ivar due: the same of those that a tick could run now; None if there are none. Runs whose
        concurrency key is at its limit are left out.
    """

    task: str
    queue: str
    oldest: datetime
    due: datetime | None


def waiting_groups(reader: Reader) -> list[Waiting]:
    """Return what waits, by task and queue; there may be several of the same.

    It goes from one task, queue and priority to the next, in the order of an index, and reads one
    run of each. So a backlog costs no more than a few runs.
    """
    rows = _rows(reader, _by_steps(reader.dialect))
    if len(rows) >= MOST_STEPS:
        rows = _rows(reader, _by_reading_all())
    return rows


def oldest_due(
    reader: Reader, groups: Sequence[Waiting], paused: Sequence[PauseView]
) -> datetime | None:
    """Return since when the oldest run has been due that our ticks or executors could run."""
    tasks, queues = names(paused, "task"), names(paused, "queue")
    known = reader.state.registry.tasks
    due = [
        group.due
        for group in groups
        if (not known or group.task in known)
        and group.task not in tasks
        and group.queue not in queues
    ]
    if reader.state.settings.executors:
        (in_brokers,) = ours(reader, [handed(reader.now)], paused)
        first = in_brokers.order_by(RUNS.c.run_at).limit(1)
        due += [row.run_at for row in reader.rows(first)]
    return min((moment for moment in due if moment is not None), default=None)


def waiting(before: datetime) -> tuple[Query, Query]:
    """Return statements for runnable runs due *before*: without a concurrency key, and with one.

    These are two statements, since each has its own partial index. Runs whose key is at its limit
    are left out, since no tick can run them.
    """
    free = select(RUNS.c.id, RUNS.c.run_at).where(text(UNKEYED), RUNS.c.run_at <= before)
    return free, _keyed(before)


def handed(before: datetime) -> Query:
    """Return the statement for runs that wait in the brokers of executors and were due *before*."""
    return select(RUNS.c.id, RUNS.c.run_at).where(text(HANDED), RUNS.c.run_at <= before)


def overdue(reader: Reader, before: datetime) -> list[Query]:
    """Return `waiting`, and `handed` if the app has executors."""
    return [*waiting(before), *([handed(before)] if reader.state.settings.executors else [])]


def first_due(reader: Reader, parts: Sequence[Query], limit: int) -> Iterator[Query]:
    """Return statements for the first *limit* rows of *parts*, in the order of their due times.

    The indexes of waiting runs begin with the priority: so there is a statement for each, unless
    there are many.

    :param parts: SELECTs: of runs without a concurrency key, of runs with one, and of those that
        wait in a strict order, which no index has by their due times.
    """
    yield from parts[2:]
    for part, rows in zip(parts, (UNKEYED, KEYED), strict=False):
        found = [row.priority for row in reader.rows(_priorities(rows))]
        if len(found) > MOST_PRIORITIES:
            yield part
            continue
        for priority in found or [0]:
            first = part.where(RUNS.c.priority == priority).order_by(RUNS.c.run_at, RUNS.c.id)
            yield first.limit(limit)


def _priorities(rows: str) -> Query:
    highest = select(func.max(RUNS.c.priority).label("priority")).where(text(rows))
    steps = highest.cte("steps", recursive=True)
    lower = highest.where(RUNS.c.priority < steps.c.priority).scalar_subquery()
    steps = steps.union_all(select(lower).where(steps.c.priority.is_not(None)))
    found = select(steps.c.priority).where(steps.c.priority.is_not(None))
    return found.limit(MOST_PRIORITIES + 1)


def waiting_for_us(reader: Reader, before: datetime, paused: Sequence[PauseView]) -> list[Query]:
    """Return `overdue`, without what is paused, and without the tasks of other code.

    No tick of this app is slow for those.
    """
    return ours(reader, overdue(reader, before), paused)


def ours(reader: Reader, found: Sequence[Query], paused: Sequence[PauseView]) -> list[Query]:
    """Return *found* without what is paused, and without the tasks of other code."""
    found = [each.where(*not_paused(reader, paused)) for each in found]
    if tasks := list(reader.state.registry.tasks):
        found = [each.where(RUNS.c.job_type.in_(tasks)) for each in found]
    return found


def _keyed(before: datetime) -> Query:
    runs = select(RUNS.c.id, RUNS.c.run_at).add_cte(_TAKEN)
    return runs.where(text(KEYED), RUNS.c.run_at <= before, text(_HAS_SHARE))


def _rows(reader: Reader, sql: str) -> list[Waiting]:
    statement = text(sql).bindparams(bindparam("now", reader.now, UTCDateTime()))
    columns = (column(name, String) for name in ("job_type", "queue"))
    times = (column(name, UTCDateTime()) for name in ("oldest", "due"))
    rows = reader.rows(statement.columns(*columns, *times))
    return [Waiting(row.job_type, row.queue, row.oldest, row.due) for row in rows]


_TAKEN_SHARES = """
    SELECT concurrency_key AS key, count(*) AS number FROM job_runs
    WHERE concurrency_share IS NOT NULL GROUP BY concurrency_key
"""
_TAKEN = text(_TAKEN_SHARES).columns(column("key"), column("number")).cte("taken")
#: Of a run with a key. The condition of the partial index must name no table: so no join.
_HAS_SHARE = """
    COALESCE((SELECT number FROM taken WHERE key = job_runs.concurrency_key), 0) < concurrency_limit
"""


def _by_steps(d: Dialect) -> str:
    same = " AND ".join(f"{name} {{}} keyed.{name}" for name in _GROUP)
    if not d.arrays:
        in_group = same.format(*["="] * 3)
    else:
        # Not by ``=``: then the order would mean nothing, and the planner might choose any index.
        in_group = " AND ".join(_compare(sign, "keyed") for sign in (">=", "<="))
    first_due = f"""
        SELECT run_at FROM job_runs
        WHERE {KEYED_GROUPS} AND {in_group} AND run_at <= :now AND {_HAS_SHARE}
        ORDER BY {_UP} LIMIT 1
    """
    return f"""
    WITH RECURSIVE taken AS ({_TAKEN_SHARES}),
    {_steps("free", UNKEYED_GROUPS, d)},
    {_steps("keyed", KEYED_GROUPS, d)}
    SELECT job_type, queue, run_at AS oldest, CASE WHEN run_at <= :now THEN run_at END AS due
    FROM (SELECT * FROM free LIMIT {MOST_STEPS}) AS some_free
    UNION ALL
    SELECT job_type, queue, run_at, ({first_due})
    FROM (SELECT * FROM keyed LIMIT {MOST_STEPS}) AS keyed
    """


def _steps(name: str, rows: str, d: Dialect) -> str:
    """Return a CTE *name* of the first run of each task, queue and priority."""

    def first(condition: str) -> str:
        found = f"SELECT id FROM job_runs WHERE {rows} AND {condition}"
        return f"({found} ORDER BY {_UP} LIMIT 1)"

    following = first(_compare(">", name))
    if not d.arrays:
        # SQLite would search its index for the first of the three columns only.
        task, queue, priority = (f"{each} {{}} {name}.{each}" for each in _GROUP)
        deeper = (
            f"{task.format('=')} AND {queue.format('=')} AND {priority.format('>')}",
            f"{task.format('=')} AND {queue.format('>')}",
            task.format(">"),
        )
        following = f"COALESCE({', '.join(first(each) for each in deeper)})"
    columns = ", ".join(f"r.{each}" for each in (*_GROUP, "run_at"))
    return f"""
    {name}({", ".join(_GROUP)}, run_at) AS (
        SELECT {columns} FROM job_runs r WHERE r.id = {first("1 = 1")}
        UNION ALL
        SELECT {columns} FROM {name} JOIN job_runs r ON r.id = {following}
    )
    """


def _compare(sign: str, name: str) -> str:
    """Return SQL that compares the three columns with those of *name*, in their order."""
    return f"({', '.join(_GROUP)}) {sign} ({', '.join(f'{name}.{each}' for each in _GROUP)})"


def _by_reading_all() -> str:
    parts = ((UNKEYED_GROUPS, "run_at <= :now"), (KEYED_GROUPS, f"run_at <= :now AND {_HAS_SHARE}"))
    selects = (
        f"""
        SELECT job_type, queue, min(run_at) AS oldest,
            min(CASE WHEN {is_due} THEN run_at END) AS due
        FROM job_runs WHERE {rows} GROUP BY job_type, queue
        """
        for rows, is_due in parts
    )
    return f"WITH taken AS ({_TAKEN_SHARES}) {' UNION ALL '.join(selects)}"


class PauseView(NamedTuple):
    """A task or a queue that is paused.

    :ivar kind: ``task`` or ``queue``.
    """

    kind: PauseKind
    name: str
    paused_at: datetime
    paused_by: str | None

    def __str__(self) -> str:
        return f"the {self.kind} {self.name} is paused"


def list_pauses(source: Source) -> tuple[PauseView, ...]:
    """Return what is paused, by kind and name."""
    with reading(source) as reader:
        statement = select(*(PAUSES.c[name] for name in PauseView._fields))
        rows = reader.rows(statement.order_by(PAUSES.c.kind, PAUSES.c.name))
    return tuple(PauseView(*tuple(row)) for row in rows)


def stopping(paused: Sequence[PauseView], task: str, queue: str) -> tuple[PauseView, ...]:
    """Return those for which runs of *task* in *queue* wait until they are resumed."""
    names = {"task": task, "queue": queue}
    return tuple(each for each in paused if each.name == names[each.kind])


def names(paused: Sequence[PauseView], kind: PauseKind) -> list[str]:
    """Return the names of one kind."""
    return [each.name for each in paused if each.kind == kind]


def not_paused(reader: Reader, paused: Sequence[PauseView] | None = None) -> list[Any]:
    """Return the conditions that a run is neither of a paused task nor in a paused queue.

    :param paused: what is paused, if that was read before.
    """
    found = list_pauses(reader) if paused is None else paused
    conditions: list[ColumnElement[bool]] = []
    if tasks := names(found, "task"):
        conditions.append(RUNS.c.job_type.not_in(tasks))
    if queues := names(found, "queue"):
        conditions.append(RUNS.c.queue.not_in(queues))
    return conditions


#: How many rows of each kind are read at most.
MOST_DUE = 10_000


@dataclass(frozen=True, slots=True)
class Due:
    """What is due now.

    :ivar definitions: names, each with the slot that is due.
    :ivar runs: tasks and queues, each with the number of runs.
    :ivar expired: how many leases ran out.
    """

    definitions: tuple[tuple[str, datetime], ...]
    runs: tuple[tuple[str, str, int], ...]
    expired: int


class Next(NamedTuple):
    """What is due next: a definition's slot or a task's run, and when."""

    at: datetime
    name: str


def due(source: Source, queues: tuple[str, ...] = ()) -> Due:
    """Return what is due now, in *queues* or in all; at most `MOST_DUE` of each kind."""
    with reading(source) as reader:
        definitions = reader.rows(
            select(DEFINITIONS.c.name, DEFINITIONS.c.next_run_at)
            .where(text(SCHEDULED), DEFINITIONS.c.next_run_at <= reader.now, _ours(reader))
            .order_by(DEFINITIONS.c.next_run_at)
            .limit(MOST_DUE)
        )
        counts: dict[tuple[str, str], int] = {}
        waits = not_paused(reader)
        for condition in (UNKEYED, KEYED):
            statement = select(RUNS.c.job_type, RUNS.c.queue).where(
                text(condition), RUNS.c.run_at <= reader.now, *waits
            )
            if queues:
                statement = statement.where(RUNS.c.queue.in_(queues))
            some = statement.limit(MOST_DUE).subquery()
            grouped = select(some.c.job_type, some.c.queue, func.count().label("number"))
            for row in reader.rows(grouped.group_by(some.c.job_type, some.c.queue)):
                key = (row.job_type, row.queue)
                counts[key] = counts.get(key, 0) + row.number
        expired = reader.rows(
            select(func.count())
            .select_from(RUNS)
            .where(text(RUNNING), RUNS.c.locked_until <= reader.now)
        )
        return Due(
            tuple((row.name, row.next_run_at) for row in definitions),
            tuple((task, queue, number) for (task, queue), number in sorted(counts.items())),
            expired[0][0],
        )


def next_due(source: Source) -> Next | None:
    """Return which slot or waiting run will be due next; None if there is none."""
    slot, run = DEFINITIONS.c.next_run_at, RUNS.c.run_at
    with reading(source) as reader:
        slots = select(slot.label("at"), DEFINITIONS.c.name).where(
            text(SCHEDULED), slot > reader.now, _ours(reader)
        )
        runs = [
            select(run.label("at"), RUNS.c.job_type.label("name"))
            .where(text(part), run > reader.now)
            .order_by(run)
            for part in (UNKEYED, KEYED)
        ]
        found = [reader.rows(each.limit(1)) for each in (slots.order_by(slot), *runs)]
    return min((Next(rows[0].at, rows[0].name) for rows in found if rows), default=None)


def _ours(reader: Reader) -> ColumnElement[bool]:
    """Return the condition that this app enqueues a definition's slots, as `definitions.read`."""
    registry = reader.state.registry
    declared = DEFINITIONS.c.name.in_(list(registry.declarations))
    known = DEFINITIONS.c.job_type.in_(list(registry.tasks))
    return or_(
        and_(DEFINITIONS.c.origin == "code", declared),
        and_(DEFINITIONS.c.origin == "database", known),
    )
