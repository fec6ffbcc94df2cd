"""Write the row of each tick, and prune old rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial

from sqlalchemy import Connection, Executable, delete, func, insert, select, text, update

from ..models import JobEffect, JobFailure, JobRun, JobTick
from ..models.tables import DEAD, DONE, DONE_EFFECT
from ..types import TickReport
from .clock import database_now
from .connection import Bookkeeping

#: How many rows one pruning transaction deletes at most.
BATCH = 1000
#: For how many seconds the rows of ticks are kept.
TICK_RETENTION = 86400.0
_COUNTS = [field.name for field in fields(TickReport) if field.name not in ("worker", "seconds")]


@dataclass(frozen=True, slots=True)
class TickRow:
    """A tick that has begun: its id, and when it began by the database's clock."""

    id: int
    now: datetime


class Ticks:
    """The writes about ticks, and all pruning.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books

    def begin(self, worker: str, host: str, pid: int, listening: bool = False) -> TickRow:
        """Insert the row of a tick that begins.

        :param listening: whether it is a resident worker that a NOTIFY wakes.
        """
        values = {"worker": worker, "host": host, "pid": pid, "listening": listening}
        times = {"started_at": database_now(), "seen_at": database_now()}
        begun = insert(JobTick).values(**values, **times)
        (row,) = self._books.rows(begun.returning(JobTick.id, JobTick.started_at))
        return TickRow(row.id, row.started_at)

    def seen(self, tick_id: int) -> None:
        """Record that the tick is alive."""
        tick = update(JobTick).where(JobTick.id == tick_id)
        self._books.rows(tick.values(seen_at=database_now()))

    def finish(self, tick_id: int, report: TickReport, clock_offset: float) -> None:
        """Record what the tick did, and that it has ended.

        :param clock_offset: how many seconds the host's clock is ahead of the database's.
        """
        counts = {name: getattr(report, name) for name in _COUNTS}
        times = {"seen_at": database_now(), "finished_at": database_now()}
        tick = update(JobTick).where(JobTick.id == tick_id)
        self._books.rows(tick.values(clock_offset=clock_offset, **times, **counts))

    def add(self, tick_id: int, counts: Mapping[str, int]) -> None:
        """Add *counts* to what the row has."""
        added = {name: JobTick.__table__.c[name] + number for name, number in counts.items()}
        self._books.rows(update(JobTick).where(JobTick.id == tick_id).values(added))

    def listen(self, tick_id: int, listening: bool) -> None:
        """Record whether a NOTIFY wakes the tick's resident worker."""
        tick = update(JobTick).where(JobTick.id == tick_id)
        self._books.rows(tick.values(listening=listening))

    def prune(
        self,
        retention: float,
        retention_dead: float,
        budget: float = 5.0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> int:
        """Delete what is older than its retention, in small batches; return how many runs.

        :param retention: seconds to keep succeeded, cancelled and skipped runs.
        :param retention_dead: seconds to keep dead runs, and effects that are done. An effect stays
            while its run may be tried again, however old it is.
        :param budget: seconds after which no new batch begins.
        :param stopped: returns whether no new batch is to begin.
        """
        until = time.monotonic() + budget

        def over() -> bool:
            return stopped() or time.monotonic() > until

        pruned = 0
        for condition, seconds in ((DONE, retention), (DEAD, retention_dead)):
            while True:
                prune = partial(_prune_runs, condition=condition, seconds=seconds)
                deleted = self._books.transaction(prune)
                pruned += deleted
                if deleted < BATCH or over():
                    break
        self._prune_others(retention_dead, over)
        return pruned

    def prunable(self, retention: float, retention_dead: float) -> int:
        """Return how many runs `prune` would delete now."""
        total = 0
        for condition, seconds in ((DONE, retention), (DEAD, retention_dead)):
            old = (text(condition), JobRun.finished_at < database_now(-seconds))
            count = select(func.count()).select_from(JobRun).where(*old)
            total += self._books.rows(count)[0][0]
        return total

    def _prune_others(self, retention_dead: float, over: Callable[[], bool]) -> None:
        self._books.transaction(_prune_ticks)
        while self._books.transaction(partial(_prune_effects, seconds=retention_dead)) == BATCH:
            if over():
                break


def _prune_ticks(connection: Connection) -> None:
    old = select(JobTick.id).where(JobTick.started_at < database_now(-TICK_RETENTION))
    ids = list(connection.scalars(old.order_by(JobTick.started_at).limit(BATCH)))
    if ids:
        connection.execute(delete(JobTick).where(JobTick.id.in_(ids)))


def old_effects(seconds: float) -> Executable:
    """Return the SELECT of the ids of a batch of effects done more than *seconds* ago.

    The effects of a run that has not succeeded stay while its row is there: a retry, of its own or
    an operator's, must find them. Written as a scalar subquery, which no planner turns into a join
    that reads all runs.
    """
    status = select(JobRun.status).where(JobRun.id == JobEffect.run_id).scalar_subquery()
    return (
        select(JobEffect.id)
        .where(
            text(DONE_EFFECT),
            JobEffect.done_at < database_now(-seconds),
            func.coalesce(status, "succeeded").in_(("succeeded", "skipped")),
        )
        .order_by(JobEffect.done_at)
        .limit(BATCH)
    )


def _prune_effects(connection: Connection, seconds: float) -> int:
    ids = list(connection.scalars(old_effects(seconds)))
    if ids:
        connection.execute(delete(JobEffect).where(JobEffect.id.in_(ids)))
    return len(ids)


def _prune_runs(connection: Connection, condition: str, seconds: float) -> int:
    # Lock the rows: a run that an operator retries at this moment keeps both its row and failures.
    oldest = (
        select(JobRun.id)
        .where(text(condition), JobRun.finished_at < database_now(-seconds))
        .order_by(JobRun.finished_at)
        .limit(BATCH)
        .with_for_update(skip_locked=True)
    )
    ids = list(connection.scalars(oldest))
    if ids:
        connection.execute(delete(JobFailure).where(JobFailure.run_id.in_(ids)))
        connection.execute(delete(JobRun).where(JobRun.id.in_(ids)))
    return len(ids)
