"""The writes of an operator: each changes only rows whose state allows it, and says which."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, text

from ..core import gate
from ..core.columns import (
    assigned,
    due_sql,
    ended,
    insert_into_runs,
    parameter,
    rate_mark,
)
from ..core.insert import parameters_of
from ..core.new_run import COLUMNS, NewRun
from ..db.connection import Bookkeeping, together
from ..db.dialect import Dialect
from ..db.errors import LOCK_WAIT
from ..features.batches.batch_rows import hold_batches
from ..models.conditions import HANDED, HOLDS_KEY, sql_list
from ..types import Status
from .operations import Act, Operation, note

RETRIABLE: tuple[Status, ...] = ("dead", "cancelled", "failed")
CANCELLABLE: tuple[Status, ...] = ("queued", "failed", "running")
DISCARDABLE: tuple[Status, ...] = ("dead",)


class Change(NamedTuple):
    """A run that was changed, its status, the number of its attempts, its batch and label."""

    run_id: int
    task: str
    status: Status
    attempts: int = 0
    batch_id: int | None = None
    label: str | None = None


class Operator:
    """Changes of runs, for as long as one waits in all for rows that are locked.

    Rows that another transaction has locked on PostgreSQL are waited for, but not for long.

    :param books: a bookkeeping connection.
    :param operation: notes what is changed.
    """

    def __init__(self, books: Bookkeeping, operation: Operation) -> None:
        self.books = books
        self.operation = operation
        self._until = time.monotonic() + LOCK_WAIT

    def retry(
        self,
        ids: Sequence[int],
        _: str = "",
        *,
        columns: Mapping[str, Any] | None = None,
    ) -> list[Change]:
        """Queue those of *ids* that are dead, cancelled or failed, due now.

        Each has at least one more attempt, even if it had used up all of them. One that would take
        its idempotency key back stays as it is if another run has the key, or, among *ids*, if a
        later one wants it.

        :param columns: what else to change, of the fields of a `NewRun`.
        """
        d, given = self.books.dialect, dict(columns or {})
        values = {
            "status": "'queued'",
            "run_at": d.now,
            "finished_at": "NULL",
            "cancel_requested_at": "NULL",
            "max_attempts": "CASE WHEN max_attempts > attempts THEN max_attempts"
            " ELSE attempts + 1 END",
            "gate": "NULL",
            "rate_mark": rate_mark(parameter(d, "rate_key") if "rate_key" in given else "rate_key"),
            "updated_at": d.now,
            **{name: parameter(d, name) for name in given},
        }
        later = f"{d.among('other.id')} AND other.id > job_runs.id AND {_wants_key('other')}"
        taken = f"EXISTS ({_others_with_key(f'(({HOLDS_KEY}) OR ({later}))')})"
        which = f"{_in(RETRIABLE)} AND NOT ({_wants_key('job_runs')} AND {taken})"
        return self._change(ids, which, values, given, lives_again=True)

    def cancel(self, ids: Sequence[int], reason: str) -> list[Change]:
        """Cancel those of *ids* that wait, and request it for those that run.

        A run returned as ``running`` ends when its worker has interrupted it. One that waits in an
        executor's broker ends at once: its token is gone when it comes.
        """
        now = self.books.dialect.now
        runs = f"status = 'running' AND ({HANDED}) IS NOT TRUE"
        values = {
            name: f"CASE WHEN {runs} THEN {name} ELSE {value} END"
            for name, value in ended("'cancelled'", now, ":reason", "'Cancelled'").items()
        }
        requested = f"CASE WHEN {runs} THEN COALESCE(cancel_requested_at, {now})"
        values["cancel_requested_at"] = f"{requested} ELSE cancel_requested_at END"
        values["updated_at"] = now
        changes = self._change(ids, _in(CANCELLABLE), values, {"reason": reason})
        gate.open_behind(
            self.books, [each.run_id for each in changes if each.status == "cancelled"]
        )
        return changes

    def discard(self, ids: Sequence[int], reason: str) -> list[Change]:
        """Turn those of *ids* that are dead into cancelled ones; their failed attempts stay."""
        # They end anew, so that they can be retried for as long as other cancelled runs.
        values = ended("'cancelled'", self.books.dialect.now, ":reason", "'Discarded'")
        return self._change(ids, _in(DISCARDABLE), values, {"reason": reason})

    def _change(
        self,
        ids: Sequence[int],
        which: str,
        values: Mapping[str, str],
        given: Mapping[str, Any],
        lives_again: bool = False,
    ) -> list[Change]:
        """Change those of *ids* for which *which* is true; leave rows that stay locked.

        :param values: SQL by column, with parameters that are *given*.
        :param lives_again: whether that makes runs live that had ended: then their batches are held
            meanwhile, and runs of those that another transaction holds are left.
        """
        d = self.books.dialect
        changes: list[Change] = []
        left: Sequence[int] = ids
        found = f"SELECT id FROM job_runs WHERE {d.among('id')} AND {which}"
        # By the list, too: so PostgreSQL looks the rows up, also to compare them with the free.
        statement = f"""
            UPDATE job_runs SET {assigned(values)}
            WHERE {d.among("id")} AND ({d.among("batch_id", "busy")}) IS NOT TRUE
                AND {d.any_of("id", f"{found} {d.skip_locked}")}
            RETURNING id, job_type, status, attempts, batch_id, label
        """
        while True:
            work = partial(_changed, d, statement, given, left, lives_again, self.operation)
            # One run is not changed twice. Many go on, and are counted by the operation's row.
            changes += self.books.transaction(work, repeat=self.operation.id is not None)
            if len(changes) == len(ids):
                return changes
            done = {change.run_id for change in changes}
            others = d.many([each for each in left if each not in done])
            left = [row.id for row in self.books.rows(text(found), {"ids": others})]
            if not left or time.monotonic() > self._until:
                return changes
            time.sleep(0.05)


def _changed(
    d: Dialect,
    statement: str,
    given: Mapping[str, Any],
    ids: Sequence[int],
    lives_again: bool,
    operation: Operation,
    connection: Connection,
) -> Sequence[Change]:
    busy = hold_batches(connection, d, ids) if lives_again else []
    values = {**given, "ids": d.many(ids), "busy": d.many(busy)}

    def change() -> list[Change]:
        rows = connection.execute(text(statement), values).all()
        return [Change(*tuple(row)) for row in rows]

    return operation.changing(connection, d, change)


def key_holder(books: Bookkeeping, run_id: int) -> int | None:
    """Return the run that keeps *run_id* from a retry, since it has its key; None if none."""
    holder = _others_with_key(f"({HOLDS_KEY})")
    wanted = f"SELECT ({holder}) AS id FROM job_runs WHERE id = :id AND {_wants_key('job_runs')}"
    rows = books.rows(text(wanted), {"id": run_id})
    return rows[0].id if rows else None


def stored_run(books: Bookkeeping, run_id: int) -> Row[Any] | None:
    """Return what of a run goes into a new one like it, or None if there is no such run.

    Its ``payload`` is a JSON text, and its ``definition_id`` None if the definition is gone.
    """
    statement = """
        SELECT id, job_type, status, CAST(payload AS text) AS payload, queue, priority,
            (SELECT d.id FROM job_definitions d WHERE d.id = job_runs.definition_id)
                AS definition_id,
            concurrency_key, concurrency_limit, strict, rate_key
        FROM job_runs WHERE id = :id
    """
    rows = books.rows(text(statement), {"id": run_id})
    return rows[0] if rows else None


def insert_by_operator(books: Bookkeeping, new: NewRun) -> tuple[int, str | None]:
    """Insert a run, unless another has its idempotency key.

    :returns: its id, and None; or the id of the run that has the key, and its task.
    """
    d = books.dialect
    columns = {name: parameter(d, name) for name in COLUMNS}
    returned = "WHERE true ON CONFLICT DO NOTHING RETURNING id"
    columns["scheduled_for"] = d.now
    statement = text(insert_into_runs(columns, due_sql(d), d.now, returned))
    holder = f"SELECT id, job_type FROM job_runs WHERE idempotency_key = :key AND {HOLDS_KEY}"
    # A definition has one run per instant. If somebody else has just used this one, the next try
    # uses a later one.
    while not (rows := books.rows(statement, parameters_of(d, new))):
        if found := books.rows(text(holder), {"key": new.idempotency_key}):
            return found[0].id, found[0].job_type
    return rows[0].id, None


def queue_new(books: Bookkeeping, new: NewRun, act: Act) -> tuple[int, str | None]:
    """Insert a run as `insert_by_operator` does; if it is new, note *act* with it.

    :raises DatabaseTrouble: it was not inserted, or perhaps it was: there are not two of them.
    """

    def both(inner: Bookkeeping) -> tuple[int, str | None]:
        run_id, holder = insert_by_operator(inner, new)
        if holder is None:
            inner.transaction(partial(_note_new, d=inner.dialect, act=act, run_id=run_id))
        return run_id, holder

    return together(books, both, repeat=False)


def _note_new(connection: Connection, d: Dialect, act: Act, run_id: int) -> None:
    note(connection, d, act._replace(run_id=run_id), asked=1, done=1)


def set_queue(books: Bookkeeping, run_id: int, queue: str) -> None:
    """Give a run another queue, as a test of an app wants it."""
    statement = text("UPDATE job_runs SET queue = :queue WHERE id = :id")
    books.rows(statement, {"queue": queue, "id": run_id})


def _in(statuses: Sequence[Status]) -> str:
    return f"status IN {sql_list(statuses)}"


def _others_with_key(condition: str) -> str:
    """Return the SELECT of other runs with the key of a row of ``job_runs``."""
    return f"""
        SELECT other.id FROM job_runs other
        WHERE other.idempotency_key = job_runs.idempotency_key AND other.id <> job_runs.id
            AND {condition}
    """


def _wants_key(run: str) -> str:
    """Return the condition that *run* has given up its key, and a retry would take it back."""
    unbegun = f"({run}.unique_while = 'waiting' AND {run}.started_at IS NULL)"
    given_up = f"{run}.unique_while = 'pending' OR {unbegun}"
    return f"({run}.finished_at IS NOT NULL AND {run}.{_in(RETRIABLE)} AND ({given_up}))"
