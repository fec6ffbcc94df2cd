"""How many runs came and ended in the last minutes, by queue, and how long they had waited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import func, select, text, union_all

from ...models.conditions import DEAD, DONE
from ..humanize import seconds_since
from ..reader import RUNS, Reader, read_once

#: How far back is looked.
LATELY = timedelta(minutes=10)
#: At how many runs, the newest first.
MOST = 2_000
#: At how many for how long they waited.
_MOST_WAITED = 1_000


class Flow(NamedTuple):
    """How many runs came, or ended, within so many seconds, by queue."""

    numbers: Mapping[str, int]
    seconds: float

    @property
    def total(self) -> int:
        """How many there were in all queues."""
        return sum(self.numbers.values())

    def a_minute(self, queue: str) -> float:
        """Return how many there were a minute."""
        return self.numbers.get(queue, 0) / self.seconds * 60


@read_once
def arrivals(reader: Reader) -> Flow:
    """Return how many runs were made lately."""
    c = RUNS.c
    newest = select(c.queue, c.created_at.label("at")).order_by(c.id.desc()).limit(MOST)
    return _flow(reader, newest.subquery())


@read_once
def ends(reader: Reader) -> Flow:
    """Return how many runs have ended lately."""
    return _flow(reader, _ended(reader, MOST))


@read_once
def waited(reader: Reader) -> Mapping[str, float]:
    """Return by queue for how many seconds 95 % of the last runs had been due when they began."""
    found: dict[str, list[float]] = {}
    some = _ended(reader, _MOST_WAITED)
    for row in reader.rows(select(some).where(some.c.started_at >= some.c.run_at)):
        found.setdefault(row.queue, []).append(seconds_since(row.run_at, row.started_at))
    return {queue: _percentile(sorted(each), 95) for queue, each in found.items()}


def _percentile(ascending: list[float], percent: int) -> float:
    return ascending[math.ceil(len(ascending) * percent / 100) - 1]


def _ended(reader: Reader, most: int) -> Any:
    """Return a subquery of the runs that ended last: each kind has its own index."""
    c = RUNS.c
    columns = c.queue, c.finished_at.label("at"), c.run_at, c.started_at
    parts = [
        select(*columns)
        .where(text(status), c.finished_at > reader.now - LATELY)
        .order_by(c.finished_at.desc())
        .limit(most)
        .subquery()
        for status in (DONE, DEAD)
    ]
    both = union_all(*(select(part) for part in parts)).subquery()
    return select(both).order_by(both.c.at.desc()).limit(most).subquery()


def _flow(reader: Reader, some: Any) -> Flow:
    rows = reader.rows(
        select(some.c.queue, func.count().label("number"), func.min(some.c.at).label("since"))
        .where(some.c.at > reader.now - LATELY)
        .group_by(some.c.queue)
    )
    numbers = {row.queue: int(row.number) for row in rows}
    seconds = LATELY.total_seconds()
    if sum(numbers.values()) >= MOST:  # There were more, so look back less far.
        seconds = max(1.0, seconds_since(min(row.since for row in rows), reader.now))
    return Flow(numbers, seconds)
