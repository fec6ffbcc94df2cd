"""Count the waiting and due runs by task and queue, at a cost that does not grow with them.

`wait_reasons` says why one run waits, `health_checks` finds runs that may wait forever, and
`schedule_needs` finds the definitions that need attention.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    Float,
    Row,
    String,
    bindparam,
    case,
    column,
    func,
    select,
    text,
    union_all,
)

from ..core.definitions import enqueued_here
from ..models.columns import UTCDateTime
from ..models.conditions import (
    HANDED,
    PARKED,
    RATE_WAITS,
    READY,
    READY_GROUPS,
    SCHEDULED,
)
from .pauses import is_declared, not_paused, ours, stopping
from .reader import (
    CAP,
    DEFINITIONS,
    RUNS,
    Count,
    Query,
    Reader,
    Source,
    capped,
    count_of,
    read_once,
    reading,
    steps,
)

#: The maximum number of groups of task, queue and priority that are read one by one. If there are
#: more, reading all runs is faster.
MOST_STEPS = 1_000
#: At most this many groups of runs that wait for their rate are read.
_MOST_RATED = 1_000
#: The maximum number of priorities that `first_due` reads one by one. With more, it reads all runs.
MOST_PRIORITIES = 10
_GROUP = ("job_type", "queue", "priority")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting runs of a task in a queue, of one priority or of several.

    :ivar oldest: the due time of the first run.
    :ivar due: the due time of the first run that a tick could run now; None if there is none. Runs
        whose concurrency key is at its limit are left out. For runs with a rate, it is the time
        from which the first due run could have started.
    :ivar rate_key: the rate key of the runs, if they wait for their rate.
    """

    task: str
    queue: str
    oldest: datetime
    due: datetime | None
    rate_key: str | None = None


@read_once
def waiting_groups(reader: Reader) -> list[Waiting]:
    """Return the waiting runs by task and queue; a task and queue may occur several times.

    The query steps through an index from one task, queue and priority to the next and reads one run
    of each, so a long backlog costs no more than a short one. Runs that wait for their rate are
    found by rate key, up to 1,000 groups.
    """
    rows = _rows(reader, _by_steps())
    rated = [row for row in rows if row.rate_key is not None]
    if len(rows) - len(rated) >= MOST_STEPS:
        rows = [*_rows(reader, _by_reading_all()), *rated]
    return rows


class Backlog(NamedTuple):
    """The number of waiting runs of a queue, the number of due ones, and the first due time.

    :ivar oldest: the due time of the first due run; None if none is due.
    """

    waiting: Count
    due: Count
    oldest: datetime | None


def count_waiting(reader: Reader) -> Mapping[str, Backlog]:
    """Return the backlog of each queue in which runs wait, and an empty one for any other queue.

    If more than `COUNTED` runs wait, only some are counted, and each number is marked as capped.
    """
    parts = (
        select(RUNS.c.queue.label("name"), RUNS.c.run_at)
        .where(text(part))
        .limit(COUNTED + 1)
        .subquery()
        for part in (READY_GROUPS, PARKED, RATE_WAITS)
    )
    window = union_all(*(select(part) for part in parts)).subquery()
    due_at = case((window.c.run_at <= reader.now, window.c.run_at))
    numbers = func.count().label("waiting"), func.count(due_at).label("due")
    oldest = func.min(due_at).label("oldest")
    rows = reader.rows(select(window.c.name, *numbers, oldest).group_by(window.c.name))
    is_capped = sum(row.waiting for row in rows) > COUNTED
    zero = Count(0, is_capped)
    backlogs: defaultdict[str, Backlog] = defaultdict(lambda: Backlog(zero, zero, None))
    for row in rows:
        waiting, due = (Count(min(n, COUNTED), is_capped) for n in (row.waiting, row.due))
        backlogs[row.name] = Backlog(waiting, due, row.oldest)
    return backlogs


#: Counting waiting runs stops at this number.
COUNTED = 10_000


def overdue(reader: Reader) -> list[Query]:
    """Return SELECTs of this app's runnable runs that are overdue.

    1. Runs that are ready, unless their concurrency key is at its limit.
    2. If runs wait for their rate, those that the rate would have let begin by then.
    3. If the app has executors, runs that wait in their brokers.
    """
    before = reader.now - timedelta(seconds=reader.state.settings.health_overdue)
    due = select(RUNS.c.id, RUNS.c.run_at).where(RUNS.c.run_at <= before)
    parts = [due.add_cte(_TAKEN).where(text(READY), text(_NOT_AT_LIMIT))]
    free = {group.rate_key for group in waiting_groups(reader) if group.due and group.due <= before}
    if rates := free - {None}:
        at_rate = due.where(text(RATE_WAITS), RUNS.c.rate_key.in_(rates))
        parts.append(at_rate.add_cte(_TAKEN).where(text(_NOT_AT_LIMIT)))
    if reader.state.settings.executors:
        parts.append(handed(before))
    return [part.where(*ours(reader)) for part in parts]


