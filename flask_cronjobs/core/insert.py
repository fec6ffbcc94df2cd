"""Insert one run in the user's own transaction.

The statement's text is built once, and goes to the driver on the session's own connection, past
SQLAlchemy's compiler. The ORM's way, with a new statement and a flush, takes several times as long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Row,
    Select,
    TextClause,
    select,
    text,
    update,
)
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session, class_mapper, make_transient_to_detached
from sqlalchemy.orm.attributes import set_committed_value

from ..db.dialect import Dialect, dialect_of
from ..db.notify import WAKE
from ..errors import StateConflict
from ..models import JobRun
from ..models.conditions import HOLDS_KEY
from ..types import Replace, stored_time
from .columns import assigned, due_sql, insert_into_runs, parameter, rate_gate
from .new_run import COLUMNS, OF_PAYLOAD, TYPES, NewRun

ON_CONFLICT = f"ON CONFLICT (idempotency_key) WHERE {HOLDS_KEY} DO NOTHING"
#: The condition of the runs that ``replace`` may change. They have not begun, so no attempt has
#: seen their values.
REPLACEABLE = f"{HOLDS_KEY} AND started_at IS NULL AND finished_at IS NULL"
#: The result of an enqueue: a run was inserted, changed or only found.
Enqueued: TypeAlias = Literal["new", "replaced", "found"]


class InsertedRun(NamedTuple):
    """The result of an enqueue.

    :ivar became: whether the run was inserted, changed or found.
    :ivar woke: whether the commit wakes a listening worker; None if the insert did not check.
    """

    run: JobRun
    became: Enqueued
    woke: bool | None = None


def insert_run(session: Session, new: NewRun, wake: bool = False) -> InsertedRun | None:
    """Insert a run in *session*'s transaction; return None if its idempotency key is held.

    If two transactions insert the same key at the same time, the second waits until the first ends;
    neither fails.

    :param wake: whether the statement also wakes listening workers.
    """
    connection = writing_connection(session)
    d = dialect_of(connection.engine)
    wakes = wake and not (d.one_writer or session.twophase)
    statement = _insert_one(d, new.idempotency_key is not None, wakes)
    row = execute(connection, statement, parameters_of(d, new)).one_or_none()
    if row is None:
        return None
    return InsertedRun(_as_loaded(session, new, row), "new", bool(row.woke) if wakes else None)


def insert_or_find(
    session: Session, new: NewRun, replace: Replace = False, wake: bool = False
) -> InsertedRun:
    """Insert a run; if its idempotency key is held, find or change the run that holds it.

    :param replace: which of *new*'s values to write to a waiting run that holds the key.
    :param wake: see `insert_run`.
    :raises StateConflict: a run in strict order would lose its place.
    """
    while True:
        if replace and (run := replace_waiting(session, new, replace)):
            return InsertedRun(run, "replaced")
        if inserted := insert_run(session, new, wake):
            return inserted
        if run := find_holder(session, new, replace):
            return InsertedRun(run, "found")
        # Meanwhile the holder released the key, or a replaceable run took it: try again.


def replace_waiting(session: Session, new: NewRun, replace: Replace) -> JobRun | None:
    """Change the waiting run with the task and key of *new*; return it, or None if none waits.

    :param replace: which values of *new* it gets.
    """
    connection = writing_connection(session)
    d = dialect_of(connection.engine)
    row = execute(connection, _replace_one(d, replace), parameters_of(d, new)).one_or_none()
    if row is None:
        return None
    (full_row,) = connection.execute(_select_run(JobRun.id == row.id))
    return _from_row(session, full_row)


def find_holder(session: Session, new: NewRun, replace: Replace) -> JobRun | None:
    """Return the run that holds the key of *new*; None if none does, or if *replace* may change it.

    :raises StateConflict: the run could be changed, but would lose its place in a strict order.
    """
    connection = writing_connection(session)
    has_key = JobRun.idempotency_key == new.idempotency_key
    row = connection.execute(_select_run(has_key, text(HOLDS_KEY))).one_or_none()
    if row is None:
        return None
    if not (replace and row.is_replaceable and row.job_type == new.job_type):
        return _from_row(session, row)
    if row.strict and replace != "run_at":
        _keep_order(row, new.concurrency_key)
    return None


def writing_connection(session: Session) -> Connection:
    """Return the connection of *session*'s transaction on which runs are written.

    Pending objects are flushed, as before each query of a session.
    """
    if session.autoflush:
        try:
            session.flush()
        except InvalidRequestError as error:
            # Inside a flush, for example in a mapper's hook, no other flush is needed.
            if "already flushing" not in str(error):
                raise
    return session.connection(writing_bind())


@lru_cache(maxsize=1)
def writing_bind() -> dict[str, Any]:
    """Return the arguments that tell a session with several engines which one writes runs.

    Use them for reading runs, too, since a replica does not have this transaction's writes.
    """
    # SQLAlchemy's recipe for replicas checks whether the clause is an UPDATE or a DELETE.
    return {"mapper": class_mapper(JobRun), "clause": update(JobRun)}


def execute(connection: Connection, sql: str, values: Mapping[str, Any]) -> CursorResult[Any]:
    """Execute *sql* with parameters like ``:name``, without SQLAlchemy's compiler."""
    if connection.dialect.paramstyle == "pyformat":
        sql = _for_psycopg(sql)
    return connection.exec_driver_sql(sql, dict(values))


