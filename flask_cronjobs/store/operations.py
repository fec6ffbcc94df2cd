"""The writes of an operator: each changes only rows whose state allows it, and says which."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
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
    text,
    update,
)
from sqlalchemy.orm import aliased

from ..errors import KeyConflict
from ..models import JobDefinition, JobEffect, JobRun
from ..models.conditions import HOLDS_KEY
from ..types import HANDED, PauseKind, Status
from .batches import halted, hold_batches, recount, reopen
from .clock import database_now
from .connection import Bookkeeping, Rows
from .dialect import Dialect, dialect_of, insert_into
from .errors import LOCK_WAIT

RETRIABLE: tuple[Status, ...] = ("dead", "cancelled", "failed")
CANCELLABLE: tuple[Status, ...] = ("queued", "failed", "running")
DISCARDABLE: tuple[Status, ...] = ("dead",)


#: What is done to batches whose runs were changed; for each, whether it was `halted` before.
Touch: TypeAlias = Callable[[Connection, Dialect, Mapping[int, bool]], None]


class Change(NamedTuple):
    """A run that was changed (or found), its status, the number of its attempts, and its batch."""

    run_id: int
    task: str
    status: Status
    attempts: int = 0
    batch_id: int | None = None


class StoredRun(NamedTuple):
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
    on_dead: str | None


class Operator:
    """The writes of an operator.

    Rows that another transaction has locked on PostgreSQL are waited for, but not for long.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._until = time.monotonic() + LOCK_WAIT

    def retry(
        self,
        ids: Sequence[int],
        columns: Mapping[str, Any] | None = None,
        again: int | None = None,
    ) -> list[Change]:
        """Queue those of *ids* that are dead, cancelled or failed, due now.

        Each has at least one more attempt, even if it had used up all of them. One that would take
        its idempotency key back stays as it is if another run has the key, or, among *ids*, if a
        later one wants it.

        :param columns: what else to change.
        :param again: the batch whose ``then`` is to be enqueued once more when it ends.
        """
        left = JobRun.max_attempts > JobRun.attempts
        values = {
            "status": "queued",
            "run_at": database_now(),
            "finished_at": None,
            "cancel_requested_at": None,
            "max_attempts": case((left, JobRun.max_attempts), else_=JobRun.attempts + 1),
            "turn": case((_is_ordered(), "new")),
            "updated_at": database_now(),
            **(columns or {}),
        }
        after = partial(reopen, again=again)
        return self._change(ids, RETRIABLE, values, but_for=_key_is_taken(ids), batches=after)

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
            "turn": case((running, JobRun.turn), (_is_ordered(), "over")),
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
            "turn": case((_is_ordered(), "over")),
            "updated_at": database_now(),
        }
        return self._change(ids, DISCARDABLE, values, batches=recount)

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
                JobRun.on_dead,
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
        turn = None if values.get("on_dead") is None else "new"
        due = run_at or (now if delay is None else database_now(delay))
        statement = (
            insert_into(JobRun, self._books.dialect.name)
            .values(
                **values, turn=turn, scheduled_for=now, run_at=due, created_at=now, updated_at=now
            )
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
        """Return the run that holds an idempotency key."""
        columns = JobRun.id, JobRun.job_type, JobRun.status, JobRun.attempts
        held = JobRun.idempotency_key == key, text(HOLDS_KEY)
        rows = self._books.rows(select(*columns).where(*held))
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
        batches: Touch | None = None,
    ) -> list[Change]:
        """Change those of *ids* that have one of *statuses*; leave rows that stay locked.

        :param but_for: a condition of those that are left.
        :param batches: called for the batches whose runs were changed, and for those around them,
            in the same transaction.
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
            if batches is None:
                changes += _changes(self._books.rows(_returning(changed)))
            else:
                changes += self._books.transaction(partial(_changed, changed, left, batches))
            if len(changes) == len(ids):
                return changes
            done = {change.run_id for change in changes}
            found = self._books.rows(_free([each for each in left if each not in done], which))
            left = [row.id for row in found]
            if not left or time.monotonic() > self._until:
                return changes
            time.sleep(0.05)


def add_pause(books: Bookkeeping, kind: PauseKind, name: str, by: str) -> bool:
    """Pause a task or a queue; return False if it was paused before."""
    statement = f"""
        INSERT INTO job_pauses (kind, name, paused_at, paused_by)
        VALUES (:kind, :name, {books.dialect.now}, :by)
        ON CONFLICT (kind, name) DO NOTHING RETURNING id
    """
    return bool(books.rows(text(statement), {"kind": kind, "name": name, "by": by}))


def remove_pause(books: Bookkeeping, kind: PauseKind, name: str) -> bool:
    """End a pause; return False if there was none."""
    statement = "DELETE FROM job_pauses WHERE kind = :kind AND name = :name RETURNING id"
    return bool(books.rows(text(statement), {"kind": kind, "name": name}))


def _changed(
    statement: Update,
    ids: Sequence[int],
    batches: Touch,
    connection: Connection,
) -> list[Change]:
    """Execute *statement*, but for runs of batches that another transaction holds."""
    dialect = dialect_of(connection.engine)
    held = hold_batches(connection, dialect, ids)
    if busy := [batch for batch, around in held.items() if not around]:
        statement = statement.where(func.coalesce(JobRun.batch_id, 0).not_in(busy))
    before = halted(connection, dialect, {each for around in held.values() for each in around})
    changes = _changes(connection.execute(_returning(statement)).all())
    touched = {each for change in changes for each in held.get(change.batch_id or 0, ())}
    if touched:
        batches(connection, dialect, {each: each in before for each in touched})
    return changes


def _changes(rows: Rows) -> list[Change]:
    return [Change(row.id, row.job_type, row.status, row.attempts, row.batch_id) for row in rows]


def _returning(statement: Update) -> Any:
    columns = JobRun.id, JobRun.job_type, JobRun.status, JobRun.attempts, JobRun.batch_id
    return statement.returning(*columns).execution_options(synchronize_session=False)


def _free(ids: Sequence[int], which: ColumnElement[bool]) -> Select[Any]:
    return select(JobRun.id).where(JobRun.id.in_(ids), which)


def _is_ordered() -> ColumnElement[bool]:
    return JobRun.on_dead.is_not(None)


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
