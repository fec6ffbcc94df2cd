"""The bookkeeping connection: apart from the app's sessions and pool, and hard to discourage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, Executable, Row
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from ..errors import DatabaseTrouble, SetupError
from .dialect import Dialect, dialect_of
from .errors import explain, remedy_for

T = TypeVar("T")
Rows: TypeAlias = "Sequence[Row[Any]]"

#: How long bookkeeping outside a worker tries again, in seconds.
PATIENCE = 15.0
#: How long one SQLite statement waits for another writer, in seconds. Short, so that a keeper that
#: waits still beats and watches; trying again makes it long.
SQLITE_BUSY = 1.0


class Bookkeeping:
    """One connection for bookkeeping, made when first needed and made anew after trouble.

    It is not of the app's pool, so an app with a pool of one still has its one. It is set to
    AUTOCOMMIT whatever the app's engine is set to: a single statement commits by itself, and
    `transaction` begins and ends its own. Not for use by two threads at once.

    :param engine: the app's engine; its connect arguments and events apply.
    :param patience: seconds for which a call goes on trying when the database is in trouble.
    """

    def __init__(self, engine: Engine, patience: float = PATIENCE) -> None:
        refuse_shared_memory(engine)
        self.engine = engine
        self.patience = patience
        self.dialect: Dialect = dialect_of(engine)
        self._connection: Connection | None = None
        self._raw: DBAPIConnection | None = None

    def __enter__(self) -> Bookkeeping:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def rows(
        self,
        statement: Executable,
        parameters: Mapping[str, Any] | None = None,
        repeat: bool = True,
    ) -> Rows:
        """Run one statement, which commits by itself, and return its rows.

        :param repeat: see `attempt`.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: trying again did not help.
        """
        return self.attempt(lambda connection: execute(connection, statement, parameters), repeat)

    def transaction(self, work: Callable[[Connection], T], repeat: bool = True) -> T:
        """Run *work* in one transaction: committed at its end, rolled back if it raises.

        Trouble runs the whole of *work* again, so it must do nothing but database work.

        :param repeat: see `attempt`.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: trying again did not help.
        """
        return self.attempt(lambda connection: self._transact(connection, work), repeat)

    def attempt(self, work: Callable[[Connection], T], repeat: bool = True) -> T:
        """Call *work* with the connection; after trouble again, until patience runs out.

        :param repeat: whether again also after a connection broke, when nobody knows whether the
            server had committed; False where doing it twice would do harm.
        """
        until = time.monotonic() + self.patience
        pause = 0.02
        while True:
            try:
                return work(self._connected())
            except SQLAlchemyError as error:
                remedy = remedy_for(error)
                if remedy in ("create tables", "fail"):
                    self.close()
                    raise explain(error, self.engine) from error
                if remedy == "reconnect":
                    self._start_over()
                over = remedy == "reconnect" and not repeat
                if over or time.monotonic() + pause >= until:
                    raise explain(error, self.engine) from error
            except BaseException:
                # An interruption in the midst of it: nobody knows what the connection is at.
                self._drop()
                raise
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        self._drop(broken=False)

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> Connection:
        # From no pool of the app's: a handler may hold all that it has. A pool made like it has the
        # app's connect arguments and events.
        dbapi: Any = self.engine.dialect.loaded_dbapi
        try:
            own = self.engine.pool.recreate().connect()
        except dbapi.Error as error:
            raise DBAPIError.instance(
                None, None, error, dbapi.Error, dialect=self.engine.dialect
            ) from error
        own.detach()
        connection = Connection(self.engine, own)
        raw = connection.connection.dbapi_connection
        assert raw is not None
        self._connection, self._raw = connection, raw
        try:
            self.engine.dialect.set_isolation_level(raw, "AUTOCOMMIT")
            self.dialect.prepare(connection, SQLITE_BUSY)
        except BaseException:
            self._drop()
            raise
        return connection

    def _start_over(self) -> None:
        # Whatever else the pool holds goes to the same dead server: dispose of it as well.
        self._drop()
        with suppress(SQLAlchemyError):
            self.engine.dispose()

    def _drop(self, broken: bool = True) -> None:
        connection, self._connection = self._connection, None
        raw, self._raw = self._raw, None
        if connection is None:
            return
        with suppress(SQLAlchemyError):
            if broken:
                connection.invalidate()
            connection.close()
        # SQLAlchemy forgets a detached connection that it finds broken, and leaves it open.
        with suppress(Exception):
            if raw is not None:
                raw.close()

    def _transact(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        # AUTOCOMMIT makes SQLAlchemy's begin() a fiction: so BEGIN is said outright.
        connection.exec_driver_sql(self.dialect.begin)
        try:
            value = work(connection)
            connection.exec_driver_sql("COMMIT")
        except BaseException:
            try:
                connection.exec_driver_sql("ROLLBACK")
            except SQLAlchemyError:
                self._start_over()
            raise
        return value


def refuse_shared_memory(engine: Engine) -> None:
    """Refuse an engine whose one connection is shared by everybody.

    :raises SetupError: our commit on it would commit a handler's half-done work.
    """
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        raise SetupError(
            "The database is SQLite in memory, one connection for everybody: a tick would commit "
            "the half-done work of its handlers. Use a file, such as sqlite:///app.db (in tests, "
            "one in the test's temporary folder)."
        )


def execute(
    connection: Connection, statement: Executable, parameters: Mapping[str, Any] | None
) -> Rows:
    """Run one statement on a bookkeeping connection, which commits by itself; its rows."""
    result = connection.execute(statement, parameters or {})
    rows: Rows = result.all() if result.returns_rows else ()
    # AUTOCOMMIT has committed already; this ends SQLAlchemy's own idea of a transaction.
    connection.commit()
    return rows


__all__ = ["Bookkeeping", "DatabaseTrouble", "Rows", "execute", "refuse_shared_memory"]
