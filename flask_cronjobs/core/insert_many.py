"""Insert many runs in the user's own transaction: a thousand per statement, in one JSON array.

This was measured against the alternatives, on tables with all their indexes and checks. Arrays for
``unnest`` cost the client more and the server as much. COPY saves the server nothing and has no ON
CONFLICT for idempotency keys. On SQLite, ``executemany`` takes twice as long.
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
from .columns import due_sql, insert_into_runs, parameter
from .insert import ON_CONFLICT, execute, parameters_of, writing_connection
from .new_run import COLUMNS, OF_PAYLOAD, TYPES, NewRun

#: The most rows that one statement inserts.
INSERTED_AT_ONCE = 1000
#: The columns besides the payload that may differ between the runs of one call.
_OWN = ("idempotency_key", *OF_PAYLOAD[1:])


class Holder(NamedTuple):
    """A run that holds an idempotency key."""

    id: int
    idempotency_key: str | None
    job_type: str


class Inserted(NamedTuple):
    """The result of inserting a row.

    :ivar id: the id of the row's run.
    :ivar holder: that run, if it already existed and holds the row's key.
    """

    id: int
    holder: Holder | None = None


def insert_runs(session: Session, rows: Sequence[NewRun]) -> list[Inserted]:
    """Insert runs in *session*'s transaction, at most `INSERTED_AT_ONCE` with each statement.

    Without idempotency keys, that is all. With them:

    1. Of the rows with the same key, take the first.
    2. On PostgreSQL, reserve ids, so that they rise in the order of *rows*. Then sort the rows by
       key, so that transactions that insert the same keys cannot deadlock. SQLite needs neither: it
       has one writer at a time.
    3. Insert the rows, and look up the runs that hold the other keys.

    :param rows: at most `INSERTED_AT_ONCE` without a key, or any number, each with one. They may
        differ only in the key and in `new_run.OF_PAYLOAD`.
    :returns: the result of each row, in the order of *rows*.
    """
    connection = writing_connection(session)
    if rows[0].idempotency_key is None:
        return [Inserted(run) for run in sorted(row[0] for row in _insert(connection, rows))]
    first_rows: dict[str, NewRun] = {}
    for row in rows:
        first_rows.setdefault(_key(row), row)
    keys, ids = list(first_rows), dict[str, int]()
    if not dialect_of(connection.engine).one_writer:
        ids = dict(zip(keys, _reserve(connection, len(keys)), strict=False))
        keys.sort()
    results_by_key: dict[str, Inserted] = {}
    for start in range(0, len(keys), INSERTED_AT_ONCE):
        chunk = {key: first_rows[key] for key in keys[start : start + INSERTED_AT_ONCE]}
        results_by_key |= _insert_or_find(connection, chunk, ids)
    return [
        results_by_key[key] if first_rows[key] is row else _repeated(results_by_key[key], row)
        for key, row in zip(map(_key, rows), rows, strict=True)
    ]


def _key(row: NewRun) -> str:
    return row.idempotency_key or ""


def delete_runs(session: Session, ids: Sequence[int]) -> None:
    """Delete runs that *session*'s transaction has inserted."""
    if not ids:
        return  # Even a DELETE of nothing would take SQLite's write lock.
    with session.no_autoflush:
        connection = writing_connection(session)
    d = dialect_of(connection.engine)
    sql = f"DELETE FROM job_runs WHERE {d.among('id')} AND status = 'queued'"
    connection.execute(text(sql), {"ids": d.many(ids)})


def _repeated(first: Inserted, row: NewRun) -> Inserted:
    """Return the result of a *row* whose key an earlier row of the same call has."""
    return Inserted(first.id, first.holder or Holder(first.id, _key(row), row.job_type))


def _insert_or_find(
    connection: Connection,
    rows: Mapping[str, NewRun],
    ids: Mapping[str, int],
) -> dict[str, Inserted]:
    """Insert *rows*, or find the runs that hold their keys; return the results by key.

    A run may release its key between the two statements; then the row is inserted again. If
    ``unique_while`` is set, runs often release their keys, so all of *rows* are rolled back and
    inserted again: inserting only the missing ones would lock their keys out of order.
    """
    results_by_key: dict[str, Inserted] = {}
    are_often_released = any(row.unique_while is not None for row in rows.values())
    locks_in_order = are_often_released and _can_unlock_keys(connection)
    while True:
        with connection.begin_nested() if locks_in_order else nullcontext() as savepoint:
            results = _insert_and_find(connection, rows, ids)
            if len(results) == len(rows):
                return results_by_key | results
            if savepoint is not None:
                savepoint.rollback()
                continue
        results_by_key |= results
        rows = {key: row for key, row in rows.items() if key not in results_by_key}


