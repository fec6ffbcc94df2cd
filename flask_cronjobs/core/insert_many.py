"""Insert many runs in the user's own transaction, by a JSON parameter for a thousand of them.

This was measured against the alternatives, on tables with all their indexes and checks. Arrays for
``unnest`` cost the client more and the server as much, COPY saves the server nothing and knows no
keys, and on SQLite ``executemany`` takes twice as long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, text
from sqlalchemy.orm import Session

from ..db.dialect import Dialect, dialect_of
from ..models import JobRun
from ..models.conditions import HOLDS_KEY
from .columns import NEW_RUN, due_sql, insert_into_runs, parameter
from .insert import GIVEN, ON_CONFLICT, execute, writing_connection

#: How many rows one statement carries.
INSERTED_AT_ONCE = 1000
#: What a task makes of a payload.
_MADE = ("idempotency_key", "concurrency_key", "rate_key", "label")
_SHARED = tuple(name for name in GIVEN if name not in ("payload", *_MADE))
_OWN = {
    "id": "bigint",
    "payload": NEW_RUN["payload"],
    **dict.fromkeys(_MADE, "text"),
}


class NewRow(NamedTuple):
    """What a run has of its own: its payload, a JSON text, and what the task makes of that."""

    payload: str
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None
    label: str | None = None


class Holder(NamedTuple):
    """A run that has an idempotency key."""

    id: int
    idempotency_key: str | None
    job_type: str


class Inserted(NamedTuple):
    """What became of a row.

    :ivar id: its run.
    :ivar holder: the same run, if it was there before and has the row's key.
    """

    id: int
    holder: Holder | None = None


def insert_runs(
    session: Session, shared: Mapping[str, Any], rows: Sequence[NewRow]
) -> list[Inserted]:
    """Insert runs in *session*'s transaction, `INSERTED_AT_ONCE` to a statement.

    Without idempotency keys, that is all. With them:

    1. Of the rows with one key, take the first. 2. On PostgreSQL, reserve ids, so that they rise in
    the order of *rows*, and sort the rows by key: transactions that insert the same keys wait for
    each other, but never in a circle. SQLite has one writer at a time. 3. Insert, and look up the
    keys that exist.

    :param shared: the other columns of `GIVEN`, with ``run_at`` and ``delay``.
    :param rows: at most `INSERTED_AT_ONCE` without a key; or any number, each with one.
    :returns: what became of each row, in the order of *rows*.
    """
    connection = writing_connection(session)
    if rows[0].idempotency_key is None:
        return [
            Inserted(run) for run in sorted(new[0] for new in _insert(connection, shared, rows))
        ]
    firsts: dict[str, NewRow] = {}
    for row in rows:
        firsts.setdefault(_key(row), row)
    keys, ids = list(firsts), dict[str, int]()
    if not dialect_of(connection.engine).one_writer:
        ids = dict(zip(keys, _reserve(connection, len(keys)), strict=False))
        keys.sort()
    found: dict[str, Inserted] = {}
    for start in range(0, len(keys), INSERTED_AT_ONCE):
        chunk = {key: firsts[key] for key in keys[start : start + INSERTED_AT_ONCE]}
        found |= _insert_or_find(connection, shared, chunk, ids)
    return [
        found[key] if firsts[key] is row else _repeated(found[key], shared, key)
        for key, row in zip(map(_key, rows), rows, strict=True)
    ]


def _key(row: NewRow) -> str:
    return row.idempotency_key or ""


def delete_runs(session: Session, ids: Sequence[int]) -> None:
    """Delete runs that *session*'s transaction has inserted."""
    if not ids:
        return  # To delete nothing would take SQLite's write lock.
    with session.no_autoflush:
        connection = writing_connection(session)
    d = dialect_of(connection.engine)
    sql = f"DELETE FROM job_runs WHERE {d.among('id')} AND status = 'queued'"
    connection.execute(text(sql), {"ids": d.many(ids)})


def _repeated(first: Inserted, shared: Mapping[str, Any], key: str) -> Inserted:
    """Return what becomes of a row whose *key* an earlier row of the same call has."""
    return Inserted(first.id, first.holder or Holder(first.id, key, shared["job_type"]))


