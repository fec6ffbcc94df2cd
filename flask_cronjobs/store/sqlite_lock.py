"""SQLite's one write lock: who holds it in ``db.session`` keeps our own connection out."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ..errors import DatabaseTrouble, SetupError
from .connection import Bookkeeping


def refuse_own_lock(session: Session, engine: Engine) -> None:
    """Fail fast and clearly if the caller's own *session* holds the write lock.

    :raises SetupError: it does; otherwise bookkeeping would wait for it, and give up.
    """
    if not session_holds_lock(session):
        return
    try:
        # An app may begin its transactions outright, so that one that only reads looks the same.
        with Bookkeeping(engine, patience=0.0) as books:
            books.transaction(lambda connection: None)
    except DatabaseTrouble as error:
        if not error.transient:
            raise
        raise SetupError(
            "The job tables cannot be written: db.session holds SQLite's write lock. Commit (or "
            "roll back) the session first."
        ) from error


def session_holds_lock(session: Session) -> bool:
    """Whether *session* may hold SQLite's write lock."""
    if session.get_bind().dialect.name != "sqlite" or not session.in_transaction():
        return False
    try:
        connection = session.connection().connection.driver_connection
    except SQLAlchemyError:  # A flush failed, say, and has rolled back: it holds nothing.
        return False
    return bool(getattr(connection, "in_transaction", False))
