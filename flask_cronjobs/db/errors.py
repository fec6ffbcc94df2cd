"""Decide what to do after a database error, and explain it to the user.

PostgreSQL's errors are judged by SQLSTATE, never by class: a read-only server after a failover and
a timed-out transaction both arrive as ``InternalError``, and a refused connection has no SQLSTATE.
Codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    PendingRollbackError,
    ResourceClosedError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..errors import CronJobsError, DatabaseTrouble, StateConflict, TablesMissing
from ..text.redaction import strip_credentials
from .schemas import how_to_create_tables, looked_elsewhere, missing_right

Remedy: TypeAlias = Literal["repeat", "reconnect", "create tables", "fail"]

#: How long an operator's writes wait in all for rows that are locked, in seconds.
LOCK_WAIT = 3.0

_REPEAT = {
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "55P03",  # lock_not_available
    "57014",  # query_canceled: a statement timeout
    "23505",  # unique_violation: two claims took the same share of a concurrency key
}
_RECONNECT = {
    "0A000",  # feature_not_supported: a migration changed what a prepared statement returns
    "25006",  # read_only_sql_transaction: the server became a standby
    "25P03",  # idle_in_transaction_session_timeout
    "25P04",  # transaction_timeout
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "57P05",  # idle_session_timeout
    "53300",  # too_many_connections
}
_CREATE_TABLES = {"42P01", "42703"}  # undefined_table, undefined_column
_SQLITE_CREATE_TABLES = ("no such table", "no such column", "has no column")
_SQLITE_REPEAT = ("database is locked", "database table is locked", "database schema has changed")
#: The end of an error, for all but the doctor.
LEARN_MORE = " To learn more: flask jobs admin doctor."
#: What to do about a connection to PostgreSQL that may only read.
WRITABLE = (
    "Connect to the primary, by a role, a database and options that do not set "
    "default_transaction_read_only."
)
_NO_SCHEMA, _NO_RIGHT = "3F000", "42501"
_SQLITE_FORBIDDEN = ("unable to open database file", "readonly database")


def still_locked(what: str) -> StateConflict:
    """Return the error about *what*, a row that stays locked."""
    return StateConflict(
        f"{what} is locked: another transaction has changed its row, and has not ended. End that "
        "transaction, then try again."
    )


def waiting_for_lock(what: str) -> Callable[[], None]:
    """Return what to call after each try to change *what*, a row that others may have locked.

    It waits a moment, but for `LOCK_WAIT` seconds in all.

    :raises StateConflict: when called later: the row stays locked.
    """
    until = time.monotonic() + LOCK_WAIT

    def wait() -> None:
        if time.monotonic() > until:
            raise still_locked(what)
        time.sleep(0.05)

    return wait


def remedy_for(error: SQLAlchemyError) -> Remedy:
    """Return what to do after *error*.

    ``repeat`` on the same connection, ``reconnect`` and repeat, ``create tables`` (missing, or of
    another version: to repeat is useless), or ``fail``.
    """
    if isinstance(error, (PoolTimeout, PendingRollbackError, ResourceClosedError)):
        return "reconnect"
    if not isinstance(error, DBAPIError):
        return "fail"
    state = sqlstate_of(error.orig)
    if state is None:
        return _remedy_by_text(error)
    if state in _CREATE_TABLES:
        return "create tables"
    if state in _REPEAT:
        return "repeat"
    if state in _RECONNECT or state.startswith("08") or error.connection_invalidated:
        return "reconnect"
    return "fail"


def is_of_database(error: BaseException) -> bool:
    """Return whether *error* comes from SQLAlchemy or a driver, whatever its class."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    inside = "" if last is None else str(last.tb_frame.f_globals.get("__name__"))
    names = {inside, *(each.__module__ for each in type(error).__mro__)}
    return not _DATABASE.isdisjoint(name.partition(".")[0] for name in names)


_DATABASE = {"sqlalchemy", "sqlite3", "psycopg", "psycopg2", "pysqlite3"}


def sqlstate_of(error: object) -> str | None:
    """Return the SQLSTATE of *error*, a driver's; psycopg2 has it by another name."""
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state


def _remedy_by_text(error: DBAPIError) -> Remedy:
    text = str(error.orig)
    if any(part in text for part in _SQLITE_CREATE_TABLES):
        return "create tables"
    if any(part in text for part in _SQLITE_REPEAT):
        return "repeat"
    # Without SQLSTATE and not from SQLite: the connection itself failed.
    if error.connection_invalidated or type(error.orig).__module__.startswith("psycopg"):
        return "reconnect"
    return "fail"


def explain(error: SQLAlchemyError, engine: Engine, unknown: bool = False) -> CronJobsError:
    """Return *error* as one of our own, with a message of one line.

    :param engine: the app's engine; the message names its database, since it may be the wrong one.
    :param unknown: whether the server may have committed all the same.
    """
    cause = getattr(error, "orig", None) or error
    if remedy_for(error) == "create tables":
        message = f"Job tables are missing: {first_line(cause)}. {how_to_create_tables(engine)}"
        if "column" in str(cause):
            message = (
                f"The job tables are of another version: {first_line(cause)}. Run your "
                "migrations, or: flask jobs admin doctor"
            )
        return TablesMissing(f"{message} (Is this the right database? {name_of(engine)})")
    what = " It is not known whether that was committed." if unknown else ""
    return DatabaseTrouble(
        f"The database cannot be used: {first_line(cause)}.{what}{_hint(cause, engine)}",
        transient=remedy_for(error) in ("repeat", "reconnect"),
    )


def is_about_the_rows(trouble: CronJobsError) -> bool:
    """Return whether the database works, but refused the values in these rows."""
    return isinstance(trouble.__cause__, (IntegrityError, DataError))


def name_of(engine: Engine) -> str:
    """Return the URL of *engine*'s database, without its password."""
    return strip_credentials(engine.url.render_as_string(hide_password=True))


def what_to_do(cause: BaseException, engine: Engine) -> str | None:
    """Return what to do about an error of the driver; None if nothing is known."""
    state, said = sqlstate_of(cause), str(cause)
    if state == _NO_SCHEMA:
        return looked_elsewhere(engine)
    if state == _NO_RIGHT:
        return missing_right(cause, engine)
    if "read-only transaction" in said:
        return WRITABLE.removesuffix(".")
    if any(part in said for part in _SQLITE_FORBIDDEN):
        return (
            f"Its file is {engine.url.database}: does its folder exist, and may the user that this "
            "runs as write to both?"
        )
    return None


def _hint(cause: BaseException, engine: Engine) -> str:
    found = what_to_do(cause, engine)
    return f" {found}{'' if found.endswith('?') else '.'}" if found else LEARN_MORE


def first_line(error: BaseException) -> str:
    """Return what an error says first, shortened, without a dot."""
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__
