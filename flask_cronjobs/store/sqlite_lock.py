"""SQLite's one write lock: while ``db.session`` holds it, our own connection cannot write."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ..errors import DatabaseTrouble, SetupError
from .connection import Bookkeeping


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
