"""Insert one run in the user's own transaction.

The statement has one text, built once, and goes to the driver as it is, on the session's own
connection. The ORM's way, with a statement made anew and a flush, takes several times as long.
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
from sqlalchemy.orm import Session, class_mapper, make_transient_to_detached
from sqlalchemy.orm.attributes import set_committed_value

from ..db.dialect import Dialect, dialect_of
from ..db.notify import WAKE
from ..errors import StateConflict
from ..models import JobRun
from ..models.conditions import HOLDS_KEY
from ..types import Replace, stored_time
from .columns import NEW_RUN, due_sql, insert_into_runs, parameter, rate_mark

#: The columns that enqueue gives.
GIVEN = tuple(name for name in NEW_RUN if name != "definition_id")
ON_CONFLICT = f"ON CONFLICT (idempotency_key) WHERE {HOLDS_KEY} DO NOTHING"
#: Only a run that has not begun is changed: what an attempt has seen stays as it was.
REPLACEABLE = f"{HOLDS_KEY} AND started_at IS NULL AND finished_at IS NULL"
#: What `EnqueueOptions.replace` may mean: columns to set.
_REPLACED = {
    "payload": ("payload", "concurrency_key", "concurrency_limit", "rate_key", "label"),
    "run_at": ("run_at",),
}

#: What became of an enqueue: a run was inserted, changed, or only found.
Enqueued: TypeAlias = Literal["new", "replaced", "found"]


class InsertedRun(NamedTuple):
    """What `insert_run` did.

    :ivar became: what became of the enqueue.
    :ivar woke: whether a worker listens that the commit wakes; None if the insert did not ask.
    """

    run: JobRun
    became: Enqueued
    woke: bool | None = None


def insert_run(
    session: Session,
    values: Mapping[str, Any],
    replace: Replace = False,
    wake: bool = False,
) -> InsertedRun:
    """Insert a run in *session*'s transaction.

    If the idempotency key is held, return the run that has it. If two transactions insert the same
    key at once, the second waits until the first ends and then finds its row; neither fails.

    :param values: the columns of `GIVEN`, the payload as JSON text; and when the run is due:
        ``run_at``, or if that is None, in ``delay`` seconds.
    :param replace: which of *values* a run gets that waits with the key.
    :param wake: whether to wake listening workers with a new run, by the same statement.
    """
    connection = writing_connection(session)
    dialect = dialect_of(connection.engine)
    wakes = wake and dialect.notifies and not session.twophase
    statement = _insert_one(dialect, values["idempotency_key"] is not None, wakes)
    parameters = {**values, "run_at": values["run_at"] and dialect.instant(values["run_at"])}
    while True:
        if replace:
            row = execute(connection, _replace_one(dialect, replace), parameters).one_or_none()
            if row is not None:
                (changed,) = connection.execute(_select_run(JobRun.id == row.id))
                return InsertedRun(_from_row(session, changed), "replaced")
        row = execute(connection, statement, parameters).one_or_none()
        if row is not None:
            made = _as_loaded(session, values, row)
            return InsertedRun(made, "new", bool(row.woke) if wakes else None)
        key = JobRun.idempotency_key == values["idempotency_key"]
        holder = connection.execute(_select_run(key, text(HOLDS_KEY))).one_or_none()
        if holder is not None:
            same_task = holder.job_type == values["job_type"]
            if not (replace and holder.is_replaceable and same_task):
                return InsertedRun(_from_row(session, holder), "found")
            if holder.strict and replace != "run_at":
                _keep_order(holder, values["concurrency_key"])
        # The run that had the key gave it up between the statements, or another one took it and
        # can be replaced: begin again.


def writing_connection(session: Session) -> Connection:
    """Return the connection of *session*'s transaction that runs are written on.

    As before each statement of a session, the pending objects are flushed.
    """
    session._autoflush()  # pyright: ignore[reportPrivateUsage]
    return session.connection(writing_bind())


@lru_cache(maxsize=1)
def writing_bind() -> dict[str, Any]:
    """Return what a session with several engines chooses by: runs, and that they are written.

    Also for reading them: a replica does not know yet what this transaction has written.
    """
    # SQLAlchemy's recipe of a session with replicas looks for UPDATE and DELETE.
    return {"mapper": class_mapper(JobRun), "clause": update(JobRun)}


def execute(connection: Connection, sql: str, values: Mapping[str, Any]) -> CursorResult[Any]:
    """Execute *sql*, whose parameters are written ``:name``, without compiling it."""
    if connection.dialect.paramstyle == "pyformat":
        sql = _for_psycopg(sql)
    return connection.exec_driver_sql(sql, dict(values))


@lru_cache
def _for_psycopg(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql)


@lru_cache
def _insert_one(d: Dialect, keyed: bool, wakes: bool) -> str:
    source = f"""
        FROM (SELECT {due_sql(d)} AS due, {d.now} AS now) AS times
        WHERE true {ON_CONFLICT if keyed else ""}
        RETURNING id, run_at, created_at {f", ({WAKE}) AS woke" if wakes else ""}
    """
    return insert_into_runs({name: parameter(d, name) for name in GIVEN}, "due", "now", source)


@lru_cache
def _replace_one(d: Dialect, replace: Replace) -> str:
    names = [*_REPLACED["payload"], *_REPLACED["run_at"]]
    if not isinstance(replace, bool):
        names = [*_REPLACED[replace]]
    given = {name: parameter(d, name) for name in names} | {"updated_at": d.now}
    if "run_at" in given:
        given["run_at"] = due_sql(d)
    if "rate_key" in given:
        given["rate_mark"] = rate_mark(given["rate_key"])
    keeps_order = ""
    if "concurrency_key" in given:
        keeps_order = f"AND (NOT strict OR concurrency_key = {given['concurrency_key']})"
    return f"""
        UPDATE job_runs SET {", ".join(f"{name} = {value}" for name, value in given.items())}
        WHERE idempotency_key = {parameter(d, "idempotency_key")}
            AND job_type = {parameter(d, "job_type")} AND {REPLACEABLE}
            {keeps_order}
        RETURNING id
    """


def _keep_order(run: Any, key: str | None) -> None:
    """Refuse to move *run*, a row, from the strict order of its concurrency key to that of another.

    :raises StateConflict: *key* is another.
    """
    if run.concurrency_key != key:
        raise StateConflict(
            f"Run {run.id} waits with this idempotency key in the strict order of its concurrency "
            "key. Its new payload belongs to another one, and a run keeps its place. Nothing was "
            "changed. Put what the concurrency key names into the idempotency key, too."
        )


def _as_loaded(session: Session, values: Mapping[str, Any], row: Any) -> JobRun:
    """Return the new run as an object of *session*, as if its row had been loaded."""
    due, made = stored_time(row.run_at), stored_time(row.created_at)
    own = {name: values[name] for name in GIVEN}
    own["payload"] = json.loads(values["payload"])
    own["order_mark"] = "new" if values["strict"] else None
    own["rate_mark"] = None if values["rate_key"] is None else "waits"
    times = {"scheduled_for": due, "run_at": due, "created_at": made, "updated_at": made}
    return _with_values(session, {**_fresh(), **own, **times, "id": row.id})


def _from_row(session: Session, row: Row[Any]) -> JobRun:
    names = [column.key for column in class_mapper(JobRun).columns]
    return _with_values(session, {name: getattr(row, name) for name in names})


def _with_values(session: Session, values: Mapping[str, Any]) -> JobRun:
    """Return a run as an object of *session*, with *values* for all of its columns.

    No query of the session loads it: a session may read from a replica, which knows it later.
    """
    run_id: int = values["id"]
    if session._flushing:  # pyright: ignore[reportPrivateUsage]
        return session.get_one(JobRun, run_id, populate_existing=True)  # Nothing can be added now.
    mapper = class_mapper(JobRun)
    known = session.identity_map.get(mapper.identity_key_from_primary_key((run_id,)))
    if known is not None:
        # Also a new run's: SQLite gives an id again whose insertion was rolled back.
        for name, value in values.items():
            set_committed_value(known, name, value)
        return known
    run = mapper.class_manager.new_instance()
    vars(run).update(values)
    make_transient_to_detached(run)
    session.add(run)
    return run


def _select_run(*which: ColumnElement[bool] | TextClause) -> Select[Any]:
    """Return the query for all columns of a run, and whether a replacing enqueue may change it."""
    replaceable = text(f"({REPLACEABLE}) AS is_replaceable")
    return select(*class_mapper(JobRun).columns, replaceable).where(*which)


@lru_cache(maxsize=1)
def _fresh() -> dict[str, Any]:
    """Return the columns that are the same in every new run."""
    empty = dict.fromkeys(column.key for column in class_mapper(JobRun).columns)
    return {**empty, "status": "queued", "attempts": 0, "snoozes": 0, "forgiven": 0}