def handed(before: datetime) -> Query:
    """Return a statement for runs that wait in executors' brokers and were due *before* a time."""
    return select(RUNS.c.id, RUNS.c.run_at).where(text(HANDED), RUNS.c.run_at <= before)


def first_due(reader: Reader, parts: Sequence[Query], limit: int) -> Iterator[Query]:
    """Return statements for the first *limit* rows of *parts*, in the order of their due times.

    The indexes of waiting runs begin with the priority, so each priority gets its own statement,
    unless there are many priorities.

    :param parts: SELECTs of runs that are ready, and of runs that wait for others or for a rate.
        The latter have no index by due time.
    """
    yield from parts[1:]
    statement = steps(RUNS.c.priority, text(READY), most=MOST_PRIORITIES + 1)
    priorities = [row.value for row in reader.rows(statement)]
    if len(priorities) > MOST_PRIORITIES:
        yield parts[0]
        return
    for priority in priorities or [0]:
        first = parts[0].where(RUNS.c.priority == priority).order_by(RUNS.c.run_at, RUNS.c.id)
        yield first.limit(limit)


def _rows(reader: Reader, sql: str) -> list[Waiting]:
    statement = text(sql).bindparams(bindparam("now", reader.now, UTCDateTime()))
    columns = (column(name, String) for name in ("job_type", "queue", "rate_key"))
    times = (column(name, UTCDateTime()) for name in ("oldest", "due", "tat", "last_at"))
    rows = reader.rows(statement.columns(*columns, *times, column("period", Float)))
    return [
        Waiting(row.job_type, row.queue, row.oldest, _free_since(reader, row), row.rate_key)
        for row in rows
    ]


def _free_since(reader: Reader, row: Row[Any]) -> datetime | None:
    """Return the time from which a due run could have started; None if none can."""
    rate = reader.state.registry.rates.get(row.job_type)
    tat = rate and rate.converted(row.tat, row.period, row.last_at)
    if row.due is None or rate is None or tat is None:
        return cast("datetime | None", row.due)
    since = max(row.due, rate.opens(tat))
    return since if since <= reader.now else None


_TAKEN_SHARES = """
    SELECT concurrency_key AS key, concurrency_share AS share FROM job_runs
    WHERE concurrency_share IS NOT NULL
"""
_TAKEN = text(_TAKEN_SHARES).columns(column("key"), column("share")).cte("taken")
#: The condition that a run's concurrency key has a free share. It has no join, since it is used
#: together with conditions of partial indexes, which name columns without their table.
_HAS_SHARE = """
    concurrency_limit > (
        SELECT count(*) FROM taken
        WHERE key = job_runs.concurrency_key AND share <= concurrency_limit
    )
"""
#: The condition that a run can get a share of its key, or needs none.
_NOT_AT_LIMIT = f"(concurrency_key IS NULL OR {_HAS_SHARE})"


def _by_steps() -> str:
    by_rate = ("rate_key", *_GROUP)
    due = _first_due("ready", READY_GROUPS, _NOT_AT_LIMIT)
    due_at_rate = _first_due("rated", RATE_WAITS, _NOT_AT_LIMIT, by_rate)
    return f"""
    WITH RECURSIVE taken AS ({_TAKEN_SHARES}),
    {_steps("ready", READY_GROUPS)},
    {_steps("rated", RATE_WAITS, by_rate)}
    SELECT job_type, queue, NULL AS rate_key, run_at AS oldest, ({due}) AS due, {_NO_START}
    FROM (SELECT * FROM ready LIMIT {MOST_STEPS}) AS ready
    UNION ALL
    SELECT job_type, queue, rate_key, run_at, ({due_at_rate}),
        (SELECT tat FROM job_rates WHERE key = rated.rate_key),
        (SELECT last_at FROM job_rates WHERE key = rated.rate_key),
        (SELECT period FROM job_rates WHERE key = rated.rate_key)
    FROM (SELECT * FROM rated LIMIT {_MOST_RATED}) AS rated
    """


#: Placeholders for the columns of a rate, for runs without one.
_NO_START = (
    "CAST(NULL AS timestamp) AS tat, CAST(NULL AS timestamp) AS last_at,"
    " CAST(NULL AS double precision) AS period"
)


def _first_due(name: str, rows: str, condition: str, group: Sequence[str] = _GROUP) -> str:
    """Return the SELECT of the first due run of each group of the CTE *name*."""
    # With ``=``, the order would be meaningless, and the planner might choose any index.
    in_group = " AND ".join(_compare(sign, name, "0", group) for sign in (">=", "<="))
    return f"""
        SELECT run_at FROM job_runs
        WHERE {rows} AND {in_group} AND run_at <= :now AND {condition}
        ORDER BY {", ".join(group)}, run_at, id LIMIT 1
    """


