"""Notice that a handler ended its session's transaction without the session: by SQL, or its driver.

``text("COMMIT")`` and the driver's ``commit()`` pass by all events of the session. What the handler
wrote until then is committed without its run's success.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event, text
from sqlalchemy.orm import Session, SessionTransaction

from ...errors import AtomicCommit

_ENDED = (
    "A handler with atomic=True ended the transaction of db.session by SQL (COMMIT, ROLLBACK) or "
    "by its driver's commit(). What it wrote before is committed without the run's success, so "
    "the run is not repeated. Let the session alone end it: remove the statement, or atomic=True."
)


class TransactionWatch:
    """Watches the transactions of one session; `check` raises if one ended without the session."""

    def __init__(self) -> None:
        self._ended = False

    def check(self, session: Session) -> None:
        """Raise `AtomicCommit` if the handler ended a transaction of *session* by itself."""
        if (session.in_transaction() and self._is_another(session)) or self._ended:
            raise AtomicCommit(_ENDED, committed=True)

    def begin(self, session: Session, transaction: SessionTransaction, c: Connection) -> None:
        """Remember which transaction *transaction* is."""
        if transaction.parent is None:
            self._begin(c)

    def _begin(self, connection: Connection) -> None:
        raise NotImplementedError

    def _is_another(self, session: Session) -> bool:
        raise NotImplementedError


class _PostgreSQLWatch(TransactionWatch):
    """The time of its begin tells a transaction from every other one on its connection."""

    _NOW = text("SELECT transaction_timestamp()")
    _begun: object = None

    def _begin(self, connection: Connection) -> None:
        self._begun = connection.scalar(self._NOW)

    def _is_another(self, session: Session) -> bool:
        return self._begun is not None and session.scalar(self._NOW) != self._begun


class _SQLiteWatch(TransactionWatch):
    """SQLite does not number its transactions, but asking whether there is one costs nothing.

    pysqlite begins one only before the first statement that writes.
    """

    _driver: Any = None
    _changes = 0
    _wrote = False

    def _begin(self, connection: Connection) -> None:
        self._driver = connection.connection.dbapi_connection
        self._changes = self._driver.total_changes
        self._wrote = False
        event.listen(connection, "before_cursor_execute", self._note_state)
        event.listen(connection, "after_cursor_execute", self._note_state)

    def _note_state(self, *_: object) -> None:
        if self._driver.in_transaction:
            self._wrote = True
        elif self._wrote or self._driver.total_changes != self._changes:
            self._ended = True

    def _is_another(self, session: Session) -> bool:
        if self._driver is not None:
            self._note_state()
        return self._ended


@contextmanager
def watched(session: Session, dialect_name: str) -> Generator[TransactionWatch]:
    """Watch the transactions that *session* begins."""
    watch = _PostgreSQLWatch() if dialect_name == "postgresql" else _SQLiteWatch()
    event.listen(session, "after_begin", watch.begin)
    try:
        yield watch
    finally:
        event.remove(session, "after_begin", watch.begin)