def _can_unlock_keys(connection: Connection) -> bool:
    """Return whether rolling back to a savepoint unlocks the keys that an INSERT has locked.

    SQLite locks no keys, since it has one writer at a time. With AUTOCOMMIT, there is no
    transaction to roll back.
    """
    driver: Any = connection.connection.dbapi_connection
    return not (dialect_of(connection.engine).one_writer or driver.autocommit)


def _insert_and_find(
    connection: Connection,
    rows: Mapping[str, NewRun],
    ids: Mapping[str, int],
) -> dict[str, Inserted]:
    reserved_ids = [ids[key] for key in rows] if ids else None
    new_rows = _insert(connection, list(rows.values()), reserved_ids)
    results_by_key = {key: Inserted(run) for run, key in new_rows}
    held_keys = [key for key in rows if key not in results_by_key]
    return results_by_key | {
        key: Inserted(run.id, run) for key, run in _holders(connection, held_keys).items()
    }


def _insert(
    connection: Connection, rows: Sequence[NewRun], ids: Sequence[int] | None = None
) -> Sequence[Any]:
    """Insert *rows* with one statement; return the id and idempotency key of each new run."""
    d = dialect_of(connection.engine)
    names = [name for name in _OWN if len({getattr(row, name) for row in rows}) > 1]
    columns = (*names, "id") if ids else tuple(names)
    members = [
        f'{{"place":{place},"payload":{row.payload}{_rest(row, names, run_id) if columns else ""}}}'
        for place, (row, run_id) in enumerate(zip(rows, ids or repeat(None), strict=False))
    ]
    statement = _insert_many(d, columns, unique=rows[0].idempotency_key is not None)
    parameters = {**parameters_of(d, rows[0]), "rows": f"[{','.join(members)}]"}
    return execute(connection, statement, parameters).all()


def _rest(row: NewRun, names: Sequence[str], run_id: int | None) -> str:
    """Return the id of *row* and its values *names*, as members of a JSON object, after a comma."""
    values = {"id": run_id, **{name: getattr(row, name) for name in names}}
    values_json = json.dumps({name: value for name, value in values.items() if value is not None})
    return f",{values_json[1:-1]}" if len(values_json) > 2 else ""


@lru_cache
def _insert_many(d: Dialect, columns: tuple[str, ...], unique: bool = False) -> str:
    """Return the INSERT of runs that differ in their payloads and in *columns*."""
    own_types = {name: TYPES.get(name, "bigint") for name in ("payload", *columns)}
    values = {name: parameter(d, name) for name in COLUMNS} | {name: name for name in own_types}
    source = f"""
        FROM {d.table("rows", place="integer", **own_types)} AS r WHERE true ORDER BY place
        {ON_CONFLICT if unique else ""}
        RETURNING id, idempotency_key
    """
    return insert_into_runs(values, due_sql(d), d.now, source)


def _reserve(connection: Connection, number: int) -> Sequence[int]:
    """Return *number* new ids of runs in ascending order; none if the column has no sequence."""
    sql = """
        SELECT nextval(sequence) FROM pg_get_serial_sequence('job_runs', 'id') AS sequence,
            generate_series(1, :number)
        WHERE sequence IS NOT NULL
    """
    return sorted(execute(connection, sql, {"number": number}).scalars())


def _holders(connection: Connection, keys: Sequence[str]) -> dict[str, Holder]:
    """Return the runs that hold *keys*, by key."""
    columns = [getattr(JobRun, name) for name in Holder._fields]
    query = select(*columns).where(JobRun.idempotency_key.in_(keys), text(HOLDS_KEY))
    holders = [Holder(*row) for row in connection.execute(query)] if keys else []
    return {holder.idempotency_key or "": holder for holder in holders}