def _steps(name: str, rows: str, group: Sequence[str] = _GROUP) -> str:
    """Return a CTE *name* of the first run of each *group*, read from the index on that group."""
    order = f"ORDER BY {', '.join(group)}, run_at, id LIMIT 1"
    # With ">", SQLite would read the whole previous group.
    is_after = _compare(">=", name, "1", group)
    columns = ", ".join(f"r.{column_name}" for column_name in (*group, "run_at"))
    return f"""
    {name}({", ".join(group)}, run_at) AS (
        SELECT {columns} FROM job_runs r
        WHERE r.id = (SELECT id FROM job_runs WHERE {rows} {order})
        UNION ALL
        SELECT {columns} FROM {name} JOIN job_runs r
        ON r.id = (SELECT id FROM job_runs WHERE {rows} AND {is_after} {order})
    )
    """


def _compare(sign: str, name: str, more: str, group: Sequence[str] = _GROUP) -> str:
    """Return SQL that compares the columns of *group* with those of *name*, as one row value.

    :param more: the number to add to the priority, which is the last column.
    """
    # With bare columns on both sides, SQLite would search its index by the first column only.
    others = (f"{name}.{column_name} || ''" for column_name in group[:-1])
    values = ", ".join((*others, f"{name}.priority + CAST({more} AS bigint)"))
    return f"({', '.join(group)}) {sign} ({values})"


def _by_reading_all() -> str:
    return f"""
        WITH taken AS ({_TAKEN_SHARES})
        SELECT job_type, queue, NULL AS rate_key, min(run_at) AS oldest,
            min(CASE WHEN run_at <= :now AND {_NOT_AT_LIMIT} THEN run_at END) AS due, {_NO_START}
        FROM job_runs WHERE {READY_GROUPS} GROUP BY job_type, queue
    """


@read_once
def unpaused_groups(reader: Reader) -> Sequence[Waiting]:
    """Return the waiting groups that are not paused."""
    groups = waiting_groups(reader)
    return [group for group in groups if not stopping(reader, group.task, group.queue)]


def oldest_due(reader: Reader) -> datetime | None:
    """Return the due time of the oldest run that this app's ticks or executors could run."""
    groups = unpaused_groups(reader)
    due = [group.due for group in groups if is_declared(reader, group.task)]
    if reader.state.settings.executors:
        in_brokers = handed(reader.now).where(*ours(reader)).order_by(RUNS.c.run_at).limit(1)
        due += [row.run_at for row in reader.rows(in_brokers)]
    return min((moment for moment in due if moment is not None), default=None)


#: The maximum number of slots that `due` returns.
_SLOTS = 10_000


class Due(NamedTuple):
    """The slots and runs that are due now.

    :ivar slots: the ``name`` of each due definition, and its slot as ``at``.
    :ivar runs: the number of due runs that are not paused.
    """

    slots: Sequence[Row[Any]]
    runs: Count


class Next(NamedTuple):
    """What is due next: the slot of a definition, or the run of a task."""

    at: datetime
    name: str


def due(source: Source, queues: tuple[str, ...] = ()) -> Due:
    """Return the slots that are due now, and the number of due runs in *queues* (default: all)."""
    slot = DEFINITIONS.c.next_run_at
    with reading(source) as reader:
        slots = select(DEFINITIONS.c.name, slot.label("at"))
        slots = slots.where(slot <= reader.now, *_slots_of_ours(reader))
        waits = [*not_paused(reader), RUNS.c.run_at <= reader.now]
        if queues:
            waits.append(RUNS.c.queue.in_(queues))
        parts = (
            select(RUNS.c.id).where(text(part), *waits).limit(CAP + 1).subquery()
            for part in (READY, PARKED, RATE_WAITS)
        )
        due_runs = union_all(*(select(part) for part in parts))
        number = cast("int", reader.value(select(capped(due_runs))))
        return Due(reader.rows(slots.order_by(slot).limit(_SLOTS)), count_of(number))


def next_due(source: Source) -> Next | None:
    """Return the slot or waiting run that will be due next; None if there is none."""
    slot, run = DEFINITIONS.c.next_run_at, RUNS.c.run_at
    with reading(source) as reader:
        slots = select(slot, DEFINITIONS.c.name).where(*_slots_of_ours(reader))
        parts = (READY, RATE_WAITS)
        runs = [select(run, RUNS.c.job_type).where(text(part)) for part in parts]
        later = [(slots, slot), *((statement, run) for statement in runs)]
        rows = [
            row
            for statement, at in later
            for row in reader.rows(statement.where(at > reader.now).order_by(at).limit(1))
        ]
    return min((Next(*tuple(row)) for row in rows), default=None)


def _slots_of_ours(reader: Reader) -> tuple[Any, ...]:
    """Return the conditions under which this app enqueues a definition's slots."""
    d, registry = reader.dialect, reader.state.registry
    parameters = {
        "declared": d.many(registry.declarations),
        "tasks": d.many(registry.tasks),
    }
    return text(SCHEDULED), text(enqueued_here(d)).bindparams(**parameters)