def _insert_or_find(
    connection: Connection,
    shared: Mapping[str, Any],
    rows: Mapping[str, NewRow],
    ids: Mapping[str, int],
) -> dict[str, Inserted]:
    """Insert *rows*, or find the runs that have their keys; return each by its key.

    The run that had a key may have given it up between the statements. Then insert again; and if it
    happens often, as with keys of pending runs, insert all of *rows*, since to insert only those
    that are left would take their keys out of order.
    """
    found: dict[str, Inserted] = {}
    in_order = shared["unique_while"] is not None and _can_undo(connection)
    while True:
        with connection.begin_nested() if in_order else nullcontext() as savepoint:
            now = _insert_and_find(connection, shared, rows, ids)
            if len(now) == len(rows):
                return found | now
            if savepoint is not None:
                savepoint.rollback()
                continue
        found |= now
        rows = {key: row for key, row in rows.items() if key not in found}


def _can_undo(connection: Connection) -> bool:
    """Return whether keys are held until the transaction ends, but can be given up before.

    On SQLite nobody else writes meanwhile. In AUTOCOMMIT there is no transaction.
    """
    driver: Any = connection.connection.dbapi_connection
    return not (dialect_of(connection.engine).one_writer or driver.autocommit)


def _insert_and_find(
    connection: Connection,
    shared: Mapping[str, Any],
    rows: Mapping[str, NewRow],
    ids: Mapping[str, int],
) -> dict[str, Inserted]:
    reserved = [ids[key] for key in rows] if ids else None
    new = _insert(connection, shared, list(rows.values()), reserved)
    found = {key: Inserted(run) for run, key in new}
    held = [key for key in rows if key not in found]
    return found | {key: Inserted(run.id, run) for key, run in _holders(connection, held).items()}


def _insert(
    connection: Connection,
    shared: Mapping[str, Any],
    rows: Sequence[NewRow],
    ids: Sequence[int] | None = None,
) -> Sequence[Any]:
    """Insert *rows* by one statement; return the id and idempotency key of each new run."""
    dialect = dialect_of(connection.engine)
    given = zip(NewRow._fields, zip(*rows, strict=True), strict=True)
    used = [name for name, column in given if column.count(None) < len(column)]
    columns = tuple(used if ids is None else ["id", *used])
    is_plain = columns == ("payload",)
    members = [
        f'{{"place":{place},"payload":{row[0]}{"" if is_plain else _rest(row, run_id)}}}'
        for place, (row, run_id) in enumerate(zip(rows, ids or repeat(None), strict=False))
    ]
    parameters = {
        **shared,
        "run_at": shared["run_at"] and dialect.instant(shared["run_at"]),
        "rows": f"[{','.join(members)}]",
    }
    return execute(connection, _insert_many(dialect, columns), parameters).all()


def _rest(row: NewRow, run_id: int | None) -> str:
    """Return what *row* has beside its payload, as members of a JSON object, each after a comma."""
    given = {"id": run_id, **{name: getattr(row, name) for name in _MADE}}
    written = json.dumps({name: value for name, value in given.items() if value is not None})
    return f",{written[1:-1]}" if len(written) > 2 else ""


@lru_cache
def _insert_many(d: Dialect, columns: tuple[str, ...]) -> str:
    own = {name: _OWN[name] for name in columns}
    values = {name: parameter(d, name) for name in _SHARED}
    values |= {name: name for name in ("id", "payload", *_MADE) if name in own}
    source = f"""
        FROM {d.table("rows", place="integer", **own)} AS r WHERE true ORDER BY place
        {ON_CONFLICT if "idempotency_key" in own else ""}
        RETURNING id, idempotency_key
    """
    return insert_into_runs(values, due_sql(d), d.now, source)


def _reserve(connection: Connection, number: int) -> Sequence[int]:
    """Return so many new ids of runs, rising; none if no sequence belongs to the column."""
    sql = """
        SELECT nextval(sequence) FROM pg_get_serial_sequence('job_runs', 'id') AS sequence,
            generate_series(1, :number)
        WHERE sequence IS NOT NULL
    """
    return sorted(execute(connection, sql, {"number": number}).scalars())


def _holders(connection: Connection, keys: Sequence[str]) -> dict[str, Holder]:
    """Return the runs that have *keys*."""
    columns = [getattr(JobRun, name) for name in Holder._fields]
    query = select(*columns).where(JobRun.idempotency_key.in_(keys), text(HOLDS_KEY))
    holders = [Holder(*row) for row in connection.execute(query)] if keys else []
    return {holder.idempotency_key or "": holder for holder in holders}
