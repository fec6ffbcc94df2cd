"""The marks of effects: begun before, done after, and in doubt when their owner is gone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, Row, text

from ..models.tables import RUNNING
from ..types import JSON
from .connection import Bookkeeping, Rows, execute
from .dialect import Dialect

MarkState: TypeAlias = Literal["mine", "busy", "done", "in_doubt", "lost"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What stands for a key.

    ``mine``: just made, or taken over, for the caller. ``busy``: a living owner is at it. ``done``:
    with its result. ``in_doubt``: its owner is gone. ``lost``: the caller's own lease is.
    """

    state: MarkState
    owner: str | None = None
    result: JSON = None


class Effects:
    """Every write about effects.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._dialect = books.dialect

    def begin(self, key: str, owner: str, run_id: int | None, lease: float) -> Mark:
        """Make the mark of *key* for *owner*, or tell what stands there.

        :param run_id: the run whose claim *owner* is; its lease says whether the owner lives, and
            must hold for an effect to be the owner's. None outside a run: then *lease* seconds say
            so.
        """
        d = self._dialect
        values = {"key": key, "owner": owner, "run_id": run_id, "lease": lease}
        sent = 0

        def insert(connection: Connection) -> Rows:
            nonlocal sent
            sent += 1
            return execute(connection, text(_begin(d, run_id is not None)), values)

        while True:
            if self._books.attempt(insert):
                return Mark("mine")
            mark = self._standing(key)
            # Our own, though the connection broke before we heard of it?
            if sent > 1 and mark == Mark("busy", owner):
                return Mark("mine")
            if mark is not None and mark.state == "done":
                return mark
            if run_id is not None and not self._holds(run_id, owner):
                return Mark("lost")
            if mark is not None:
                return mark
            sent = 0

    def take_over(
        self, key: str, previous: str | None, owner: str, run_id: int | None, lease: float
    ) -> bool:
        """Make an effect in doubt *owner*'s, if nobody was faster and *owner* still has its run."""
        statement = f"""
        UPDATE job_effects SET state = 'begun', locked_by = {_OWNER}, run_id = :run_id,
            locked_until = {self._dialect.later(":lease")}, created_at = {self._dialect.now}
        WHERE key = :key AND state <> 'done' AND (locked_by = :previous OR locked_by IS NULL)
            AND {_owned(run_id is not None)}
        RETURNING id
        """
        values = {
            "key": key, "previous": previous, "owner": owner, "run_id": run_id, "lease": lease,
        }  # fmt: skip
        return bool(self._books.rows(text(statement), values))

    def doubt(self, key: str, owner: str | None) -> bool:
        """Show the operator that an effect is in doubt; whether this call changed that."""
        statement = """
        UPDATE job_effects SET state = 'in_doubt'
        WHERE key = :key AND state = 'begun' AND locked_by = :owner RETURNING id
        """
        return bool(self._books.rows(text(statement), {"key": key, "owner": owner}))

    def done(self, key: str, owner: str, result: JSON) -> bool:
        """Note an effect's result; False if the mark is no longer *owner*'s.

        Others may have doubted it meanwhile, if *owner* was slow; it knows better.
        """
        statement = f"""
        UPDATE job_effects SET state = 'done', done_at = {self._dialect.now},
            result = {self._dialect.json(":result")}
        WHERE key = :key AND locked_by = :owner RETURNING id
        """
        values = {
            "key": key,
            "owner": owner,
            "result": None if result is None else json.dumps(result),
        }
        return bool(self._books.rows(text(statement), values))

    def remove(self, key: str, owner: str) -> None:
        """Take the mark away: the effect failed and may be tried again."""
        statement = """
        DELETE FROM job_effects WHERE key = :key AND state <> 'done' AND locked_by = :owner
        """
        self._books.rows(text(statement), {"key": key, "owner": owner})

    def withdraw(self, key: str, owner: str) -> None:
        """Take back a mark whose effect was not even tried, unless it is in doubt from before."""
        statement = """
        DELETE FROM job_effects WHERE key = :key AND state = 'begun' AND locked_by = :owner
        """
        self._books.rows(text(statement), {"key": key, "owner": owner})

    def _standing(self, key: str) -> Mark | None:
        rows = self._books.rows(text(_look(self._dialect)), {"key": key})
        return self._mark(rows[0]) if rows else None

    def _mark(self, row: Row[Any]) -> Mark:
        if row.state == "done":
            return Mark("done", row.locked_by, self._dialect.parsed(row.result))
        alive = row.state == "begun" and row.alive
        return Mark("busy" if alive else "in_doubt", row.locked_by)

    def _holds(self, run_id: int, token: str) -> bool:
        statement = f"SELECT id FROM job_runs WHERE id = :id AND locked_by = :token AND {RUNNING}"
        return bool(self._books.rows(text(statement), {"id": run_id, "token": token}))


# Cast, since PostgreSQL takes it for text in a SELECT list and for varchar in a comparison, and
# then refuses both.
_OWNER = "CAST(:owner AS varchar)"


def _owned(in_run: bool) -> str:
    # In a run, an effect is begun only under the run's lease: a worker that woke up too late must
    # neither do it nor leave a mark that others would have to doubt.
    if not in_run:
        return "1 = 1"
    held = f"id = CAST(:run_id AS bigint) AND locked_by = {_OWNER} AND {RUNNING}"
    return f"EXISTS (SELECT 1 FROM job_runs WHERE {held})"


def _begin(d: Dialect, in_run: bool) -> str:
    return f"""
    INSERT INTO job_effects (key, run_id, state, locked_by, locked_until, created_at)
    SELECT :key, CAST(:run_id AS bigint), 'begun', {_OWNER}, {d.later(":lease")}, {d.now}
    WHERE {_owned(in_run)}
    ON CONFLICT DO NOTHING RETURNING id
    """


def _look(d: Dialect) -> str:
    return f"""
    SELECT e.state, e.result, e.locked_by,
        CASE WHEN e.run_id IS NULL THEN e.locked_until > {d.now}
             ELSE EXISTS (SELECT 1 FROM job_runs r WHERE r.id = e.run_id AND r.{RUNNING}
                AND r.locked_by = e.locked_by AND r.locked_until > {d.now}) END AS alive
    FROM job_effects e WHERE e.key = :key
    """
