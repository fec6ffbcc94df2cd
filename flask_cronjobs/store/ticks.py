"""A tick's own row, and pruning: what each tick leaves, and what it takes away."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, select, text, update

from ..models import JobEffect, JobFailure, JobRun, JobTick
from ..models.tables import DEAD, DONE
from ..types import TickReport
from .clock import database_now
from .connection import Bookkeeping

#: How many rows one pruning transaction deletes at most.
BATCH = 1000
#: How long the rows of ticks are kept, in seconds.
TICK_RETENTION = 86400.0

_COUNTS = (
    "recorded", "skipped", "reclaimed", "succeeded", "failed", "dead", "cancelled", "released",
    "lost", "pruned",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TickRow:
    """A tick that has begun: its id, and the database's time at which it did."""

    id: int
    now: datetime


class Ticks:
    """Every write about ticks, and all pruning.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books

    def begin(self, worker: str, host: str, pid: int, listening: bool = False) -> TickRow:
        """Insert the row of a tick that begins."""
        statement = (
            insert(JobTick)
            .values(
                worker=worker,
                host=host,
                pid=pid,
                started_at=database_now(),
                seen_at=database_now(),
                listening=listening,
            )
            .returning(JobTick.id, JobTick.started_at)
        )
        row = self._books.rows(statement)[0]
        return TickRow(row.id, row.started_at)

    def seen(self, tick_id: int) -> None:
        """Note that the tick is alive."""
        self._books.rows(
            update(JobTick).where(JobTick.id == tick_id).values(seen_at=database_now())
        )

    def finish(self, tick_id: int, report: TickReport, clock_offset: float) -> None:
        """Note what the tick did, and that it has ended."""
        counts = {name: getattr(report, name) for name in _COUNTS}
        self._books.rows(
            update(JobTick)
            .where(JobTick.id == tick_id)
            .values(
                seen_at=database_now(),
                finished_at=database_now(),
                clock_offset=clock_offset,
                **counts,
            )
        )

    def prune(self, retention: float, retention_dead: float, budget: float = 5.0) -> int:
        """Delete what is older than its retention, in small batches; how many runs went.

        :param retention: seconds for succeeded, cancelled and skipped runs.
        :param retention_dead: seconds for dead runs, and for effects that are done.
        :param budget: seconds after which no further batch is begun.
        """
        until = time.monotonic() + budget
        pruned = 0
        for condition, seconds in ((DONE, retention), (DEAD, retention_dead)):
            while True:
                gone = self._books.transaction(
                    lambda c, w=condition, s=seconds: _prune_runs(c, w, s)  # type: ignore[misc]
                )
                pruned += gone
                if gone < BATCH or time.monotonic() > until:
                    break
        self._prune_others(retention_dead, until)
        return pruned

    def prunable(self, retention: float, retention_dead: float) -> int:
        """How many runs `prune` would delete now."""
        total = 0
        for condition, seconds in ((DONE, retention), (DEAD, retention_dead)):
            statement = (
                select(func.count())
                .select_from(JobRun)
                .where(text(condition), JobRun.finished_at < database_now(-seconds))
            )
            total += self._books.rows(statement)[0][0]
        return total

    def _prune_others(self, retention_dead: float, until: float) -> None:
        old_ticks = select(JobTick.id).where(JobTick.started_at < database_now(-TICK_RETENTION))
        self._books.rows(delete(JobTick).where(JobTick.id.in_(old_ticks.limit(BATCH))))
        old_effects = select(JobEffect.id).where(
            JobEffect.state == "done", JobEffect.done_at < database_now(-retention_dead)
        )
        batch = delete(JobEffect).where(JobEffect.id.in_(old_effects.limit(BATCH)))
        while len(self._books.rows(batch.returning(JobEffect.id))) == BATCH:
            if time.monotonic() > until:
                break


def _prune_runs(connection: Connection, condition: str, seconds: float) -> int:
    # Locked, so that a run which an operator retries meanwhile keeps its row and its failures both.
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
