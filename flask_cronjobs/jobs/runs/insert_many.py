"""Insert many runs in the user's own transaction, by a JSON parameter for a thousand of them.

This was measured against the alternatives, on tables with all their indexes and checks. Arrays for
``unnest`` cost the client more and the server as much, COPY saves the server nothing and knows no
keys, and on SQLite ``executemany`` takes twice as long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, text
from sqlalchemy.orm import Session

from ...db.dialect import Dialect, dialect_of
from ...models import JobRun
from ...models.conditions import HOLDS_KEY
from .columns import NEW_RUN, due_sql, insert_into_runs, parameter
from .insert import GIVEN, ON_CONFLICT, execute, moment_text, writing_connection

#: How many rows one statement carries.
INSERTED_AT_ONCE = 1000
#: What a task makes of a payload.
_MADE = ("idempotency_key", "concurrency_key", "rate_key", "label")
_SHARED = tuple(name for name in GIVEN if name not in ("payload", *_MADE))
_OWN = {
    "id": "bigint",
    "payload": NEW_RUN["payload"],
    "priority": NEW_RUN["priority"],
    "run_at": "timestamptz",
    "delay": "double precision",
    **dict.fromkeys(_MADE, "text"),
}


class NewRow(NamedTuple):
    """What a run has of its own. None stands for what all runs of the call share.

    :ivar payload: a JSON text.
    :ivar delay: seconds, by the database's clock.
    """

    payload: str
    priority: int | None = None
    run_at: datetime | None = None
    delay: float | None = None
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

    Without idempotency keys, that is all. With some:

    1. Of the rows with one key, take the first. 2. On PostgreSQL, reserve ids, so that they rise in
    the order of *rows*, and sort the rows by key: transactions that insert the same keys wait for
    each other, but never in a circle. SQLite has one writer at a time. 3. Insert, and look up the
    keys that exist.

    :param shared: the other columns of `GIVEN`, with ``run_at`` and ``delay``.
    :param rows: at most `INSERTED_AT_ONCE`, if none has a key.
    :returns: what became of each row, in the order of *rows*.
    """
    connection = writing_connection(session)
    if all(row.idempotency_key is None for row in rows):
        return [
            Inserted(run) for run in sorted(new[0] for new in _insert(connection, shared, rows))
        ]
    names = [row.idempotency_key or place for place, row in enumerate(rows)]
    firsts: dict[str | int, int] = {}
    for place, name in enumerate(names):
        firsts.setdefault(name, place)
    places, ids = list(firsts.values()), dict[int, int]()
    if not dialect_of(connection.engine).one_writer:
        ids = dict(zip(places, _reserve(connection, len(places)), strict=False))
        places.sort(key=lambda place: rows[place].idempotency_key or "")
    found: dict[str | int, Inserted] = {}
    for start in range(0, len(places), INSERTED_AT_ONCE):
        chunk = places[start : start + INSERTED_AT_ONCE]
        found |= _insert_or_find(connection, shared, {place: rows[place] for place in chunk}, ids)
    return [
        found[name] if firsts[name] == place else _repeated(found[name], shared, rows[firsts[name]])
        for place, name in enumerate(names)
    ]


def delete_runs(session: Session, ids: Sequence[int]) -> None:
    """Delete runs that *session*'s transaction has inserted."""
    if not ids:
        return  # To delete nothing would take SQLite's write lock.
    with session.no_autoflush:
        connection = writing_connection(session)
    d = dialect_of(connection.engine)
    sql = f"DELETE FROM job_runs WHERE {d.among('id')} AND status = 'queued'"
    connection.execute(text(sql), {"ids": d.many(ids)})


def _repeated(first: Inserted, shared: Mapping[str, Any], row: NewRow) -> Inserted:
    """Return what becomes of a row whose key an earlier *row* of the same call has."""
    new = Holder(first.id, row.idempotency_key, shared["job_type"])
    return Inserted(first.id, first.holder or new)


def _insert_or_find(
    connection: Connection,
    shared: Mapping[str, Any],
    rows: Mapping[int, NewRow],
    ids: Mapping[int, int],
) -> dict[str | int, Inserted]:
    """Insert *rows*, or find the runs that have their keys; return each by its key or place.

    The run that had a key may have given it up between the statements. Then insert again; and if it
    happens often, as with keys of pending runs, insert all of *rows*, since to insert only those
    that are left would take their keys out of order.
    """
    found: dict[str | int, Inserted] = {}
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
        rows = {p: row for p, row in rows.items() if (row.idempotency_key or p) not in found}


def _can_undo(connection: Connection) -> bool:
    """Return whether keys are held until the transaction ends, but can be given up before.

    On SQLite nobody else writes meanwhile. In AUTOCOMMIT there is no transaction.
    """
    driver: Any = connection.connection.dbapi_connection
    return not (dialect_of(connection.engine).one_writer or driver.autocommit)


def _insert_and_find(
    connection: Connection,
    shared: Mapping[str, Any],
    rows: Mapping[int, NewRow],
    ids: Mapping[int, int],
) -> dict[str | int, Inserted]:
    wanted = {row.idempotency_key or place: place for place, row in rows.items()}
    reserved = [ids[place] for place in rows] if ids else None
    new = _insert(connection, shared, list(rows.values()), reserved)
    found: dict[str | int, Inserted] = {key: Inserted(run) for run, key in new if key is not None}
    keyless = [name for name in wanted if isinstance(name, int)]
    made = sorted(run for run, key in new if key is None)
    found |= {name: Inserted(run) for name, run in zip(keyless, made, strict=True)}
    held = [name for name in wanted if isinstance(name, str) and name not in found]
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
        f'{{"place":{place},"payload":{row[0]}{"" if is_plain else _rest(dialect, row, run_id)}}}'
        for place, (row, run_id) in enumerate(zip(rows, ids or repeat(None), strict=False))
    ]
    parameters = {
        **shared,
        "run_at": moment_text(dialect, shared["run_at"]),
        "rows": f"[{','.join(members)}]",
    }
    return execute(connection, _insert_many(dialect, columns), parameters).all()


def _rest(dialect: Dialect, row: NewRow, run_id: int | None) -> str:
    """Return what *row* has beside its payload, as members of a JSON object, each after a comma."""
    given = {"id": run_id, **row._asdict(), "run_at": moment_text(dialect, row.run_at)}
    del given["payload"]
    written = json.dumps({name: value for name, value in given.items() if value is not None})
    return f",{written[1:-1]}" if len(written) > 2 else ""


@lru_cache
def _insert_many(d: Dialect, columns: tuple[str, ...]) -> str:
    own = {name: _OWN[name] for name in columns}
    due = due_sql(d)
    if "delay" in own:
        due = f"CASE WHEN delay IS NULL THEN {due} ELSE {d.later('delay')} END"
    if "run_at" in own:
        due = f"COALESCE(run_at, {due})"
    values = {name: parameter(d, name) for name in _SHARED}
    if "priority" in own:
        values["priority"] = f"COALESCE(priority, {values['priority']})"
    values |= {name: name for name in ("id", "payload", *_MADE) if name in own}
    source = f"""
        FROM {d.table("rows", place="integer", **own)} AS r WHERE true ORDER BY place
        {ON_CONFLICT if "idempotency_key" in own else ""}
        RETURNING id, idempotency_key
    """
    return insert_into_runs(values, due, d.now, source)


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
