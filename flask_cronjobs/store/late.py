"""Find slots that did not come in time, and mark of which somebody was told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import or_, select, text, update

from .. import models
from ..models.conditions import LIVE, SCHEDULED
from ..types import LateSlot, stored_time
from .connection import Bookkeeping, Rows
from .dialect import Dialect

#: How many late slots of each kind are found at a time.
CHUNK = 100


def late_slots(books: Bookkeeping, overdue: float) -> list[LateSlot]:
    """Return slots that are *overdue* seconds late, and of which nobody was told, oldest first.

    A slot is late if it is not recorded, or if no attempt of its run has begun. Runs of paused
    tasks and queues are not late.
    """
    parameters = {"since": -overdue, "chunk": CHUNK}
    statements = _unrecorded(books.dialect), _waiting(books.dialect)
    found = [row for each in statements for row in books.rows(text(each), parameters)]
    return sorted(_late(found), key=lambda slot: slot.at)


def mark_late(books: Bookkeeping, late: LateSlot) -> bool:
    """Mark that somebody is told of *late*; return False if somebody was, or the row is locked."""
    told = models.JobDefinition.late_slot
    free = (
        select(models.JobDefinition.id)
        .where(models.JobDefinition.id == late.definition_id, or_(told.is_(None), told < late.at))
        .with_for_update(key_share=True, skip_locked=True)
    )
    it = update(models.JobDefinition).where(models.JobDefinition.id == free.scalar_subquery())
    return bool(books.rows(it.values(late_slot=late.at).returning(models.JobDefinition.id)))


def _unrecorded(d: Dialect) -> str:
    return f"""
    SELECT id, name, job_type, next_run_at AS at, NULL AS run_id, {d.now} AS now
    FROM job_definitions
    WHERE {SCHEDULED} AND next_run_at <= {d.later(":since")}
        AND (late_slot IS NULL OR late_slot < next_run_at)
    ORDER BY next_run_at LIMIT :chunk
    """


def _waiting(d: Dialect) -> str:
    # Most definitions have one run that waits, or none. What is paused waits on purpose.
    late = f"status = 'queued' AND attempts = 0 AND scheduled_for <= {d.later(':since')}"
    return f"""
    WITH waiting AS MATERIALIZED (
        SELECT id, definition_id, scheduled_for, job_type, queue FROM job_runs
        WHERE {LIVE} AND definition_id IS NOT NULL AND ({late}) IS TRUE
    )
    SELECT d.id, d.name, d.job_type, w.scheduled_for AS at, w.id AS run_id, {d.now} AS now
    FROM job_definitions d JOIN waiting w ON w.definition_id = d.id
    WHERE {d.any_of("d.id", "SELECT definition_id FROM waiting")}
        AND (d.late_slot IS NULL OR d.late_slot < w.scheduled_for)
        AND NOT EXISTS (SELECT 1 FROM job_pauses WHERE kind = 'task' AND name = w.job_type)
        AND NOT EXISTS (SELECT 1 FROM job_pauses WHERE kind = 'queue' AND name = w.queue)
    ORDER BY w.scheduled_for LIMIT :chunk
    """


def _late(rows: Rows) -> Iterator[LateSlot]:
    """Yield the slots that can be read: SQLite accepts any text, and the tick logs it."""
    for row in rows:
        try:
            at: datetime = stored_time(row.at)
        except (ValueError, AttributeError):
            continue
        waited = (stored_time(row.now) - at).total_seconds()
        yield LateSlot(row.id, row.name, row.job_type, at, waited, row.run_id)
