"""Notice that a handler ended its session's transaction without the session: by SQL, or its driver.

``text("COMMIT")`` and the driver's ``commit()`` pass by all events of the session. What the handler
wrote until then is committed without its run's success. A savepoint tells: it goes with its
transaction, however that ends.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from ...errors import AtomicCommit
from ...log import logger

_ENDED = (
    "A handler with atomic=True ended the transaction of db.session by SQL (COMMIT, ROLLBACK) or "
    "by its driver's commit(). What it wrote before is committed without the run's success, so "
    "the run is not repeated. Let the session alone end it: remove the statement, or atomic=True."
)
_NAME = "cronjobs_atomic"
#: What may write. Whatever this misses gets its savepoint before the next statement.
_WRITES = r"(?is)\s*(WITH\b.*)?\b(INSERT|UPDATE|DELETE|REPLACE|CREATE|ALTER|DROP)\b"
#: PostgreSQL's codes for a savepoint that is not there, and for no transaction at all.
_MISSING = ("3B001", "25P01")
_IDLE = 0  # As libpq numbers it.


class TransactionWatch:
    """Watches a session's transactions on one engine; `check` raises if the handler ended one.

    The session may have others, on further binds or on a replica: they are the handler's affair.

    sqlite3 begins a transaction only before the first statement that writes. So does this: a
    transaction that has read before it writes fails if anybody else has written in between.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_postgresql = engine.dialect.name == "postgresql"
        self._connection: Connection | None = None
        self._driver: Any = None
        self._is_set = False
        self._changes = 0
        self._in_statement = False
        self._ended = False

    def check(self, verb: str = "RELEASE") -> None:
        """Raise `AtomicCommit` if the handler ended a transaction by itself.

        :param verb: what ends the savepoint.
        """
        connection = self._connection
        if connection is not None and connection.in_transaction():
            self._look(connection, verb)
        if self._ended:
            raise AtomicCommit(_ENDED, committed=True)

    def check_failed(self, error: BaseException) -> None:
        """Do so from *error*, which the handler raised."""
        try:
            self.check("ROLLBACK TO")
        except AtomicCommit as ended:
            raise ended from error
        except Exception:
            logger.debug("the connection of a failed handler cannot be asked", exc_info=True)

    def begin(self, session: Session, transaction: SessionTransaction, c: Connection) -> None:
        """Set the savepoint in *transaction*, or wait with it until something is written."""
        if transaction.parent is not None or c.engine is not self._engine:
            return
        self._connection, self._driver = c, c.connection.dbapi_connection
        self._is_set = self._in_statement = False
        self._changes = self._total_changes()
        if self._is_postgresql or self._is_open():
            self._set()
        event.listen(c, "before_cursor_execute", self._before)
        event.listen(c, "after_cursor_execute", self._after)
        event.listen(c, "rollback", self._rollback)

    def forget(self) -> None:
        """Let go of the connection, which holds this object."""
        self._connection = None

    def _before(self, _: object, __: object, statement: str, *___: object) -> None:
        if self._connection is None:
            return  # The handler has ended.
        if not self._is_open() and self._has_written():
            self._ended = True
        elif not self._is_set and (self._is_open() or re.match(_WRITES, statement)):
            self._set()
        self._in_statement = True

    def _after(self, *_: object) -> None:
        self._in_statement = False

    def _rollback(self, connection: Connection) -> None:
        self._look(connection, "ROLLBACK TO")

    def _set(self) -> None:
        if not self._is_postgresql and not self._is_open():
            self._execute("BEGIN")
        self._execute(f"SAVEPOINT {_NAME}")
        self._is_set = True

    def _look(self, connection: Connection, verb: str) -> None:
        """Note whether the savepoint has gone, by ending it."""
        if connection.invalidated:
            return  # An interruption inside a query has closed it.
        if not self._is_open():
            # A statement that fails may roll back all by itself: SQLite's if the disk is full, and
            # PostgreSQL's COMMIT.
            self._ended = self._ended or (self._has_written() and not self._in_statement)
        elif self._is_set:
            self._is_set = False
            try:
                self._execute(f"{verb} SAVEPOINT {_NAME}")
            except Exception as error:
                self._ended = self._ended or _is_missing(error)
                logger.debug("the savepoint of an atomic run has not ended", exc_info=True)

    def _execute(self, statement: str) -> None:
        # Past the session, whose listeners and those of its connection need not hear of it.
        try:
            self._driver.execute(statement)
        except BaseException as error:
            if not isinstance(error, Exception) and self._connection is not None:
                self._connection.invalidate(error)  # As SQLAlchemy does with its own statements.
            raise

    def _is_open(self) -> bool:
        """Return, without asking the database, whether a transaction is open."""
        if self._is_postgresql:
            return bool(self._driver.info.transaction_status != _IDLE)
        return bool(self._driver.in_transaction)

    def _has_written(self) -> bool:
        """Return whether a transaction was open that may have written something."""
        return self._is_set or self._total_changes() != self._changes

    def _total_changes(self) -> int:
        """Return how many rows SQLite's connection has changed, also past the session."""
        return 0 if self._is_postgresql else int(self._driver.total_changes)


def _is_missing(error: Exception) -> bool:
    """Return whether *error* says that there is no such savepoint."""
    return getattr(error, "sqlstate", "") in _MISSING or "no such savepoint" in str(error)


@contextmanager
def watched(session: Session, bind: Engine | Connection) -> Generator[TransactionWatch]:
    """Watch the transaction that *session* has on *bind*, and those that it begins there."""
    watch = TransactionWatch(bind.engine)
    event.listen(session, "after_begin", watch.begin)
    try:
        if (begun := session.get_transaction()) is not None:
            watch.begin(session, begun, session.connection({"bind": bind}))
        yield watch
    finally:
        event.remove(session, "after_begin", watch.begin)
        watch.forget()
