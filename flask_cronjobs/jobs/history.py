"""What outlives the runs: each hour of each task in numbers, and marks of what changed.

An hour is written once it is over. How long runs took is in logarithmic buckets, four to a
doubling: what is read from them is off by a tenth at most.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Row, TextClause, text

from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..errors import NotFound
from ..log import DEFAULT_ACTOR
from ..models.conditions import DEAD, DONE
from ..text import one_line
from ..types import stored_time
from .operations import Act, perform
from .state import State

if TYPE_CHECKING:
    from .reader import Page, Source

HOUR = timedelta(hours=1)
#: How long after its end an hour is written. A run whose end is committed later than that after it
#: was noted, such as by a transaction that stayed open, is in no hour.
GRACE = timedelta(minutes=5)
#: How many hours one tick writes at most: after an outage, and when the table is new.
MOST = 24
#: How far back to begin with a new table.
FIRST = timedelta(days=14)


def write_hours(books: Bookkeeping, last: datetime | None, now: datetime) -> int:
    """Write the hours that are over and not written yet, the oldest first; return how many.

    Two ticks may do so at the same time: the rows of an hour come in one transaction, and those
    that are there stay. Read before it, since to write takes SQLite's lock.

    :param last: the last hour that is written, as `ticks.begin` found; None if none is.
    """
    over = _floor(now - GRACE) - HOUR
    if last is not None and last >= over:
        return 0
    first = _first(books, now, over) if last is None else last + HOUR
    hours = min((over - first) // HOUR + 1, MOST)
    for number in range(hours):
        _write(books, first + number * HOUR)
    return hours


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
    # Else PostgreSQL computes the seconds again for each comparison.
    return text(f"""
        WITH ended AS MATERIALIZED ({ended})
        SELECT job_type, {bucket_of("took")} AS took, {bucket_of("waited")} AS waited,
            count(*) AS ended, sum(dead) AS dead,
            sum(took) AS took_seconds, sum(waited) AS waited_seconds
        FROM ended GROUP BY 1, 2, 3
    """)


def _write(books: Bookkeeping, hour: datetime) -> None:
    """Write the rows of *hour*: one for each task, and one for all, whose name is empty."""
    d = books.dialect
    rows = books.rows(ended_in_hour(d), {"start": d.instant(hour), "end": d.instant(hour + HOUR)})
    by_task: dict[str, list[Row[Any]]] = {"": list(rows)}
    for row in rows:
        by_task.setdefault(row.job_type, []).append(row)
    values = [
        {
            "hour": d.instant(hour),
            "job_type": task,
            **{name: sum(getattr(row, name) for row in found) for name in _SUMMED},
            **{name: json.dumps(_by_bucket(found, name)) for name in ("took", "waited")},
        }
        for task, found in sorted(by_task.items())
    ]
    books.transaction(lambda connection: connection.execute(_insert(d), values))


_SUMMED = ("ended", "dead", "took_seconds", "waited_seconds")


def _by_bucket(rows: Iterable[Row[Any]], name: str) -> Counter[int]:
    numbers: Counter[int] = Counter()
    for row in rows:
        numbers[getattr(row, name)] += row.ended
    return numbers


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


#: The upper bounds of the buckets, in seconds: from a millisecond to three days. What took longer
#: is in one bucket more. A bucket has the same number for ever, since rows are kept for a year.
BOUNDS = tuple(round(0.001 * 2 ** (number / 4), 6) for number in range(113))


def bucket_of(seconds: str, low: int = 0, high: int = len(BOUNDS)) -> str:
    """Return SQL for the bucket that *seconds*, the name of a column, belong to.

    Nested, so that seven comparisons find it.
    """
    if low == high:
        return str(low)
    middle = (low + high) // 2
    below, above = bucket_of(seconds, low, middle), bucket_of(seconds, middle + 1, high)
    return f"CASE WHEN {seconds} <= {BOUNDS[middle]} THEN {below} ELSE {above} END"


def counted(buckets: object) -> Counter[int]:
    """Return the numbers that a row has by bucket; none if somebody edited it so as not to tell."""
    if not isinstance(buckets, Mapping):
        return Counter()
    found: Counter[int] = Counter()
    for bucket, number in buckets.items():  # pyright: ignore[reportUnknownVariableType]
        if str(bucket).isdigit() and type(number) is int and number > 0:  # pyright: ignore[reportUnknownArgumentType]
            found[min(int(str(bucket)), len(BOUNDS))] += number  # pyright: ignore[reportUnknownArgumentType]
    return found


def percentile(buckets: Counter[int], percent: int) -> float | None:
    """Return about how many seconds *percent* of what is in *buckets* do not exceed.

    It is the middle of a bucket. None if there is nothing in them.
    """
    wanted, seen = buckets.total() * percent / 100, 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return middle(bucket)
    return None


def middle(bucket: int) -> float:
    """Return the seconds in the middle of a bucket; of the last one its least, of the first 0."""
    if bucket == 0:
        return 0.0
    at = min(bucket, len(BOUNDS) - 1)
    return BOUNDS[at - 1] * 2 ** (1 / 8) if bucket == at else BOUNDS[at]


def cumulative(buckets: Counter[int], every: int) -> Iterator[tuple[float, int]]:
    """Yield each bound in *every*, in seconds, and how many took no longer."""
    for at in range(0, len(BOUNDS), every):
        yield BOUNDS[at], sum(number for bucket, number in buckets.items() if bucket <= at)


#: How many characters the name of a mark may have.
LONGEST_MARK = 100


class Mark(NamedTuple):
    """One mark.

    :ivar at: when that was which it marks.
    :ivar by: who made it.
    """

    id: int
    name: str
    at: datetime
    by: str | None


def add_mark(
    state: State, name: str, at: datetime | None = None, actor: str = DEFAULT_ACTOR
) -> Mark:
    """Add a mark to the charts.

    :param name: cut to one line of `LONGEST_MARK` characters.
    :param at: None: now.
    """
    name = one_line(name).strip()[:LONGEST_MARK]
    with state.bookkeeping() as books:
        d = books.dialect
        when = d.now if at is None else d.typed(":at", "timestamptz")
        statement = text(
            f"INSERT INTO job_marks (name, marked_at, marked_by) VALUES (:name, {when}, :by)"
            " RETURNING id, marked_at"
        )
        given = {"name": name, "by": actor} | ({} if at is None else {"at": d.instant(at)})
        act = Act("marked", name, actor)
        (row,) = perform(books, act, lambda inner: inner.rows(statement, given))
    return Mark(row.id, name, stored_time(row.marked_at), actor)


def remove_mark(state: State, id_: int, actor: str = DEFAULT_ACTOR) -> str:
    """Remove a mark, and return its name.

    :raises NotFound: there is none with that id.
    """
    this, removed = {"id": id_}, text("DELETE FROM job_marks WHERE id = :id RETURNING id")
    with state.bookkeeping() as books:
        rows = books.rows(text("SELECT name FROM job_marks WHERE id = :id"), this)
        name: str = rows[0].name if rows else ""
        act = Act("unmarked", name, actor)
        if not rows or not perform(books, act, lambda inner: inner.rows(removed, this)):
            raise NotFound(
                f"There is no mark with the id {id_}. To list them: flask jobs admin marks"
            )
    return name


def list_marks(
    source: Source, limit: int = 20, before: int | None = None, since: datetime | None = None
) -> Page[Mark]:
    """Return a page of marks, newest first.

    :param before: only marks before the one with this id.
    :param since: none before this.
    """
    from sqlalchemy import select

    from .reader import MARKS, page_of, reading

    c = MARKS.c
    marks = select(c.id, c.name, c.marked_at.label("at"), c.marked_by.label("by"))
    if since is not None:
        marks = marks.where(c.marked_at >= since)
    with reading(source) as reader:
        return page_of(reader, marks, limit, newest=(c.marked_at, c.id), before=before)
