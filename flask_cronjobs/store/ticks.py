"""Write the row of each tick, and delete old ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from sqlalchemy import text

from ..types import TickReport, stored_time
from .ahead import is_ahead, put_right
from .connection import Bookkeeping
from .dialect import Dialect
from .turns import Turns

#: How many rows one tick deletes at most.
CHUNK = 1000
#: For how long the rows of ticks are kept.
TICK_RETENTION = timedelta(days=1)
#: For how much longer, so that not every tick deletes the few rows of one minute.
TICK_SLACK = timedelta(hours=1)
_COUNTS = [name for name in TickReport._fields if name not in ("worker", "seconds")]


class TickRow(NamedTuple):
    """A tick that has begun: its id, and when it began by the database's clock.

    :ivar was_ahead: whether that clock had been ahead before, which is put right.
    """

    id: int
    now: datetime
    was_ahead: bool = False


class Ticks:
    """The writes about ticks.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._dialect = books.dialect

    def begin(self, worker: str, host: str, pid: int, listening: bool = False) -> TickRow:
        """Insert the row of a tick that begins, and delete those past `TICK_RETENTION`.

        It is here that they go, since each tick comes this far, even one that is killed later. So
        there are no more of them than began within a day, however ticks end.

        :param listening: whether it is a resident worker that a NOTIFY wakes.
        """
        values = {"worker": worker, "host": host, "pid": pid, "listening": listening}
        now, limit = self._dialect.now, self._dialect.later(":age")
        statement = f"""
        INSERT INTO job_ticks (worker, host, pid, listening, started_at, seen_at)
        VALUES (:worker, :host, :pid, :listening, {now}, {now})
        RETURNING id, started_at, (SELECT min(started_at) FROM job_ticks) < {limit} AS has_old,
            {is_ahead(self._dialect)} AS was_ahead
        """
        age = -(TICK_RETENTION + TICK_SLACK).total_seconds()
        (row,) = self._books.rows(text(statement), {**values, "age": age})
        if row.has_old:
            old = self._dialect.any_of("id", old_ticks(self._dialect))
            age = TICK_RETENTION.total_seconds()
            self._books.rows(text(f"DELETE FROM job_ticks WHERE {old}"), {"age": age})
        if row.was_ahead:
            self._books.transaction(partial(put_right, d=self._dialect))
        return TickRow(row.id, stored_time(row.started_at), bool(row.was_ahead))

    def seen(self, tick_id: int) -> None:
        """Record that the tick is alive."""
        self._set(tick_id, f"seen_at = {self._dialect.now}")

    def finish(self, tick_id: int, report: TickReport, clock_offset: float) -> None:
        """Record what the tick did, and that it has ended.

        :param clock_offset: how many seconds the host's clock is ahead of the database's.
        """
        counts = {name: getattr(report, name) for name in _COUNTS}
        now = self._dialect.now
        times = f"seen_at = {now}, finished_at = {now}, clock_offset = :clock_offset"
        values = ", ".join(f"{name} = :{name}" for name in counts)
        self._set(tick_id, f"{times}, {values}", clock_offset=clock_offset, **counts)

    def add(self, tick_id: int, counts: Mapping[str, int]) -> None:
        """Add *counts* to what the row has."""
        added = ", ".join(f"{name} = {name} + :{name}" for name in counts)
        self._set(tick_id, added, **counts)

    def listen(self, tick_id: int, listening: bool) -> None:
        """Record whether a NOTIFY wakes the tick's resident worker."""
        self._set(tick_id, "listening = :listening", listening=listening)

    def mend_turns(self) -> None:
        """Find strict orders that stand still, since somebody has deleted rows by hand."""
        Turns(self._books).mend()

    def _set(self, tick_id: int, assignments: str, **values: object) -> None:
        """Change the row of a tick.

        As text: a tick that finds nothing to do need not map the tables.
        """
        statement = text(f"UPDATE job_ticks SET {assignments} WHERE id = :id")
        self._books.rows(statement, {"id": tick_id, **values})


def old_ticks(d: Dialect) -> str:
    """Return the SELECT of the ids of a chunk of ticks past their retention, ``age`` seconds ago.

    The last one that finished stays: it says since when ticks have failed or stayed away.
    """
    last = "SELECT id FROM job_ticks WHERE finished_at IS NOT NULL ORDER BY started_at DESC LIMIT 1"
    return f"""
        SELECT id FROM job_ticks
        WHERE started_at < {d.later("0 - :age")} AND id <> COALESCE(({last}), 0)
        ORDER BY started_at LIMIT {CHUNK} {d.skip_locked}
    """
