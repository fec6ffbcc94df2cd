"""The doctor's checks of the database, of the connection to it, and of executors for queues."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sqlalchemy import Connection, Inspector, Table, func, inspect, select, text

from ..db.create import missing_storage
from ..db.engines import USE_UTF8, unfit_encoding
from ..db.errors import WRITABLE, name_of
from ..db.notify import is_pooled
from ..db.schemas import existing_tables, how_to_create_tables
from ..features.executors.executor import executor_of
from ..models import JobRun
from ..models.conditions import PARKED, READY
from ..text import one_line
from ..text.humanize import plural
from ..types import NO_SUCH_TASK
from .health_checks import Finding
from .reader import RUNS, Reader

_PACKAGES = (
    "Flask-CronJobs",
    "Flask",
    "Flask-SQLAlchemy",
    "Flask-SQLAlchemy-Lite",
    "SQLAlchemy",
    "croniter",
    "psycopg",
    "psycopg2",
    "psycopg2-binary",
)
#: What is wrong with an index, by whether it must be unique.
_WRONG = {
    True: "not unique, but must be: runs may be duplicated",
    False: "unique, but must not be: rows are refused",
}


def schema(reader: Reader) -> Iterator[Finding]:
    """Check the tables, columns and indexes."""
    inspector = inspect(reader.connection)
    names = existing_tables(reader.connection)
    tables = JobRun.metadata.sorted_tables
    missing = [table.name for table in tables if table.name not in names]
    if missing:
        what = f"missing: {', '.join(missing)}. Flask-CronJobs needs all of its tables."
        yield Finding("tables", "error", what, how_to_create_tables(reader.state.engine))
    else:
        yield Finding("tables", "ok", f"all {len(tables)} tables exist")
    for table in tables:
        if table.name in names:
            yield from _columns(inspector, table)
            yield from _indexes(inspector, table)


def _columns(inspector: Inspector, table: Table) -> Iterator[Finding]:
    column_names = {column["name"] for column in inspector.get_columns(table.name)}
    missing = [column.name for column in table.columns if column.name not in column_names]
    if missing:
        what = f"{table.name} lacks {', '.join(missing)}: another version or program created it"
        todo = "Make a migration that adds them. If another program owns the table, rename it."
        yield Finding("columns", "error", what, todo)


def _indexes(inspector: Inspector, table: Table) -> Iterator[Finding]:
    indexes_by_name: dict[str | None, Any] = {
        index["name"]: index for index in inspector.get_indexes(table.name)
    }
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        existing = indexes_by_name.get(str(index.name))
        todo = (
            f"Make a migration that creates {index.name}, or create it as it is defined in "
            "flask_cronjobs/models/tables.py."
        )
        if existing is None and index.unique:
            what = f"{table.name} lacks the unique index {index.name}: runs may be duplicated"
            yield Finding("indexes", "error", what, todo)
        elif existing is None:
            what = f"{table.name} lacks the index {index.name}: queries slow down as it grows"
            yield Finding("indexes", "warning", what, todo)
        elif bool(existing["unique"]) != bool(index.unique):
            what = f"{index.name} is {_WRONG[bool(index.unique)]}"
            yield Finding("indexes", "error", what, todo)
        elif existing["column_names"] != index.columns.keys():
            what = (
                f"{index.name} does not have the columns that this version needs: queries slow down"
            )
            yield Finding("indexes", "warning", what, todo)


def database(reader: Reader) -> Iterator[Finding]:
    """Check the settings of the database and of the connection."""
    yield Finding("database", "info", name_of(reader.connection.engine))
    if reader.dialect.one_writer:
        yield _journal(reader)
    else:
        yield from _postgresql(reader)


def _journal(reader: Reader) -> Finding:
    # An open connection reports an outdated mode until it has read the file.
    reader.rows(text("PRAGMA schema_version"))
    mode = reader.rows(text("PRAGMA journal_mode"))[0][0]
    if mode == "wal":
        return Finding("journal", "ok", "SQLite's journal mode is WAL")
    what = f"SQLite's journal mode is {mode}: readers and writers block each other"
    return Finding("journal", "warning", what, "Run: flask jobs admin init")


def _postgresql(reader: Reader) -> Iterator[Finding]:
    kind = "pg_is_in_recovery() AS standby, current_setting('default_transaction_read_only') AS set"
    row = reader.rows(text(f"SELECT {kind}"))[0]
    if row.standby or row.set == "on":
        cause = "database is a standby" if row.standby else "connection is set to read-only"
        what = f"The {cause}: nothing can be written, so no run can start"
        yield Finding("read-only", "error", what, WRITABLE)
    if unfit := unfit_encoding(reader.connection.connection.driver_connection):
        yield Finding("encoding", "error", unfit, USE_UTF8)
    if missing_storage(reader.connection):
        what = "job_runs is vacuumed too rarely: claims slow down as it grows"
        yield Finding("vacuum", "warning", what, "Run: flask jobs admin init")
    yield from _pooler(reader.connection)


def _pooler(connection: Connection) -> Iterator[Finding]:
    """Check whether a pooler such as PgBouncer is used, and whether psycopg is set up for it."""
    if not is_pooled(connection):
        yield Finding("pooler", "ok", "there is no pooler between the app and PostgreSQL")
        return
    driver: Any = connection.connection.driver_connection
    if driver.prepare_threshold is None:
        what = "there is a pooler in front of PostgreSQL, and psycopg is set up for it"
        yield Finding("pooler", "ok", what)
        return
    what = (
        "There is a pooler (PgBouncer?) in front of PostgreSQL, and psycopg prepares statements: "
        "in transaction mode, a statement may reach a connection that has not prepared it, and fail"
    )
    todo = 'Set SQLALCHEMY_ENGINE_OPTIONS = {"connect_args": {"prepare_threshold": None}}.'
    yield Finding("pooler", "warning", what, todo)


def versions(reader: Reader) -> Finding:
    """Return the installed versions, for a bug report."""
    parts = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    server = reader.connection.dialect.server_version_info or ()
    database = "SQLite" if reader.dialect.one_writer else "PostgreSQL"
    parts.append(f"{database} {'.'.join(map(str, server))}")
    return Finding("versions", "info", ", ".join(parts))


_TODO = (
    "Check that Celery's broker and workers run, and that the workers' code calls init(): see "
    "outgrowing.md in the documentation."
)


def executors(reader: Reader) -> Iterator[Finding]:
    """Check whether Celery can be reached and has workers for its queues."""
    if queues := reader.state.settings.executors:
        try:
            problems = executor_of(reader.state.app).check(queues)
        except Exception as error:  # Each transport's library raises its own errors.
            problems = [f"Celery cannot be checked: {type(error).__name__}: {error}"]
        for problem in problems:
            yield Finding("executor", "error", one_line(problem), _TODO)
        if not problems:
            yield Finding("executor", "ok", f"Celery executes {', '.join(queues)}")
        yield from _refused(reader)


def _refused(reader: Reader) -> Iterator[Finding]:
    """Find waiting runs that an executor's workers returned because they lack the task."""
    columns = RUNS.c.job_type, RUNS.c.queue
    refused = RUNS.c.error_type == NO_SUCH_TASK, RUNS.c.queue.in_(reader.state.settings.executors)
    for rows in (READY, PARKED):
        why = func.max(RUNS.c.last_error).label("why")
        groups = select(*columns, func.count().label("number"), why).where(text(rows), *refused)
        for row in reader.rows(groups.group_by(*columns).order_by(*columns)):
            yield Finding(
                "refused-task",
                "error",
                f"the executor's workers refused {plural(row.number, 'run')} of the task "
                f"{row.job_type!r} in the queue {row.queue!r}: "
                f"{one_line(str(row.why)).rstrip('.')}",
                "Deploy this code to the executor's workers. The runs then start.",
            )
