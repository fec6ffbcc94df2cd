"""Each hour of each task in numbers, which outlive the runs: written once the hour is over."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, TextClause, text

from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import DEAD, DONE
from ..types import stored_time
from .buckets import bucket_of

HOUR = timedelta(hours=1)
#: How long after its end an hour is written. A run whose end is committed later than that after it
#: was noted, such as by a transaction that stayed open, is in no hour.
GRACE = timedelta(minutes=5)
#: How many hours one tick writes at most: after an outage, and when the table is new.
MOST = 24
#: How far back to begin with a new table.
FIRST = timedelta(days=14)


@dataclass
class _Sums:
    """What ended in one hour, of one task or of all."""

    ended: int = 0
    dead: int = 0
    took_seconds: float = 0.0
    waited_seconds: float = 0.0
    took: Counter[int] = field(default_factory=Counter[int])
    waited: Counter[int] = field(default_factory=Counter[int])


def write_hours(books: Bookkeeping, last: datetime | None, now: datetime) -> int:
    """Write the hours that are over and not written yet, the oldest first; return how many.

    Two ticks may do so at the same time: the rows of an hour come in one transaction, and those
    that are there stay. Read before it, since to write takes SQLite's lock.

    :param last: the last hour that is written, as `ticks.begin` found; None if none is.
    """
    over = _floor(now - GRACE) - HOUR
    if last is not None and last >= over:
        return 0
    hour = _first(books, now, over) if last is None else last + HOUR
    written = 0
    while hour <= over and written < MOST:
        _write(books, hour)
        hour, written = hour + HOUR, written + 1
    return written


def _floor(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc).replace(minute=0, second=0, microsecond=0)


def _first(books: Bookkeeping, now: datetime, over: datetime) -> datetime:
    """Return the hour to begin with: that of the oldest run that counts; *over* without one."""
    d = books.dialect
    at = d.typed(":since", "timestamptz")
    oldest = f"SELECT min(finished_at) AS at FROM job_runs WHERE {DONE} AND finished_at >= {at}"
    (row,) = books.rows(text(oldest), {"since": d.instant(now - FIRST)})
    return over if row.at is None else min(_floor(stored_time(row.at)), over)


@lru_cache
def ended_in_hour(d: Dialect) -> TextClause:
    """Return the query for the runs that ended from ``start`` to ``end``, by task and buckets."""
    start, end = (d.typed(each, "timestamptz") for each in (":start", ":end"))
    ended = " UNION ALL ".join(
        f"""
        SELECT job_type, {number} AS dead, {d.elapsed("started_at", "finished_at")} AS took,
            {d.elapsed("run_at", "started_at")} AS waited
        FROM job_runs WHERE {which} AND finished_at >= {start} AND finished_at < {end}
        """
        for number, which in ((0, f"{DONE} AND status = 'succeeded'"), (1, DEAD))
    )
    return text(f"""
        SELECT job_type, dead, {bucket_of("took")} AS took_bucket,
            {bucket_of("waited")} AS waited_bucket, count(*) AS number,
            sum(took) AS took_seconds, sum(waited) AS waited_seconds
        FROM ({ended}) AS ended GROUP BY 1, 2, 3, 4
    """)


def _write(books: Bookkeeping, hour: datetime) -> None:
    d, tasks = books.dialect, {"": _Sums()}
    given = {"start": d.instant(hour), "end": d.instant(hour + HOUR)}
    for row in books.rows(ended_in_hour(d), given):
        for task in {"", row.job_type}:
            _add(tasks.setdefault(task, _Sums()), row)
    values = [_values(d, hour, *each) for each in sorted(tasks.items())]
    books.transaction(lambda connection: connection.execute(_insert(d), values))


def _add(sums: _Sums, row: Row[Any]) -> None:
    """Add to *sums* the runs of *row*, which are in the same two buckets."""
    sums.ended += row.number
    sums.dead += row.number * row.dead
    sums.took_seconds += row.took_seconds
    sums.waited_seconds += row.waited_seconds
    sums.took[row.took_bucket] += row.number
    sums.waited[row.waited_bucket] += row.number


@lru_cache
def _insert(d: Dialect) -> TextClause:
    at, took, waited = (
        d.typed(name, kind)
        for name, kind in ((":hour", "timestamptz"), (":took", "jsonb"), (":waited", "jsonb"))
    )
    return text(f"""
        INSERT INTO job_hours
            (hour, job_type, ended, dead, took_seconds, took, waited_seconds, waited)
        VALUES ({at}, :job_type, :ended, :dead, :took_seconds, {took}, :waited_seconds, {waited})
        ON CONFLICT (hour, job_type) DO NOTHING
    """)


def _values(d: Dialect, hour: datetime, task: str, sums: _Sums) -> dict[str, object]:
    buckets = {"took": json.dumps(sums.took), "waited": json.dumps(sums.waited)}
    return {**vars(sums), **buckets, "hour": d.instant(hour), "job_type": task}
