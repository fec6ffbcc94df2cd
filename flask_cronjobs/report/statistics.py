"""Durations, waits and successes of some runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from .run_list import RunRow


@dataclass(frozen=True, slots=True)
class Spread:
    """How some numbers of seconds are spread: half are at most `p50`, 95 of 100 at most `p95`."""

    p50: float
    p95: float
    most: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """The latest runs of a definition or a task, in numbers.

    :ivar runs: how many runs were looked at.
    :ivar since: when the first of them was due; None if there is none.
    :ivar ended: how many of them succeeded or ended dead.
    :ivar took: how long these took; None if none has ended.
    :ivar waited: how long runs were due before they began; None if none has begun.
    """

    runs: int
    since: datetime | None
    ended: int
    succeeded: int
    took: Spread | None
    waited: Spread | None

    @property
    def success_rate(self) -> float | None:
        """The part of the ended runs that succeeded, from 0 to 1; None if none has ended."""
        return self.succeeded / self.ended if self.ended else None


def statistics(rows: Sequence[RunRow]) -> Statistics:
    """Return the numbers of *rows*."""
    ended = [row for row in rows if row.status in ("succeeded", "dead")]
    return Statistics(
        runs=len(rows),
        since=min((row.scheduled_for for row in rows), default=None),
        ended=len(ended),
        succeeded=sum(row.status == "succeeded" for row in ended),
        took=_spread(row.took for row in ended),
        waited=_spread(row.waited for row in rows),
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Spread(_percentile(known, 50), _percentile(known, 95), known[-1])


def _percentile(ascending: Sequence[float], percent: int) -> float:
    """Return the least of the values that *percent* of them do not exceed."""
    return ascending[math.ceil(len(ascending) * percent / 100) - 1]
