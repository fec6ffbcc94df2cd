"""Notice that a handler ended its session's transaction without the session: by SQL, or its driver.

``text("COMMIT")`` and the driver's ``commit()`` pass by all events of the session. What the handler
wrote until then is committed without its run's success.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session, SessionTransaction

from ...errors import AtomicCommit
from ...log import logger

_ENDED = (
    "A handler with atomic=True ended the transaction of db.session by SQL (COMMIT, ROLLBACK) or "
    "by its driver's commit(). What it wrote before is committed without the run's success, so "
    "the run is not repeated. Let the session alone end it: remove the statement, or atomic=True."
)


class TransactionWatch:
    """Watches a session's transactions on one engine; `check` raises if the handler ended one.

    The session may have others, on further binds or on a replica: they are the handler's affair.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._driver: Any = None
        self._in_statement = False
        self._ended = False

    def check(self) -> None:
        """Raise `AtomicCommit` if the handler ended a transaction by itself."""
        connection = self._connection
        if connection is not None and connection.in_transaction():
            self._note_state()
            self._ended = self._ended or self._is_another(connection)
        if self._ended:
            raise AtomicCommit(_ENDED, committed=True)

    def check_failed(self, error: BaseException) -> None:
        """Do so from *error*, which the handler raised."""
        try:
            # If a statement failed or was interrupted, the database may have rolled back all by
            # itself: SQLite does that if the disk is full.
            if self._ended or not self._in_statement:
                self.check()
        except AtomicCommit as ended:
            raise ended from error
        except Exception:
            logger.debug("the connection of a failed handler cannot be asked", exc_info=True)

    def begin(self, session: Session, transaction: SessionTransaction, c: Connection) -> None:
        """Remember which transaction *transaction* is."""
        if transaction.parent is not None or c.engine is not self._engine:
            return
        self._connection, self._driver = c, c.connection.dbapi_connection
        self._begin(c)
        event.listen(c, "before_cursor_execute", self._before)
        event.listen(c, "after_cursor_execute", self._after)
        event.listen(c, "rollback", self._rollback)

    def forget(self) -> None:
        """Let go of the connection, which holds this object."""
        self._connection = None

    def _before(self, *_: object) -> None:
        self._note_state()
        self._in_statement = True

    def _after(self, *_: object) -> None:
        self._in_statement = False
        self._note_state()

    def _rollback(self, _: Connection) -> None:
        if not self._in_statement:
            self._note_state()

    def _begin(self, connection: Connection) -> None:
        raise NotImplementedError

    def _note_state(self) -> None:
        """Look, without asking the database, whether the transaction has ended."""
        raise NotImplementedError

    def _is_another(self, connection: Connection) -> bool:
        """Return whether another transaction has begun meanwhile."""
        return False


class _PostgreSQLWatch(TransactionWatch):
    """The time of its begin tells a transaction from every other one on its connection."""

    _NOW = text("SELECT transaction_timestamp()")
    _IDLE, _IN_TRANSACTION = 0, 2  # As libpq numbers them.
    _begun: object = None

    def _begin(self, connection: Connection) -> None:
        self._begun = connection.scalar(self._NOW)

    def _note_state(self) -> None:
        if self._driver.info.transaction_status == self._IDLE:
            self._ended = True

    def _is_another(self, connection: Connection) -> bool:
        if self._driver.info.transaction_status != self._IN_TRANSACTION:
            return False  # After an error nothing can be asked, and nothing can be committed.
        return bool(connection.scalar(self._NOW) != self._begun)


class _SQLiteWatch(TransactionWatch):
    """SQLite does not number its transactions, but asking whether there is one costs nothing.

    pysqlite begins one only before the first statement that writes.
    """

    _changes = 0
    _wrote = False

    def _begin(self, connection: Connection) -> None:
        self._changes = self._driver.total_changes
        self._wrote = False

    def _note_state(self) -> None:
        if self._driver.in_transaction:
            self._wrote = True
        elif self._wrote or self._driver.total_changes != self._changes:
            self._ended = True


@contextmanager
def watched(session: Session, bind: Engine | Connection) -> Generator[TransactionWatch]:
    """Watch the transaction that *session* has on *bind*, and those that it begins there."""
    is_postgresql = bind.dialect.name == "postgresql"
    watch = _PostgreSQLWatch(bind.engine) if is_postgresql else _SQLiteWatch(bind.engine)
    event.listen(session, "after_begin", watch.begin)
    try:
        if (begun := session.get_transaction()) is not None:
            watch.begin(session, begun, session.connection({"bind": bind}))
        yield watch
    finally:
        event.remove(session, "after_begin", watch.begin)
        watch.forget()
