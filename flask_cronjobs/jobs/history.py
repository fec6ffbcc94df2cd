"""What outlives the runs: each hour of each task in numbers, and marks of what changed.

An hour is written once it is over. How long runs took is in logarithmic buckets, four to a
doubling: what is read from them is off by a tenth at most.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Row, TextClause, text

from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..errors import NotFound
from ..log import DEFAULT_ACTOR
from ..models.conditions import DEAD, DONE
from ..text import one_line
from ..types import stored_time
from .state import State

if TYPE_CHECKING:
    from .reader import Page, Source

HOUR = timedelta(hours=1)
#: How long after its end an hour is written. A run whose end is committed later than that after it
#: was noted, such as by a transaction that stayed open, is in no hour.
GRACE = timedelta(minutes=5)
#: How many hours one tick writes at most: after an outage, and when the table is new.
HOURS_A_TICK = 24
#: How far back to begin with a new table.
FIRST = timedelta(days=14)


def write_hours(books: Bookkeeping, last: datetime | None, now: datetime) -> int:
    """Write the hours that are over and not written yet, the oldest first; return how many.

    Two ticks may do so at the same time: the rows of an hour come in one transaction, all of the
    tick that is first. Read before it, since to write takes SQLite's lock.

    :param last: the last hour that is written, as `ticks.begin` found; None if none is.
    """
    over = _floor(now - GRACE) - HOUR
    if last is not None and last >= over:
        return 0
    first = _first(books, now, over) if last is None else last + HOUR
    hours = min((over - first) // HOUR + 1, HOURS_A_TICK)
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
    """Return the query for the runs that ended from ``start`` to ``end``, by buckets and task.

    It reads each of them once, and none if another tick has written the hour meanwhile.
    """
    start, end = (d.typed(each, "timestamptz") for each in (":start", ":end"))
    ended = " UNION ALL ".join(
        f"""
        SELECT job_type, {number} AS dead, {d.elapsed("started_at", "finished_at")} AS took,
            {d.elapsed("run_at", "started_at")} AS waited
        FROM job_runs WHERE {which} AND finished_at >= {start} AND finished_at < {end}
            AND NOT EXISTS (SELECT 1 FROM job_hours WHERE hour = {start} AND job_type = '')
        """
        for number, which in ((0, f"{DONE} AND status = 'succeeded'"), (1, DEAD))
    )
    # By numbers first, which SQLite sorts faster than texts.
    return text(f"""
        SELECT {d.bucket("took", BOUNDS)}, {d.bucket("waited", BOUNDS)}, job_type,
            count(*), sum(dead), {_sum(d, "took")}, {_sum(d, "waited")}
        FROM ({ended}) AS ended GROUP BY 1, 2, 3
    """)


def _sum(d: Dialect, seconds: str) -> str:
    """Return SQL for the sum of *seconds*: 0 to a year for each, whatever is in the times."""
    return d.between("0", f"COALESCE(sum({seconds}), 0)", "count(*) * 31622400.0")


def _write(books: Bookkeeping, hour: datetime) -> None:
    """Write the rows of *hour*: one for each task, and one for all, whose name is empty."""
    d = books.dialect
    given = {"start": d.instant(hour), "end": d.instant(hour + HOUR)}
    rows = books.rows(ended_in_hour(d), given)
    by_task = {"": list(rows)}
    for row in rows:
        by_task.setdefault(row.job_type, []).append(row)
    all_tasks, *values = (
        {"hour": given["start"], "job_type": task, **_numbers(found)}
        for task, found in sorted(by_task.items())
    )

    def insert(connection: Connection) -> None:
        # Another tick may have written it meanwhile, and have seen other runs.
        if connection.execute(_insert(d), all_tasks).rowcount and values:
            connection.execute(_insert(d), values)

    books.transaction(insert)


def _numbers(rows: Sequence[Row[Any]]) -> dict[str, object]:
    """Return what the columns of a row get by *rows* of `ended_in_hour`."""
    took, waited, _, ended, *sums = zip(*rows, strict=True) if rows else [()] * 7
    dead, took_seconds, waited_seconds = map(sum, sums)
    return {
        "ended": sum(ended),
        "dead": dead,
        "took_seconds": took_seconds,
        "waited_seconds": waited_seconds,
        "took": _by_bucket(took, ended),
        "waited": _by_bucket(waited, ended),
    }


def _by_bucket(buckets: Iterable[int], ended: Iterable[int]) -> str:
    numbers: Counter[int] = Counter()
    for bucket, number in zip(buckets, ended, strict=True):
        numbers[bucket] += number
    return json.dumps(numbers)


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
    # Here, since ticks write hours and no marks.
    from .operations import Act, perform

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
    # Here, since ticks write hours and no marks.
    from .operations import Act, perform

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
