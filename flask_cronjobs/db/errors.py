"""Decide what to do after a database error, and explain it to the user.

PostgreSQL's errors are classified by SQLSTATE, never by class: a read-only server after a failover
and a timed-out transaction both raise ``InternalError``. A refused connection has no SQLSTATE.
Codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

import time
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

#: Total seconds that an operator's writes wait for locked rows.
LOCK_WAIT_SECONDS = 3.0
#: Seconds between two tries to write a locked row.
_LOCK_PAUSE_SECONDS = 0.05

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
#: Those of `_RECONNECT` with which the server refuses a statement, so that nothing is committed.
_REFUSED = {"0A000", "25006"}
_CREATE_TABLES = {"42P01", "42703"}  # undefined_table, undefined_column
_SQLITE_CREATE_TABLES = ("no such table", "no such column", "has no column")
_SQLITE_REPEAT = ("database is locked", "database table is locked", "database schema has changed")
#: The last sentence of an error, except in the doctor.
LEARN_MORE = " To learn more: flask jobs admin doctor."
#: How to fix a read-only connection to PostgreSQL.
WRITABLE = (
    "Connect to the primary, with a role, a database and options that do not set "
    "default_transaction_read_only."
)
_NO_SCHEMA, _NO_RIGHT = "3F000", "42501"
_SQLITE_FORBIDDEN = ("unable to open database file", "readonly database")


def still_locked(row: str) -> StateConflict:
    """Return the error that says that *row*, such as ``Run 7``, stays locked."""
    return StateConflict(
        f"{row} is locked: another transaction has changed its row, and has not ended. End that "
        "transaction, then try again."
    )


class LockWait:
    """Limits how long an operator's writes wait for locked rows.

    Only the pauses count, not the tries between them.
    """

    _slept = 0.0

    def pause(self) -> bool:
        """Sleep for a moment before another try; return False if the time is used up."""
        if self._slept >= LOCK_WAIT_SECONDS:
            return False
        self._slept += _LOCK_PAUSE_SECONDS
        time.sleep(_LOCK_PAUSE_SECONDS)
        return True


def remedy_for(error: SQLAlchemyError) -> Remedy:
    """Return what to do after *error*.

    The remedy is to ``repeat`` on the same connection, to ``reconnect`` and repeat, to ``create
    tables`` (they are missing or of another version, so repeating is useless), or to ``fail``.
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


def is_refused(error: SQLAlchemyError) -> bool:
    """Return whether the server refused the statement, so that it has committed nothing."""
    return isinstance(error, DBAPIError) and sqlstate_of(error.orig) in _REFUSED


def is_of_database(error: BaseException) -> bool:
    """Return whether *error* was raised by SQLAlchemy or a driver, whatever its class."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    inside = "" if last is None else str(last.tb_frame.f_globals.get("__name__"))
    names = {inside, *(base.__module__ for base in type(error).__mro__)}
    return not _DATABASE.isdisjoint(name.partition(".")[0] for name in names)


_DATABASE = {"sqlalchemy", "sqlite3", "psycopg", "psycopg2", "pysqlite3"}


def sqlstate_of(error: object) -> str | None:
    """Return the SQLSTATE of a driver's *error*; psycopg2 uses another name for it."""
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state


def _remedy_by_text(error: DBAPIError) -> Remedy:
    text = str(error.orig)
    if any(part in text for part in _SQLITE_CREATE_TABLES):
        return "create tables"
    if any(part in text for part in _SQLITE_REPEAT):
        return "repeat"
    # An error of psycopg without an SQLSTATE means that the connection itself failed.
    if error.connection_invalidated or type(error.orig).__module__.startswith("psycopg"):
        return "reconnect"
    return "fail"


def explain(error: SQLAlchemyError, engine: Engine, unknown: bool = False) -> CronJobsError:
    """Return *error* as one of our own errors, with a message of one line.

    :param engine: the app's engine; the message names its database, which may be the wrong one.
    :param unknown: whether the server may have committed nevertheless.
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
    doubt = " It is not known whether the change was committed." if unknown else ""
    return DatabaseTrouble(
        f"The database cannot be used: {first_line(cause)}.{doubt}{_hint(cause, engine)}",
        transient=remedy_for(error) in ("repeat", "reconnect"),
        unknown=unknown,
    )


def is_about_the_rows(trouble: CronJobsError) -> bool:
    """Return whether the database works, but refused the values in these rows."""
    return isinstance(trouble.__cause__, (IntegrityError, DataError))


def name_of(engine: Engine) -> str:
    """Return the URL of *engine*'s database, without its password."""
    return strip_credentials(engine.url.render_as_string(hide_password=True))


def what_to_do(cause: BaseException, engine: Engine) -> str | None:
    """Return what to do about an error of the driver; None if nothing is known."""
    state, message = sqlstate_of(cause), str(cause)
    if state == _NO_SCHEMA:
        return looked_elsewhere(engine)
    if state == _NO_RIGHT:
        return missing_right(cause, engine)
    if "read-only transaction" in message:
        return WRITABLE.removesuffix(".")
    if any(part in message for part in _SQLITE_FORBIDDEN):
        return (
            f"Its file is {engine.url.database}: does its folder exist, and may the user of this "
            "process write to both?"
        )
    return None


def _hint(cause: BaseException, engine: Engine) -> str:
    advice = what_to_do(cause, engine)
    return f" {advice}{'' if advice.endswith('?') else '.'}" if advice else LEARN_MORE


def first_line(error: BaseException) -> str:
    """Return the first line of an error, shortened, without a final period."""
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__
