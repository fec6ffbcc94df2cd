"""SQLite's one write lock, and its transactions, where its driver does not begin or end them.

While ``db.session`` holds the lock, our own connection cannot write.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ..errors import DatabaseTrouble, SetupError
from .connection import Bookkeeping


def mend_transactions(engine: Engine) -> None:
    """Let SQLite connections of *engine* begin before savepoints, and end before they are closed.

    A savepoint that opens a transaction: sqlite3 sends BEGIN before INSERT, UPDATE and DELETE, but
    not before SAVEPOINT. To SQLite, such a savepoint is the whole transaction, so releasing it
    commits: runs that were enqueued in it would survive a rollback of the session, and work in it
    would not be atomic. At that time it is too late to begin one, so it must be done when the
    savepoint is made.

    A connection that SQLAlchemy invalidates, as it does after an interruption inside a query: to
    SQLite a closed connection keeps its transaction, and the write lock, for as long as somebody
    has an open cursor. Frames of SQLAlchemy's have one, and live on in the exception's traceback.
    """
    if engine.dialect.name == "sqlite":
        event.listen(engine, "savepoint", _begin)
        event.listen(engine, "invalidate", _roll_back)


def _begin(connection: Connection, name: str | None) -> None:
    driver: Any = connection.connection.dbapi_connection
    # An app whose driver leaves transactions to it (AUTOCOMMIT, or SQLAlchemy's recipe with a
    # listener that sends BEGIN) has decided by itself.
    ours = driver.isolation_level is not None and getattr(driver, "autocommit", False) is not True
    if ours and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN")


def _roll_back(driver: Any, _record: object, _error: object) -> None:
    with suppress(Exception):  # It may be broken, or closed already.
        driver.rollback()


def refuse_own_lock(session: Session, books: Bookkeeping) -> None:
    """Refuse to go on if the caller's own *session* holds the write lock that *books* needs.

    :raises SetupError: it does. Without this check, bookkeeping would wait for it until it fails.
    """
    if not session_holds_lock(session):
        return
    try:
        # An app may send BEGIN itself, and then a session that only reads looks the same. So try.
        with books, books.trying_once():
            books.transaction(lambda connection: None)
    except DatabaseTrouble as error:
        if not is_locked(error):
            raise
        raise SetupError(
            "The job tables cannot be written: db.session holds SQLite's write lock. Commit (or "
            "roll back) the session first."
        ) from None


def is_locked(trouble: DatabaseTrouble) -> bool:
    """Return whether the cause of *trouble* is SQLite's lock, and nothing else."""
    cause = str(trouble.__cause__)
    return "database is locked" in cause or "database table is locked" in cause


def session_holds_lock(session: Session) -> bool:
    """Return whether *session* may hold SQLite's write lock."""
    if session.get_bind().dialect.name != "sqlite" or not session.in_transaction():
        return False
    try:
        connection = session.connection().connection.driver_connection
    except SQLAlchemyError:  # For example, a failed flush has rolled back: it holds nothing.
        return False
    return bool(getattr(connection, "in_transaction", False))
