"""Writes that an operator asks for: each says which rows it may change, and tells which it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    and_,
    case,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from ..models import JobEffect, JobRun
from ..types import Status
from .clock import database_now
from .connection import Bookkeeping

RETRIABLE: tuple[Status, ...] = ("dead", "cancelled", "failed")
CANCELLABLE: tuple[Status, ...] = ("queued", "failed", "running")


@dataclass(frozen=True, slots=True)
class Change:
    """A run that was changed, its status now, and how many attempts it has had."""

    run_id: int
    task: str
    status: Status
    attempts: int = 0


class Operator:
    """The writes of an operator.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books

    def retry(self, ids: Sequence[int]) -> list[Change]:
        """Queue those of *ids* that are dead, cancelled or failed, for one attempt more, now."""
        statement = (
            update(JobRun)
            .where(JobRun.id.in_(ids), JobRun.status.in_(RETRIABLE))
            .values(
                status="queued",
                run_at=database_now(),
                finished_at=None,
                cancel_requested_at=None,
                max_attempts=case(
                    (JobRun.max_attempts > JobRun.attempts, JobRun.max_attempts),
                    else_=JobRun.attempts + 1,
                ),
                updated_at=database_now(),
            )
            .returning(JobRun.id, JobRun.job_type, JobRun.status, JobRun.attempts)
        )
        return self._changes(statement)

    def cancel(self, ids: Sequence[int], reason: str) -> list[Change]:
        """Cancel those of *ids* that wait, and ask the keepers of those that run to do so.

        What comes back as ``running`` was asked for; it ends when its worker has interrupted it.
        """
        running = JobRun.status == "running"
        asked = func.coalesce(JobRun.cancel_requested_at, database_now())
        statement = (
            update(JobRun)
            .where(JobRun.id.in_(ids), JobRun.status.in_(CANCELLABLE))
            .values(
                status=case((running, JobRun.status), else_="cancelled"),
                finished_at=case((running, None), else_=database_now()),
                last_error=case((running, JobRun.last_error), else_=reason),
                error_type=case((running, JobRun.error_type), else_="Cancelled"),
                cancel_requested_at=case((running, asked), else_=JobRun.cancel_requested_at),
                updated_at=database_now(),
            )
            .returning(JobRun.id, JobRun.job_type, JobRun.status, JobRun.attempts)
        )
        return self._changes(statement)

    def status_of(self, run_id: int) -> Status | None:
        """The status of a run; None if there is none."""
        rows = self._books.rows(select(JobRun.status).where(JobRun.id == run_id))
        return rows[0].status if rows else None

    def insert(self, values: Mapping[str, Any]) -> int:
        """Insert a run that is due now; its id."""
        insert = postgresql.insert if self._books.dialect.name == "postgresql" else sqlite.insert
        now = database_now()
        statement = (
            insert(JobRun)
            .values(**values, scheduled_for=now, run_at=now, created_at=now, updated_at=now)
            .on_conflict_do_nothing()
            .returning(JobRun.id)
        )
        # A definition's run stands for the instant at which it is asked for, and somebody else may
        # have asked in the same one: the next is free.
        while not (rows := self._books.rows(statement)):
            pass
        return int(rows[0].id)

    def effect_state(self, key: str) -> str | None:
        """``begun``, ``done`` or ``in_doubt``; the last also if its owner is gone; None if none."""
        state = case((doubtful(database_now()), literal("in_doubt")), else_=JobEffect.state)
        rows = self._books.rows(select(state.label("state")).where(JobEffect.key == key))
        return rows[0].state if rows else None

    def effect_done(self, key: str) -> bool:
        """Note that an effect in doubt was done; whether it was in doubt."""
        statement = (
            update(JobEffect)
            .where(JobEffect.key == key, doubtful(database_now()))
            .values(state="done", done_at=database_now())
            .returning(JobEffect.id)
        )
        return bool(self._books.rows(statement))

    def effect_redo(self, key: str) -> bool:
        """Take the mark of an effect in doubt away; whether it was in doubt."""
        statement = (
            delete(JobEffect)
            .where(JobEffect.key == key, doubtful(database_now()))
            .returning(JobEffect.id)
        )
        return bool(self._books.rows(statement))

    def _changes(self, statement: Any) -> list[Change]:
        rows = self._books.rows(statement.execution_options(synchronize_session=False))
        return [Change(row.id, row.job_type, row.status, row.attempts) for row in rows]


def doubtful(now: datetime | ColumnElement[datetime]) -> ColumnElement[bool]:
    """The condition that an effect is in doubt: marked so, or begun by an owner that is gone."""
    held = exists().where(
        JobRun.id == JobEffect.run_id,
        JobRun.status == "running",
        JobRun.locked_by == JobEffect.locked_by,
        JobRun.locked_until > now,
    )
    alone = and_(JobEffect.run_id.is_(None), func.coalesce(JobEffect.locked_until > now, False))
    gone = and_(JobEffect.state == "begun", ~or_(held, alone))
    return or_(JobEffect.state == "in_doubt", gone)
