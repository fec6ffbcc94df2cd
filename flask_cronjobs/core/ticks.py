"""The rows of ticks: what a tick writes, and what the next one reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import TextClause, text

from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import ODD, OPEN_BATCH, PARKED, RUNNING, SPENT
from ..types import TickReport, stored_json, stored_time, time_or_none
from .definitions import undeclared

#: The largest number of rows of one kind that one transaction deletes, here and in `core.prune`.
#: Dependent rows are not counted.
DELETED_AT_ONCE = 1000
#: How long the rows of ticks are kept.
TICK_RETENTION = timedelta(days=1)
#: How much longer the rows may be kept, so that a tick deletes those of many minutes at once.
TICK_SLACK = timedelta(hours=1)
#: Seconds by which a host's clock may differ from the database's without a warning.
CLOCK_TOLERANCE_SECONDS = 2.0
#: A tick whose ``seen_at`` is more than this many seconds after its start has recorded its slots.
SEEN_AFTER_SECONDS = 1.0
#: The number of ticks whose pruned runs `TickRow.pruned` counts.
LATEST_TICKS = 5
#: The counts of a tick, in the order of its work.
TICK_COUNTS = tuple(name for name in TickReport._fields if name not in ("worker", "seconds"))


class TickRow(NamedTuple):
    """The row of a tick that has begun, and the work that it must do besides its runs.

    One statement returns both, so no further query checks whether there is such work.

    :ivar now: when it began, by the database's clock.
    :ivar begins_hour: whether it is the first tick of its hour.
    :ivar pruned: the number of runs that the last `LATEST_TICKS` ticks have pruned.
    :ivar expired: whether a lease has ended.
    :ivar spent: whether a waiting run has no attempt left.
    :ivar parked: whether a run is parked behind others.
    :ivar open_batches: whether a batch has not ended.
    :ivar undeclared: whether a definition must be marked as not declared by the code.
    """

    id: int
    now: datetime
    begins_hour: bool
    pruned: int
    expired: bool
    spent: bool
    parked: bool
    open_batches: bool
    undeclared: bool


#: The fields that the insert of a tick's row reads from other tables.
_MARKS = TickRow._fields[TickRow._fields.index("expired") :]


def begin(
    books: Bookkeeping,
    worker: str,
    host: str,
    pid: int,
    *,
    listening: bool = False,
    resident: bool = False,
    queues: Sequence[str] = (),
    version: str | None = None,
    declared: Sequence[str] = (),
    app: str | None = None,
) -> TickRow:
    """Insert the row of a tick that begins, and delete the rows past `TICK_RETENTION`.

    Old rows are deleted here, since each tick gets this far, even one that is killed later. So the
    table holds the ticks of about a day, however they end.

    :param listening: whether the row belongs to a resident worker that a NOTIFY wakes.
    :param resident: whether the row stands for one minute of a resident worker.
    :param queues: the queues that it serves; empty means all.
    :param declared: the names of the definitions that its code declares.
    :param app: the name of the app.
    """
    d = books.dialect
    values = {
        "worker": worker,
        "host": host,
        "pid": pid,
        "listening": listening,
        "resident": resident,
        "queues": json.dumps(sorted(set(queues))) if queues else None,
        "version": version,
        "age": -(TICK_RETENTION + TICK_SLACK).total_seconds(),
        "declared": d.many(declared),
        "app": app,
    }
    (row,) = books.rows(insert_tick(d), values)
    if row.has_old:
        old = d.any_of("id", old_ticks(d))
        age = TICK_RETENTION.total_seconds()
        books.rows(text(f"DELETE FROM job_ticks WHERE {old}"), {"age": age})
    marks = (bool(getattr(row, name)) for name in _MARKS)
    now, last = stored_time(row.started_at), time_or_none(row.last)
    begins_hour = last is not None and last < now.replace(minute=0, second=0, microsecond=0)
    return TickRow(row.id, now, begins_hour, row.pruned or 0, *marks)


@lru_cache(maxsize=4)
def insert_tick(d: Dialect) -> TextClause:
    """Return the INSERT of `begin`."""
    latest = f"SELECT pruned FROM job_ticks ORDER BY started_at DESC LIMIT {LATEST_TICKS}"
    # For each boolean field of `TickRow`, the rows that make it true. One such row is enough.
    rows_of = {
        "expired": f"job_runs WHERE {RUNNING} AND locked_until <= {d.now}",
        "spent": f"job_runs WHERE {ODD} AND {SPENT}",
        "parked": f"job_runs WHERE {PARKED}",
        "open_batches": f"job_batches WHERE {OPEN_BATCH}",
        "undeclared": f"job_definitions WHERE {undeclared(d)}",
    }
    marks = (f"EXISTS (SELECT 1 FROM {rows_of[name]}) AS {name}" for name in _MARKS)
    return text(f"""
    INSERT INTO job_ticks (
        worker, host, pid, listening, resident, queues, version, started_at, seen_at
    )
    VALUES (
        :worker, :host, :pid, :listening, :resident, {d.typed(":queues", "jsonb")}, :version,
        {d.now}, {d.now}
    )
    RETURNING id, started_at,
        (SELECT min(started_at) FROM job_ticks) < {d.later(":age")} AS has_old,
        (SELECT max(started_at) FROM job_ticks WHERE started_at < {d.now}) AS last,
        (SELECT sum(pruned) FROM ({latest}) AS latest) AS pruned, {", ".join(marks)}
    """)


def seen(books: Bookkeeping, tick_id: int) -> None:
    """Record that the tick is alive, unless its row is locked, since heartbeats cannot wait."""
    d = books.dialect
    free = d.any_of("id", f"SELECT id FROM job_ticks WHERE id = :id {d.skip_locked}")
    books.rows(text(f"UPDATE job_ticks SET seen_at = {d.now} WHERE {free}"), {"id": tick_id})


def finish(books: Bookkeeping, tick_id: int, report: TickReport, clock_offset: float) -> None:
    """Record what the tick did, and that it has ended.

    :param clock_offset: seconds by which the host's clock is ahead of the database's.
    """
    counts = {name: getattr(report, name) for name in TICK_COUNTS}
    values = {"id": tick_id, "clock_offset": clock_offset, **counts}
    books.rows(finish_statement(books.dialect), values)


@lru_cache(maxsize=4)
def finish_statement(d: Dialect) -> TextClause:
    """Return the UPDATE of `finish`.

    It adds to the row's counts, since other workers of a pool may have added theirs. A finished row
    is left as it is, so the UPDATE can be repeated if its answer is lost.
    """
    times = f"seen_at = {d.now}, finished_at = {d.now}, clock_offset = :clock_offset"
    unfinished = "WHERE id = :id AND finished_at IS NULL"
    return text(f"UPDATE job_ticks SET {times}, {_added(TICK_COUNTS)} {unfinished}")


def add(books: Bookkeeping, host: str, counts: Mapping[str, int]) -> bool:
    """Add *counts* to the latest row of a resident worker on *host*; return whether one was found.

    A locked row is skipped, since heartbeats cannot wait.

    :raises DatabaseTrouble: the UPDATE failed, or its result is unknown. It is not tried again,
        since the counts could then be added twice.
    """
    latest = """
        SELECT id FROM job_ticks WHERE host = :host AND resident
        ORDER BY started_at DESC LIMIT 1
    """
    d = books.dialect
    free = f"SELECT id FROM job_ticks WHERE id = ({latest}) {d.skip_locked}"
    statement = f"UPDATE job_ticks SET {_added(counts)} WHERE {d.any_of('id', free)} RETURNING id"
    return bool(books.rows(text(statement), {"host": host, **counts}, repeat=False))


def _added(counts: Iterable[str]) -> str:
    return ", ".join(f"{name} = {name} + :{name}" for name in counts)


def listen(books: Bookkeeping, tick_id: int, listening: bool) -> None:
    """Record whether a NOTIFY wakes the tick's resident worker."""
    statement = text("UPDATE job_ticks SET listening = :listening WHERE id = :id")
    books.rows(statement, {"id": tick_id, "listening": listening})


