"""What a database error means for bookkeeping: try again, on a new connection, or give up.

PostgreSQL's errors are judged by SQLSTATE, never by class: a read-only server after a failover and
a timed-out transaction both arrive as ``InternalError``, and a refused connection has no SQLSTATE.
Codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    PendingRollbackError,
    ResourceClosedError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..errors import CronJobsError, DatabaseTrouble, TablesMissing

Remedy: TypeAlias = Literal["again", "reconnect", "init", "give up"]

_AGAIN = {
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "55P03",  # lock_not_available
    "57014",  # query_canceled: a statement timeout
    "23505",  # unique_violation: two claims took the same share of a concurrency key
}
_RECONNECT = {
    "25006",  # read_only_sql_transaction: the server became a standby
    "25P03",  # idle_in_transaction_session_timeout
    "25P04",  # transaction_timeout
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "57P05",  # idle_session_timeout
    "53300",  # too_many_connections
}
_MISSING = {"42P01", "42703"}  # undefined_table, undefined_column
_SQLITE_MISSING = ("no such table", "no such column", "has no column")
_SQLITE_AGAIN = ("database is locked", "database table is locked", "database schema has changed")


def remedy_for(error: SQLAlchemyError) -> Remedy:
    """What helps against *error*."""
    if isinstance(error, (PoolTimeout, PendingRollbackError, ResourceClosedError)):
        return "reconnect"
    if not isinstance(error, DBAPIError):
        return "give up"
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        return _remedy_by_text(error)
    if state in _MISSING:
        return "init"
    if state in _AGAIN:
        return "again"
    if state in _RECONNECT or state.startswith("08") or error.connection_invalidated:
        return "reconnect"
    return "give up"


def _remedy_by_text(error: DBAPIError) -> Remedy:
    text = str(error.orig)
    if any(part in text for part in _SQLITE_MISSING):
        return "init"
    if any(part in text for part in _SQLITE_AGAIN):
        return "again"
    # Without SQLSTATE and not from SQLite: the connection itself failed.
    if error.connection_invalidated or type(error.orig).__module__.startswith("psycopg"):
        return "reconnect"
    return "give up"


def explain(error: SQLAlchemyError) -> CronJobsError:
    """*error* as one of ours, in one line, for a caller that cannot go on."""
    if remedy_for(error) == "init":
        missing = getattr(error, "orig", None)
        if missing is not None and "column" in str(missing):
            return TablesMissing(
                "The job tables are of another version: "
                f"{_first_line(missing)}. Run your migrations, or: flask jobs admin doctor"
            )
        return TablesMissing()
    cause = getattr(error, "orig", None) or error
    return DatabaseTrouble(
        f"The database cannot be used: {_first_line(cause)}. "
        "To learn more: flask jobs admin doctor",
        transient=remedy_for(error) in ("again", "reconnect"),
    )


def is_about_the_rows(trouble: DatabaseTrouble) -> bool:
    """Whether the database was well, and refused the very rows that it was given."""
    return isinstance(trouble.__cause__, (IntegrityError, DataError))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__
