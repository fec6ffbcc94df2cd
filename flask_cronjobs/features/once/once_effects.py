"""The marks of effects: begun before the effect, done after it, in doubt if the owner is gone."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection, TextClause, text

from ...db.connection import Bookkeeping, Rows, execute
from ...db.dialect import Dialect
from ...models.conditions import RUNNING
from ...types import JSON, json_text, stored_json

MarkState: TypeAlias = Literal["mine", "busy", "done", "in_doubt", "lost"]


class EffectMark(NamedTuple):
    """The state of a key that `begin` has found.

    ``mine``: the caller has just begun it. ``busy``: another owner with a valid lease has begun it.
    ``done``: it has a result. ``in_doubt``: the lease of its owner ended. ``lost``: the caller no
    longer holds its run.
    """

    state: MarkState
    owner: str | None = None
    result: JSON = None


def begin(books: Bookkeeping, key: str, owner: str, run_id: int | None, lease: float) -> EffectMark:
    """Insert the mark of *key* for *owner*, or return the existing one.

    :param owner: the token of the run's claim, or a token made for this effect outside a run.
    :param run_id: the run, which *owner* must still hold. None outside a run.
    :param lease: outside a run, the seconds for which the owner counts as alive.
    """
    statement = text(_begin(books.dialect, run_id is not None))
    values = {"key": key, "owner": owner, "run_id": run_id, "lease": lease}
    tries = 0

    def insert(connection: Connection) -> Rows:
        nonlocal tries
        tries += 1
        return execute(connection, statement, values)

    while True:
        if books.call(insert):
            return EffectMark("mine")
        mark = _find(books, key)
        # The mark is ours if the connection broke after the insert had committed.
        if tries > 1 and mark == EffectMark("busy", owner):
            return EffectMark("mine")
        if mark is not None and mark.state == "done":
            return mark
        if run_id is not None and not books.rows(_HOLDS, values):
            return EffectMark("lost")
        if mark is not None:
            return mark
        tries = 0


def take_over(
    books: Bookkeeping, key: str, previous: str | None, owner: str, run_id: int | None, lease: float
) -> bool:
    """Give an effect in doubt from *previous* to *owner*; return whether this succeeded.

    It fails if another caller was faster, or if *owner* no longer holds its run.
    """
    statement = f"""
    UPDATE job_effects SET state = 'begun', locked_by = {_OWNER}, run_id = :run_id,
        locked_until = {books.dialect.later(":lease")}, created_at = {books.dialect.now}
    WHERE key = :key AND state <> 'done' AND (locked_by = :previous OR locked_by IS NULL)
        AND {_owned(run_id is not None)}
    RETURNING id
    """
    values = {
        "key": key, "previous": previous, "owner": owner, "run_id": run_id, "lease": lease,
    }  # fmt: skip
    return bool(books.rows(text(statement), values))


def doubt(books: Bookkeeping, key: str, owner: str | None) -> bool:
    """Mark an effect as in doubt, for the operator; return whether this changed its state."""
    statement = """
    UPDATE job_effects SET state = 'in_doubt'
    WHERE key = :key AND state = 'begun' AND locked_by = :owner RETURNING id
    """
    return bool(books.rows(text(statement), {"key": key, "owner": owner}))


def done(books: Bookkeeping, key: str, owner: str, result: JSON) -> bool:
    """Record an effect's result; return False if the mark is no longer *owner*'s.

    If *owner* was slow, the mark may be in doubt by now, but *owner* knows that the effect is done.
    """
    return bool(books.rows(_done(books.dialect, key, owner, result)))


def done_in(connection: Connection, d: Dialect, key: str, owner: str, result: JSON) -> bool:
    """Do what `done` does, in the transaction of *connection*."""
    return connection.execute(_done(d, key, owner, result)).first() is not None


def remove(books: Bookkeeping, key: str, owner: str) -> None:
    """Delete the mark of an effect that failed, so that it can be retried."""
    books.rows(text(f"{_DELETE} AND state <> 'done'"), {"key": key, "owner": owner})


def withdraw(books: Bookkeeping, key: str, owner: str) -> None:
    """Delete the mark of an effect that was not tried, unless it was in doubt before."""
    books.rows(text(f"{_DELETE} AND state = 'begun'"), {"key": key, "owner": owner})


def _find(books: Bookkeeping, key: str) -> EffectMark | None:
    d = books.dialect
    statement = f"""
        SELECT state, {d.unparsed("result")} AS result, locked_by,
            CASE WHEN {is_in_doubt(d)} THEN 1 ELSE 0 END AS doubtful
        FROM job_effects WHERE key = :key
    """
    rows = books.rows(text(statement), {"key": key})
    if not rows:
        return None
    (row,) = rows
    if row.state == "done":
        return EffectMark("done", row.locked_by, stored_json(row.result))
    return EffectMark("in_doubt" if row.doubtful else "busy", row.locked_by)


def is_in_doubt(d: Dialect) -> str:
    """Return SQL for: this row of ``job_effects`` is in doubt.

    Either its state says so, or it has begun and its owner's lease ended.
    """
    is_held = f"""
        EXISTS (SELECT 1 FROM job_runs r WHERE r.id = job_effects.run_id AND r.{RUNNING}
            AND r.locked_by = job_effects.locked_by AND r.locked_until > {d.now})
    """
    alive = f"CASE WHEN run_id IS NULL THEN locked_until > {d.now} ELSE {is_held} END"
    return f"(state = 'in_doubt' OR (state = 'begun' AND ({alive}) IS NOT TRUE))"


# PostgreSQL infers text for the parameter in a SELECT list and varchar in a comparison, and refuses
# a statement with both. So cast it.
_OWNER = "CAST(:owner AS varchar)"
_DELETE = "DELETE FROM job_effects WHERE key = :key AND locked_by = :owner"
_HELD = f"""
    SELECT 1 FROM job_runs
    WHERE id = CAST(:run_id AS bigint) AND locked_by = {_OWNER} AND {RUNNING}
"""
_HOLDS = text(_HELD)


def _owned(in_run: bool) -> str:
    # An effect of a run begins only if the run was not reclaimed: a worker that was frozen too long
    # must neither do it nor leave a mark that others would find in doubt.
    return f"EXISTS ({_HELD})" if in_run else "1 = 1"


def _begin(d: Dialect, in_run: bool) -> str:
    return f"""
    INSERT INTO job_effects (key, run_id, state, locked_by, locked_until, created_at)
    SELECT :key, CAST(:run_id AS bigint), 'begun', {_OWNER}, {d.later(":lease")}, {d.now}
    WHERE {_owned(in_run)}
    ON CONFLICT DO NOTHING RETURNING id
    """


def _done(d: Dialect, key: str, owner: str, result: JSON) -> TextClause:
    statement = f"""
        UPDATE job_effects SET state = 'done', done_at = {d.now},
            result = {d.json("CAST(:result AS text)")}
        WHERE key = :key AND locked_by = :owner RETURNING id
    """
    result_text = None if result is None else json_text(result)
    return text(statement).bindparams(key=key, owner=owner, result=result_text)