def sent_findings(books: Bookkeeping) -> Sequence[str]:
    """Return the ids of the findings that were last sent to the webhook."""
    query = f"SELECT {books.dialect.unparsed('findings')} AS findings FROM job_ticks"
    last = "WHERE findings IS NOT NULL ORDER BY started_at DESC, id DESC LIMIT 1"
    for row in books.rows(text(f"{query} {last}")):
        ids: Sequence[str] = stored_json(row.findings)
        return ids
    return ()


def write_findings(books: Bookkeeping, worker: str, ids: Sequence[str]) -> None:
    """Record the ids of the findings sent to the webhook, in *worker*'s last finished row."""
    last = "SELECT max(id) FROM job_ticks WHERE worker = :worker AND finished_at IS NOT NULL"
    assignment = f"findings = {books.dialect.typed(':findings', 'jsonb')}"
    statement = text(f"UPDATE job_ticks SET {assignment} WHERE id = ({last})")
    books.rows(statement, {"worker": worker, "findings": json.dumps(ids)})


def old_ticks(d: Dialect) -> str:
    """Return the SELECT of the ids of a chunk of ticks that began over ``age`` seconds ago.

    The last one that finished is kept, since it shows since when ticks have failed or stopped.
    """
    last = "SELECT id FROM job_ticks WHERE finished_at IS NOT NULL ORDER BY started_at DESC LIMIT 1"
    return f"""
        SELECT id FROM job_ticks
        WHERE started_at < {d.later("0 - :age")} AND id <> COALESCE(({last}), 0)
        ORDER BY started_at LIMIT {DELETED_AT_ONCE} {d.skip_locked}
    """


#: The least value of `TickHistory.grace`. A tick may come at any second of its minute, so a gap of
#: two minutes is not an outage.
LEAST_GRACE = timedelta(minutes=2)


class TickHistory:
    """The ticks of the last day and the last finished one, read when first needed.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books

    @cached_property
    def grace(self) -> timedelta:
        """Twice the usual time between ticks, at least `LEAST_GRACE`.

        Ticks of one minute count as one, however many hosts there are. The median is used, so an
        outage does not change it.
        """
        minutes = [int(row.minute) for row in self._books.rows(text(self._minutes()))]
        gaps = sorted(after - before for before, after in pairwise(minutes))
        usual = gaps[len(gaps) // 2] if gaps else 0
        return max(LEAST_GRACE, timedelta(minutes=2 * usual))

    @cached_property
    def last_finished(self) -> datetime | None:
        """The start of the last tick that finished."""
        latest = "SELECT max(started_at) AS at FROM job_ticks WHERE finished_at IS NOT NULL"
        (row,) = self._books.rows(text(latest))
        return None if row.at is None else stored_time(row.at)

    def _minutes(self) -> str:
        dialect = self._books.dialect
        return f"""
        SELECT DISTINCT {dialect.epoch("started_at")} / 60 AS minute FROM job_ticks
        WHERE started_at >= {dialect.later("-86400")} ORDER BY minute
        """
