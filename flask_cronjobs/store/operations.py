"""The writes of an operator: each changes only rows whose state allows it, and says which."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    Update,
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.orm import aliased

from ..errors import KeyConflict
from ..models import JobDefinition, JobEffect, JobRun
from ..types import HANDED, Status
from .clock import database_now
from .connection import Bookkeeping
from .dialect import insert_into

RETRIABLE: tuple[Status, ...] = ("dead", "cancelled", "failed")
#: How long an operator's writes wait in all for rows that are locked, in seconds.
LOCK_WAIT = 3.0
CANCELLABLE: tuple[Status, ...] = ("queued", "failed", "running")
DISCARDABLE: tuple[Status, ...] = ("dead",)


@dataclass(frozen=True, slots=True)
class Change:
    """A run that was changed (or found), with its status and the number of its attempts."""

    run_id: int
    task: str
    status: Status
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What of a run goes into a new one like it.

    :ivar payload: its JSON, as a text.
    :ivar definition_id: None if the definition is gone.
    """

    id: int
    task: str
    status: Status
    payload: str
    queue: str
    priority: int
    definition_id: int | None
    concurrency_key: str | None
    concurrency_limit: int | None


class Operator:
    """The writes of an operator.

    Rows that another transaction has locked on PostgreSQL are waited for, but not for long.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._until = time.monotonic() + LOCK_WAIT

    def retry(self, ids: Sequence[int], columns: Mapping[str, Any] | None = None) -> list[Change]:
        """Queue those of *ids* that are dead, cancelled or failed, due now.

        Each has at least one more attempt, even if it had used up all of them. One that would take
        its idempotency key back stays as it is if another run has the key, or, among *ids*, if a
        later one wants it.

        :param columns: what else to change.
        """
        left = JobRun.max_attempts > JobRun.attempts
        values = {
            "status": "queued",
            "run_at": database_now(),
            "finished_at": None,
            "cancel_requested_at": None,
            "max_attempts": case((left, JobRun.max_attempts), else_=JobRun.attempts + 1),
            "updated_at": database_now(),
            **(columns or {}),
        }
        return self._change(ids, RETRIABLE, values, but_for=_key_is_taken(ids))

    def key_holder(self, run_id: int) -> int | None:
        """Return the run that keeps *run_id* from a retry, since it has its key; None if none."""
        other = _other()
        query = select(other.id).where(JobRun.id == run_id, _wants_key(JobRun), _same_key(other))
        rows = self._books.rows(query.where(_holds_key(other)))
        return rows[0].id if rows else None

    def cancel(self, ids: Sequence[int], reason: str) -> list[Change]:
        """Cancel those of *ids* that wait, and request it for those that run.

        A run returned as ``running`` ends when its worker has interrupted it. One that waits in an
        engine's broker ends at once: its token is gone when it comes.
        """
        handed = func.coalesce(JobRun.locked_by, "").startswith(HANDED)
        running = and_(JobRun.status == "running", ~handed)
        requested = func.coalesce(JobRun.cancel_requested_at, database_now())
        values = {
            "status": case((running, JobRun.status), else_="cancelled"),
            "finished_at": case((running, None), else_=database_now()),
            "last_error": case((running, JobRun.last_error), else_=reason),
            "error_type": case((running, JobRun.error_type), else_="Cancelled"),
            "cancel_requested_at": case((running, requested), else_=JobRun.cancel_requested_at),
            **{
                name: case((running, getattr(JobRun, name)), else_=None)
                for name in ("locked_by", "locked_until", "concurrency_share")
            },
            "updated_at": database_now(),
        }
        return self._change(ids, CANCELLABLE, values)

    def discard(self, ids: Sequence[int], reason: str) -> list[Change]:
        """Turn those of *ids* that are dead into cancelled ones; their failed attempts stay."""
        values = {
            "status": "cancelled",
            # From now on, so that it can be retried for as long as other cancelled runs.
            "finished_at": database_now(),
            "last_error": reason,
            "error_type": "Discarded",
            "updated_at": database_now(),
        }
        return self._change(ids, DISCARDABLE, values)

    def status_of(self, run_id: int) -> Status | None:
        """Return the status of a run, or None if there is no such run."""
        rows = self._books.rows(select(JobRun.status).where(JobRun.id == run_id))
        return rows[0].status if rows else None

    def run(self, run_id: int) -> StoredRun | None:
        """Return a run, or None if there is no such run."""
        of_definition = select(JobDefinition.id).where(JobDefinition.id == JobRun.definition_id)
        rows = self._books.rows(
            select(
                JobRun.id,
                JobRun.job_type,
                JobRun.status,
                cast(JobRun.payload, String),
                JobRun.queue,
                JobRun.priority,
                of_definition.scalar_subquery(),
                JobRun.concurrency_key,
                JobRun.concurrency_limit,
            ).where(JobRun.id == run_id)
        )
        return StoredRun(*tuple(rows[0])) if rows else None

    def insert(
        self, values: Mapping[str, Any], run_at: datetime | None = None, delay: float | None = None
    ) -> int:
        """Insert a run that is due now, at *run_at* or after *delay* seconds; return its id.

        :raises KeyConflict: another run has its idempotency key.
        """
        now = database_now()
        due = run_at or (now if delay is None else database_now(delay))
        statement = (
            insert_into(JobRun, self._books.dialect.name)
            .values(**values, scheduled_for=now, run_at=due, created_at=now, updated_at=now)
            .on_conflict_do_nothing()
            .returning(JobRun.id)
        )
        key = values.get("idempotency_key")
        # A definition has one run per instant. If somebody else has just used this one, the next
        # try uses a later one.
        while not (rows := self._books.rows(statement)):
            if key is not None and (holder := self.holder(key)) is not None:
                raise KeyConflict(
                    f"The idempotency key {key!r} is held by run {holder.run_id} of the task "
                    f"{holder.task}. Nothing was queued. Give another key."
                )
        return int(rows[0].id)

    def holder(self, key: str) -> Change | None:
        """Return the run that has an idempotency key."""
        columns = JobRun.id, JobRun.job_type, JobRun.status, JobRun.attempts
        rows = self._books.rows(select(*columns).where(JobRun.idempotency_key == key))
        return Change(*tuple(rows[0])) if rows else None

    def effect_state(self, key: str) -> str | None:
        """Return ``begun``, ``done`` or ``in_doubt``, or None if there is no such effect.

        An effect that was begun is ``in_doubt`` if its owner is gone.
        """
        state = case((is_in_doubt(database_now()), literal("in_doubt")), else_=JobEffect.state)
        rows = self._books.rows(select(state.label("state")).where(JobEffect.key == key))
        return rows[0].state if rows else None

    def effect_done(self, key: str) -> bool:
        """Record that an effect in doubt was done; return False if it was not in doubt."""
        statement = update(JobEffect).where(JobEffect.key == key, is_in_doubt(database_now()))
        done = statement.values(state="done", done_at=database_now())
        return bool(self._books.rows(done.returning(JobEffect.id)))

    def effect_redo(self, key: str) -> bool:
        """Delete the mark of an effect in doubt; return False if it was not in doubt."""
        statement = delete(JobEffect).where(JobEffect.key == key, is_in_doubt(database_now()))
        return bool(self._books.rows(statement.returning(JobEffect.id)))

    def _change(
        self,
        ids: Sequence[int],
        statuses: Sequence[Status],
        values: Mapping[str, Any],
        but_for: ColumnElement[bool] | None = None,
    ) -> list[Change]:
        """Change those of *ids* that have one of *statuses*; leave rows that stay locked.

        :param but_for: a condition of those that are left.
        """
        changes: list[Change] = []
        left: Sequence[int] = ids
        which: ColumnElement[bool] = JobRun.status.in_(statuses)
        if but_for is not None:
            which = and_(which, ~but_for)
        while True:
            free = _free(left, which).with_for_update(key_share=True, skip_locked=True)
            # By the list, too: so PostgreSQL looks the rows up, also to compare them with `free`.
            changed = update(JobRun).where(JobRun.id.in_(left), JobRun.id.in_(free)).values(values)
            changes += self._changes(changed)
            if len(changes) == len(ids):
                return changes
            done = {change.run_id for change in changes}
            found = self._books.rows(_free([each for each in left if each not in done], which))
            left = [row.id for row in found]
            if not left or time.monotonic() > self._until:
                return changes
            time.sleep(0.05)

    def _changes(self, statement: Update) -> list[Change]:
        changed = statement.returning(JobRun.id, JobRun.job_type, JobRun.status, JobRun.attempts)
        rows = self._books.rows(changed.execution_options(synchronize_session=False))
        return [Change(row.id, row.job_type, row.status, row.attempts) for row in rows]


def _free(ids: Sequence[int], which: ColumnElement[bool]) -> Select[Any]:
    return select(JobRun.id).where(JobRun.id.in_(ids), which)


def _other() -> type[JobRun]:
    return aliased(JobRun, name="other")


def _key_is_taken(ids: Sequence[int]) -> ColumnElement[bool]:
    """Return the condition that a run cannot have its key back; see `Operator.retry`."""
    other = _other()
    later = and_(other.id.in_(ids), other.id > JobRun.id, _wants_key(other))
    taken = exists().where(_same_key(other), or_(_holds_key(other), later))
    return and_(_wants_key(JobRun), taken)


def _wants_key(run: type[JobRun]) -> ColumnElement[bool]:
    """Return the condition that *run* has given up its key, and a retry would take it back."""
    unbegun = and_(run.unique_while == "waiting", run.started_at.is_(None))
    ended = and_(run.finished_at.is_not(None), run.status.in_(RETRIABLE))
    return and_(ended, or_(run.unique_while == "pending", unbegun))


def _same_key(other: type[JobRun]) -> ColumnElement[bool]:
    return and_(other.idempotency_key == JobRun.idempotency_key, other.id != JobRun.id)


def _holds_key(other: type[JobRun]) -> ColumnElement[bool]:
    """Return `HOLDS_KEY` for *other*."""
    unended = or_(other.unique_while == "pending", other.started_at.is_(None))
    return or_(other.unique_while.is_(None), and_(other.finished_at.is_(None), unended))


def is_in_doubt(now: datetime | ColumnElement[datetime]) -> ColumnElement[bool]:
    """Return the condition that an effect is in doubt: marked so, or its owner's lease ran out."""
    held = exists().where(
        JobRun.id == JobEffect.run_id,
        JobRun.status == "running",
        JobRun.locked_by == JobEffect.locked_by,
        JobRun.locked_until > now,
    )
    alone = and_(JobEffect.run_id.is_(None), func.coalesce(JobEffect.locked_until > now, False))
    gone = and_(JobEffect.state == "begun", ~or_(held, alone))
    return or_(JobEffect.state == "in_doubt", gone)
