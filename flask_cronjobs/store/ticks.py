"""Write the row of each tick, and prune old rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, Executable, Select, delete, func, select, text
from sqlalchemy.orm import aliased

from .. import models
from ..models.conditions import DEAD, DONE, DONE_EFFECT
from ..types import TickReport, stored_time
from .ahead import is_ahead, put_right
from .batches import note_pruned, prune_batches
from .clock import database_now
from .connection import Bookkeeping
from .dialect import dialect_of
from .turns import Turns

#: How many rows one pruning transaction deletes at most.
CHUNK = 1000
#: A dead run that stops its key waits for an operator, however long.
_PRUNABLE_DEAD = f"{DEAD} AND (on_dead = 'stop') IS NOT TRUE"
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
    """The writes about ticks, and all pruning.

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
            self._books.transaction(_prune_ticks)
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

    def prune(
        self,
        retention: float,
        retention_dead: float,
        budget: float = 5.0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> int:
        """Delete what is older than its retention, in small chunks; return how many runs.

        :param retention: seconds to keep succeeded, cancelled and skipped runs.
        :param retention_dead: seconds to keep dead runs, and effects that are done. An effect stays
            while its run may be tried again, however old it is.
        :param budget: seconds after which no new chunk begins.
        :param stopped: returns whether no new chunk is to begin.
        """
        until = time.monotonic() + budget

        def over() -> bool:
            return stopped() or time.monotonic() > until

        pruned = 0
        for condition, seconds in ((DONE, retention), (_PRUNABLE_DEAD, retention_dead)):
            while True:
                prune = partial(_prune_runs, condition=condition, seconds=seconds)
                deleted = self._books.transaction(prune)
                pruned += deleted
                if deleted < CHUNK or over():
                    break
        while self._books.transaction(partial(_prune_effects, seconds=retention_dead)) == CHUNK:
            if over():
                break
        prune_old = partial(prune_batches, d=self._dialect, seconds=retention)
        self._books.transaction(prune_old)
        return pruned

    def mend_turns(self) -> None:
        """Find strict orders that stand still, since somebody has deleted rows by hand."""
        Turns(self._books).mend()

    def prunable(self, retention: float, retention_dead: float) -> int:
        """Return how many runs `prune` would delete now."""
        total = 0
        for condition, seconds in ((DONE, retention), (_PRUNABLE_DEAD, retention_dead)):
            old = (text(condition), models.JobRun.finished_at < database_now(-seconds))
            count = select(func.count()).select_from(models.JobRun).where(*old)
            total += self._books.rows(count)[0][0]
        return total

    def _set(self, tick_id: int, assignments: str, **values: object) -> None:
        """Change the row of a tick.

        As text: a tick that finds nothing to do need not map the tables.
        """
        statement = text(f"UPDATE job_ticks SET {assignments} WHERE id = :id")
        self._books.rows(statement, {"id": tick_id, **values})


def old_ticks() -> Select[int]:
    """Return the SELECT of the ids of a chunk of ticks past their retention.

    The last one that finished stays: it says since when ticks have failed or stayed away.
    """
    done = aliased(models.JobTick)
    finished = select(done.id).where(done.finished_at.is_not(None))
    last = finished.order_by(done.started_at.desc()).limit(1).scalar_subquery()
    return (
        select(models.JobTick.id)
        .where(
            models.JobTick.started_at < database_now(-TICK_RETENTION.total_seconds()),
            models.JobTick.id != func.coalesce(last, 0),
        )
        .order_by(models.JobTick.started_at)
        .limit(CHUNK)
        .with_for_update(skip_locked=True)
    )


def old_effects(seconds: float) -> Executable:
    """Return the SELECT of the ids of a chunk of effects done more than *seconds* ago.

    The effects of a run that has not succeeded stay while its row is there: a retry, of its own or
    an operator's, must find them. Written as a scalar subquery, which no planner turns into a join
    that reads all runs.
    """
    status = (
        select(models.JobRun.status)
        .where(models.JobRun.id == models.JobEffect.run_id)
        .scalar_subquery()
    )
    return (
        select(models.JobEffect.id)
        .where(
            text(DONE_EFFECT),
            models.JobEffect.done_at < database_now(-seconds),
            func.coalesce(status, "succeeded").in_(("succeeded", "skipped")),
        )
        .order_by(models.JobEffect.done_at)
        .limit(CHUNK)
    )


def _prune_ticks(connection: Connection) -> None:
    # Not in one statement: a planner may read all ticks to join them with the few.
    if ids := list(connection.scalars(old_ticks())):
        connection.execute(delete(models.JobTick).where(models.JobTick.id.in_(ids)))


def _prune_effects(connection: Connection, seconds: float) -> int:
    ids = list(connection.scalars(old_effects(seconds)))
    if ids:
        connection.execute(delete(models.JobEffect).where(models.JobEffect.id.in_(ids)))
    return len(ids)


def _prune_runs(connection: Connection, condition: str, seconds: float) -> int:
    # Lock the rows: a run that an operator retries at this moment keeps both its row and failures.
    run = models.JobRun
    oldest = (
        select(run.id, run.status, run.batch_id)
        .where(text(condition), models.JobRun.finished_at < database_now(-seconds))
        .order_by(models.JobRun.finished_at)
        .limit(CHUNK)
        .with_for_update(skip_locked=True)
    )
    rows = connection.execute(oldest).all()
    ids = note_pruned(
        connection, dialect_of(connection.engine), [(row[0], row[1], row[2]) for row in rows]
    )
    if ids:
        for model in (models.JobFailure, models.JobOutput):
            connection.execute(delete(model).where(model.run_id.in_(ids)))
        connection.execute(delete(models.JobRun).where(models.JobRun.id.in_(ids)))
    return len(ids)
