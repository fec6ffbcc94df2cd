"""Queues: how much waits in each, how fast it comes and goes, and who serves it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Integer, String, bindparam, case, column, func, select, text

from ..db.dialect import Dialect
from ..models.columns import UTCDateTime
from ..models.conditions import KEYED_GROUPS, RATE_WAITS, UNKEYED_GROUPS
from .eligibility import PauseView, list_pauses
from .humanize import since
from .pauses import queues as declared_queues
from .reader import CAP, RUNS, Count, Page, Reader, Source, count_of, reading
from .runs.throughput import arrivals, ends, waited
from .waiting import Waiting, waiting_groups
from .workers import hosts_of

#: In how many pairs of a task and a queue runs are counted.
_COUNTED = 100
#: How many hosts `QueueView.service` names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue.

    :ivar waiting: how many runs wait in it, without those behind others in strict order.
    :ivar due: how many of those are due; at least so many, if there are more than were counted.
    :ivar oldest: since when the first of them has been due; None if none is.
    :ivar arrivals: how many runs a minute came lately.
    :ivar ends: how many a minute ended.
    :ivar waited: for how many seconds 95 % of those had been due when they began; None if none did.
    :ivar hosts: those that serve it.
    :ivar executor: what does so instead.
    :ivar pause: by whom it is paused.
    """

    name: str
    waiting: Count
    due: Count
    oldest: datetime | None
    arrivals: float
    ends: float
    waited: float | None
    hosts: tuple[str, ...]
    executor: str | None
    pause: PauseView | None

    def service(self, now: datetime) -> str:
        """Say who serves it: ``web-1, web-2``, or why nobody does."""
        if self.pause is not None:
            by = self.pause.paused_by or "somebody"
            return f"paused by {by} {since(self.pause.paused_at, now)}"
        more = len(self.hosts) - _NAMED
        named = ", ".join(self.hosts[:_NAMED])
        return self.executor or (f"{named} and {more} more" if more > 0 else named) or "nobody"


def list_queues(source: Source) -> Page[QueueView]:
    """Return the queues by name: of this code's tasks, of what waits, ran lately or is paused."""
    with reading(source) as reader:
        groups = waiting_groups(reader)
        pauses = {each.name: each for each in list_pauses(reader) if each.kind == "queue"}
        counts = _with_rated(reader, _counts(reader, groups))
        names = {
            *declared_queues(reader.state),
            *(group.queue for group in groups),
            *ends(reader).numbers,
            *pauses,
            *counts,
        }
        rows = [_view(reader, name, groups, counts, pauses.get(name)) for name in sorted(names)]
        return Page(rows, None, reader.now)


def _view(
    reader: Reader,
    name: str,
    groups: Sequence[Waiting],
    counts: dict[str, tuple[Count, Count]],
    pause: PauseView | None,
) -> QueueView:
    executor = reader.state.settings.executors.get(name)
    oldest = min((each.oldest for each in groups if each.queue == name), default=None)
    waiting, due = counts.get(name, (Count(0), Count(0)))
    return QueueView(
        name=name,
        waiting=waiting,
        due=due,
        oldest=oldest if oldest is not None and oldest <= reader.now else None,
        arrivals=arrivals(reader).a_minute(name),
        ends=ends(reader).a_minute(name),
        waited=waited(reader).get(name),
        hosts=() if executor else hosts_of(reader, name),
        executor=_name_of(executor),
        pause=pause,
    )


def _name_of(executor: object) -> str | None:
    return executor if executor is None or isinstance(executor, str) else type(executor).__name__


def _counts(reader: Reader, groups: Sequence[Waiting]) -> dict[str, tuple[Count, Count]]:
    """Return by queue how many runs wait, and how many of them are due."""
    pairs = sorted({(each.queue, each.task) for each in groups if each.rate_key is None})
    if not pairs:
        return {}
    given = [{"queue": queue, "task": task} for queue, task in pairs[:_COUNTED]]
    values = {"pairs": json.dumps(given), "most": CAP + 1}
    now = bindparam("now", reader.now, UTCDateTime())
    columns = column("queue", String), column("waiting", Integer), column("due", Integer)
    rows = reader.rows(text(_counted(reader.dialect)).bindparams(now, **values).columns(*columns))
    left = {queue for queue, _ in pairs[_COUNTED:]}
    found = {queue: (Count(0, True), Count(0, True)) for queue in left}
    for row in rows:
        waiting = count_of(row.waiting)
        capped = waiting.capped or row.queue in left
        due = Count(min(row.due, CAP), capped)
        found[row.queue] = (Count(waiting.value, capped), due)
    return found


def _with_rated(
    reader: Reader, counts: dict[str, tuple[Count, Count]]
) -> dict[str, tuple[Count, Count]]:
    """Return *counts* with the runs that wait for their rate, of which up to `CAP` are read."""
    some = select(RUNS.c.queue, RUNS.c.run_at).where(text(RATE_WAITS)).limit(CAP + 1).subquery()
    is_due = case((some.c.run_at <= reader.now, 1))
    found = select(some.c.queue, func.count().label("waiting"), func.count(is_due).label("due"))
    rows = reader.rows(found.group_by(some.c.queue))
    capped = sum(row.waiting for row in rows) > CAP
    for row in rows:
        others = counts.get(row.queue, (Count(0), Count(0)))
        counts[row.queue] = (
            Count(others[0].value + row.waiting, others[0].capped or capped),
            Count(others[1].value + row.due, others[1].capped or capped),
        )
    return counts


def _counted(d: Dialect) -> str:
    own = "job_type = pairs.task AND job_runs.queue = pairs.queue"
    first = " UNION ALL ".join(
        f"SELECT * FROM (SELECT run_at FROM job_runs WHERE {rows} AND {own} LIMIT :most) AS {name}"
        for name, rows in (("free", UNKEYED_GROUPS), ("keyed", KEYED_GROUPS))
    )
    return f"""
    SELECT queue, CAST(sum(waiting) AS bigint) AS waiting, CAST(sum(due) AS bigint) AS due FROM (
        SELECT pairs.queue, (SELECT count(*) FROM ({first}) AS front) AS waiting,
            (SELECT count(*) FROM ({first}) AS front WHERE run_at <= :now) AS due
        FROM {d.table("pairs", queue="text", task="text")} AS pairs
    ) AS counted
    GROUP BY queue
    """