@lru_cache
def _for_psycopg(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql)


def parameters_of(d: Dialect, new: NewRun) -> dict[str, Any]:
    """Return *new* as the parameters of a statement."""
    values = {name: getattr(new, name) for name in TYPES}
    if new.run_at is not None:
        values["run_at"] = d.instant(new.run_at)
    return values


@lru_cache
def _insert_one(d: Dialect, unique: bool, wakes: bool) -> str:
    source = f"""
        FROM (SELECT {due_sql(d)} AS due, {d.now} AS now) AS times
        WHERE true {ON_CONFLICT if unique else ""}
        RETURNING id, run_at, created_at {f", ({WAKE}) AS woke" if wakes else ""}
    """
    return insert_into_runs({name: parameter(d, name) for name in COLUMNS}, "due", "now", source)


@lru_cache
def _replace_one(d: Dialect, replace: Replace) -> str:
    values, keeps_order = {"updated_at": d.now}, ""
    if replace != "payload":
        values["run_at"] = due_sql(d)
    if replace != "run_at":
        values |= {name: parameter(d, name) for name in OF_PAYLOAD}
        # The new concurrency key may have a free share, so the gate ``keys`` is cleared.
        values["gate"] = (
            f"COALESCE({rate_gate(values['rate_key'])}, CASE WHEN gate = 'order' THEN gate END)"
        )
        keeps_order = f"AND (NOT strict OR concurrency_key = {values['concurrency_key']})"
    return f"""
        UPDATE job_runs SET {assigned(values)}
        WHERE idempotency_key = {parameter(d, "idempotency_key")}
            AND job_type = {parameter(d, "job_type")} AND {REPLACEABLE}
            {keeps_order}
        RETURNING id
    """


def _keep_order(run: Any, key: str | None) -> None:
    """Refuse to move *run*, a row, from the strict order of its concurrency key to another one.

    :raises StateConflict: *key* is not the run's key.
    """
    if run.concurrency_key != key:
        raise StateConflict(
            f"Run {run.id} holds this idempotency key and waits in the strict order of its "
            "concurrency key. The new payload has another concurrency key, and a run cannot change "
            "its place. Nothing was changed. Put the arguments that the concurrency key names into "
            "the idempotency key, too."
        )


def _as_loaded(session: Session, new: NewRun, row: Any) -> JobRun:
    """Return the new run as an object of *session*, as if its row had been loaded."""
    due, created = stored_time(row.run_at), stored_time(row.created_at)
    values = _fresh() | {name: getattr(new, name) for name in COLUMNS}
    values |= {
        "id": row.id,
        "payload": json.loads(new.payload),
        "gate": None if new.rate_key is None else "rate",
        **dict.fromkeys(("scheduled_for", "run_at"), due),
        **dict.fromkeys(("created_at", "updated_at"), created),
    }
    return _with_values(session, values)


def _from_row(session: Session, row: Row[Any]) -> JobRun:
    names = [column.key for column in class_mapper(JobRun).columns]
    return _with_values(session, {name: getattr(row, name) for name in names})


def _with_values(session: Session, values: Mapping[str, Any]) -> JobRun:
    """Return a run as an object of *session*, with *values* for all of its columns.

    This seldom needs a query. A replica is never asked, since it may not have the run yet.
    """
    run_id: int = values["id"]
    mapper = class_mapper(JobRun)
    existing = session.identity_map.get(mapper.identity_key_from_primary_key((run_id,)))
    if existing is not None:
        # It may be the object of an earlier run: SQLite reuses an id whose INSERT was rolled back.
        for name, value in values.items():
            set_committed_value(existing, name, value)
        return existing
    if session.new or session.deleted or session.dirty:
        # Inside a flush, no object can be added to the session, but a query can load one.
        return session.get_one(JobRun, run_id, bind_arguments=writing_bind())
    run = mapper.class_manager.new_instance()
    vars(run).update(values)
    make_transient_to_detached(run)
    session.add(run)
    return run


def _select_run(*conditions: ColumnElement[bool] | TextClause) -> Select[Any]:
    """Return the query for all columns of a run, and whether a replacing enqueue may change it."""
    replaceable = text(f"({REPLACEABLE}) AS is_replaceable")
    return select(*class_mapper(JobRun).columns, replaceable).where(*conditions)


@lru_cache(maxsize=1)
def _fresh() -> dict[str, Any]:
    """Return the values of the columns that are the same in every new run."""
    empty = dict.fromkeys(column.key for column in class_mapper(JobRun).columns)
    return {**empty, "status": "queued", "attempts": 0, "snoozes": 0, "forgiven": 0}
