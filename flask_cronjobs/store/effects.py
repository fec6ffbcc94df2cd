"""The marks of effects: begun before the effect, done after it, in doubt if the owner is gone."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection, TextClause, text

from ..models.conditions import RUNNING
from ..types import JSON
from .connection import Bookkeeping, Rows, execute
from .dialect import Dialect, json_text

MarkState: TypeAlias = Literal["mine", "busy", "done", "in_doubt", "lost"]


class Mark(NamedTuple):
    """The state of a key, as `Effects.begin` found it.

    ``mine``: the caller has just begun it. ``busy``: another owner, whose lease holds, has begun
    it. ``done``: it has a result. ``in_doubt``: the lease of the owner that began it ran out.
    ``lost``: the caller no longer holds its run.
    """

    state: MarkState
    owner: str | None = None
    result: JSON = None


class Effects:
    """The writes about effects.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._dialect = books.dialect

    def begin(self, key: str, owner: str, run_id: int | None, lease: float) -> Mark:
        """Insert the mark of *key* for *owner*, or return the mark that is there.

        :param owner: the token of the run's claim, or a token made for this effect outside a run.
        :param run_id: the run, which *owner* must still hold. None outside a run.
        :param lease: outside a run, for how many seconds the owner is taken to be alive.
        """
        d = self._dialect
        values = {"key": key, "owner": owner, "run_id": run_id, "lease": lease}
        sent = 0

        def insert(connection: Connection) -> Rows:
            nonlocal sent
            sent += 1
            return execute(connection, text(_begin(d, run_id is not None)), values)

        while True:
            if self._books.call(insert):
                return Mark("mine")
            mark = self._find(key)
            # Our own mark, if the connection broke after the insert had committed.
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
        """Give an effect in doubt from *previous* to *owner*; return whether this succeeded.

        It fails if somebody else was faster, or if *owner* no longer holds its run.
        """
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
        """Mark an effect as in doubt, for the operator; return whether this changed its state."""
        statement = """
        UPDATE job_effects SET state = 'in_doubt'
        WHERE key = :key AND state = 'begun' AND locked_by = :owner RETURNING id
        """
        return bool(self._books.rows(text(statement), {"key": key, "owner": owner}))

    def done(self, key: str, owner: str, result: JSON) -> bool:
        """Record an effect's result; return False if the mark is no longer *owner*'s.

        The mark may be in doubt by now, if *owner* was slow. *owner* knows that it was done.
        """
        return bool(self._books.rows(_done(self._dialect), _done_values(key, owner, result)))

    def done_in(self, connection: Connection, key: str, owner: str, result: JSON) -> bool:
        """Do what `done` does, in the transaction of *connection*."""
        values = _done_values(key, owner, result)
        return connection.execute(_done(self._dialect), values).first() is not None

    def remove(self, key: str, owner: str) -> None:
        """Delete the mark of an effect that failed, so that it can be retried."""
        self._delete("state <> 'done'", key, owner)

    def withdraw(self, key: str, owner: str) -> None:
        """Delete the mark of an effect that was not tried, unless it was in doubt before."""
        self._delete("state = 'begun'", key, owner)

    def _delete(self, condition: str, key: str, owner: str) -> None:
        statement = (
            f"DELETE FROM job_effects WHERE key = :key AND locked_by = :owner AND {condition}"
        )
        self._books.rows(text(statement), {"key": key, "owner": owner})

    def _find(self, key: str) -> Mark | None:
        rows = self._books.rows(text(_find(self._dialect)), {"key": key})
        if not rows:
            return None
        (row,) = rows
        if row.state == "done":
            return Mark("done", row.locked_by, self._dialect.parsed(row.result))
        alive = row.state == "begun" and row.alive
        return Mark("busy" if alive else "in_doubt", row.locked_by)

    def _holds(self, run_id: int, token: str) -> bool:
        statement = f"SELECT id FROM job_runs WHERE id = :id AND locked_by = :token AND {RUNNING}"
        return bool(self._books.rows(text(statement), {"id": run_id, "token": token}))


# PostgreSQL takes the bare parameter for text in a SELECT list and for varchar in a comparison, and
# refuses a statement that has both. So cast it.
_OWNER = "CAST(:owner AS varchar)"


def _owned(in_run: bool) -> str:
    if not in_run:
        return "1 = 1"
    # In a run, an effect begins only while the run's lease holds: a worker that was frozen too long
    # must neither do it nor leave a mark that others would find in doubt.
    held = f"id = CAST(:run_id AS bigint) AND locked_by = {_OWNER} AND {RUNNING}"
    return f"EXISTS (SELECT 1 FROM job_runs WHERE {held})"


def _begin(d: Dialect, in_run: bool) -> str:
    return f"""
    INSERT INTO job_effects (key, run_id, state, locked_by, locked_until, created_at)
    SELECT :key, CAST(:run_id AS bigint), 'begun', {_OWNER}, {d.later(":lease")}, {d.now}
    WHERE {_owned(in_run)}
    ON CONFLICT DO NOTHING RETURNING id
    """


def _done(d: Dialect) -> TextClause:
    return text(
        f"""
        UPDATE job_effects SET state = 'done', done_at = {d.now},
            result = {d.json("CAST(:result AS text)")}
        WHERE key = :key AND locked_by = :owner RETURNING id
        """
    )


def _done_values(key: str, owner: str, result: JSON) -> dict[str, object]:
    kept = None if result is None else json_text(result)
    return {"key": key, "owner": owner, "result": kept}


def _find(d: Dialect) -> str:
    return f"""
    SELECT e.state, e.result, e.locked_by,
        CASE WHEN e.run_id IS NULL THEN e.locked_until > {d.now}
             ELSE EXISTS (SELECT 1 FROM job_runs r WHERE r.id = e.run_id AND r.{RUNNING}
                AND r.locked_by = e.locked_by AND r.locked_until > {d.now}) END AS alive
    FROM job_effects e WHERE e.key = :key
    """
