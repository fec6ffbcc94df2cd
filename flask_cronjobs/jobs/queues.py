"""Queues: how much waits in each, how fast it comes and goes, and who serves it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Integer, String, bindparam, column, text

from ..db.dialect import Dialect
from ..models.columns import UTCDateTime
from ..models.conditions import KEYED_GROUPS, RATE_WAITS, UNKEYED_GROUPS
from .eligibility import PauseView, list_pauses
from .humanize import since
from .pauses import queues as declared_queues
from .reader import CAP, Count, Page, Reader, Source, reading
from .runs.throughput import arrivals, ends, waited
from .waiting import Waiting, waiting_groups
from .workers import hosts_of

#: In how many pairs of a task and a queue runs are counted.
_COUNTED = 100
#: How many hosts `QueueView.service` names.
_NAMED = 3
_NUMBERS = "waiting", "due", "rated"


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
        counts = _counts(reader, groups)
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
    given = [{"queue": queue, "task": task} for queue, task in pairs[:_COUNTED]]
    values = {"pairs": json.dumps(given), "most": CAP + 1}
    columns: list[Any] = [column("queue", String)]
    columns += [column(name, Integer) for name in _NUMBERS]
    now = bindparam("now", reader.now, UTCDateTime())
    rows = reader.rows(text(_counted(reader.dialect)).bindparams(now, **values).columns(*columns))
    left = {queue for queue, _ in pairs[_COUNTED:]}
    if sum(row.rated for row in rows) > CAP:  # Of so many that wait for a rate, some are left out.
        left.update(row.queue for row in rows if row.rated)
    found = {queue: (Count(0, True), Count(0, True)) for queue in left}
    for row in rows:
        capped = row.waiting > CAP or row.queue in left
        found[row.queue] = (
            Count(min(row.waiting, CAP), capped),
            Count(min(row.due, CAP), capped),
        )
    return found


def _counted(d: Dialect) -> str:
    own = "job_type = pairs.task AND job_runs.queue = pairs.queue"
    first = " UNION ALL ".join(
        f"SELECT * FROM (SELECT run_at FROM job_runs WHERE {rows} AND {own} LIMIT :most) AS {name}"
        for name, rows in (("free", UNKEYED_GROUPS), ("keyed", KEYED_GROUPS))
    )
    sums = ", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in _NUMBERS)
    rated = f"SELECT queue, run_at FROM job_runs WHERE {RATE_WAITS} LIMIT :most"
    return f"""
    SELECT queue, {sums} FROM (
        SELECT pairs.queue, (SELECT count(*) FROM ({first}) AS front) AS waiting,
            (SELECT count(*) FROM ({first}) AS front WHERE run_at <= :now) AS due, 0 AS rated
        FROM {d.table("pairs", queue="text", task="text")} AS pairs
        UNION ALL
        SELECT queue, 1, CASE WHEN run_at <= :now THEN 1 ELSE 0 END, 1 FROM ({rated}) AS rated
    ) AS counted
    GROUP BY queue
    """
