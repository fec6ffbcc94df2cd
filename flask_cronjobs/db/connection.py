"""The bookkeeping connection: separate from the app's sessions and pool, with retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, Row, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import SQLAlchemyError

from ..errors import DatabaseTrouble, SetupError
from .dialect import Dialect, busy_timeout, dialect_of, load_odd_values
from .engines import USE_UTF8, connect_apart, refuse_shared_memory, unfit_encoding
from .errors import explain, is_refused, remedy_for
from .statements import deadlines, keep_plans

T = TypeVar("T")
B = TypeVar("B", bound="Bookkeeping")
Rows: TypeAlias = "Sequence[Row[Any]]"
#: A statement and its parameters.
Statement: TypeAlias = "tuple[Executable, Mapping[str, Any]]"

#: Seconds for which a failing call is retried by default. A worker sets its own.
RETRY_SECONDS = 15.0
#: Seconds that one statement or transaction may take on PostgreSQL.
STATEMENT_SECONDS = 30.0
#: Seconds that one SQLite statement waits for another writer. This is short so that the keeper can
#: send heartbeats between tries; retries make the whole wait long enough.
SQLITE_BUSY_SECONDS = 1.0


class Bookkeeping:
    """One connection for bookkeeping, opened when first needed and reopened after an error.

    It does not come from the app's pool, so an app with a small pool loses no connection to it. It
    is in AUTOCOMMIT mode whatever the app's engine uses: a single statement commits on its own, and
    `transaction` begins and ends its own transaction. It is not thread-safe.

    It uses the engine's connect arguments and listeners, but not the engine's isolation level.

    :param engine: the app's engine.
    :param patience: seconds for which a call is retried after transient errors.
    :param limit: seconds that one statement or transaction may run on PostgreSQL. After that it is
        cancelled, which counts as a transient error.
    :param guard: makes a context around each try, such as one that holds interruptions back.
    """

    def __init__(
        self,
        engine: Engine,
        patience: float = RETRY_SECONDS,
        limit: float = STATEMENT_SECONDS,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.engine = engine
        self.patience: float = patience
        self.limit: float = limit
        self.guard: Callable[[], AbstractContextManager[None]] = guard
        self.dialect: Dialect = dialect_of(engine)
        self._connection: Connection | None = None
        self._raw: DBAPIConnection | None = None
        self._may_be_committed = False

    def __enter__(self: B) -> B:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def rows(
        self,
        statement: Executable,
        parameters: Mapping[str, Any] | None = None,
        repeat: bool = True,
    ) -> Rows:
        """Run one statement, which commits on its own, and return its rows.

        :param repeat: see `call`.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: the statement failed, and retries did not help.
        """
        return self.call(partial(execute, statement=statement, parameters=parameters), repeat)

    def rows_of_each(self, statements: Sequence[Statement], repeat: bool = True) -> Sequence[Rows]:
        """Run *statements* in order in one transaction; return the rows of each.

        PostgreSQL receives them in one round trip, so only the last one's rows have column names.

        :param repeat: see `call`.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: a statement failed, and retries did not help.
        """
        if len(statements) == 1:
            return [self.rows(*statements[0], repeat)]
        return self.call(partial(self._each, statements), repeat)

    def transaction(self, work: Callable[[Connection], T], repeat: bool = True) -> T:
        """Run *work* in one transaction; commit when it returns, roll back if it raises.

        A retry calls *work* from the start, so it must do nothing but database work.

        :param repeat: see `call`.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: *work* failed, and retries did not help.
        """
        return self.call(partial(self._transact, work=work), repeat)

    def call(self, work: Callable[[Connection], T], repeat: bool = True) -> T:
        """Call *work* with the connection, and retry it after errors until `patience` runs out.

        :param repeat: whether to retry after a broken connection too, when it is unknown whether
            the server committed. Pass False if running *work* twice would do harm.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: *work* failed, and retries did not help.
        """
        until = time.monotonic() + self.patience
        pause = 0.02
        while True:
            try:
                with self.guard():
                    return self._bounded(work)
            except SQLAlchemyError as error:
                remedy = remedy_for(error)
                if remedy in ("create tables", "fail"):
                    self.close()
                    raise explain(error, self.engine) from error
                if remedy == "reconnect":
                    self._start_over()
                is_broken = remedy == "reconnect" and not is_refused(error)
                is_unknown = is_broken and self._may_be_committed and not repeat
                if is_unknown or time.monotonic() + pause >= until:
                    raise explain(error, self.engine, is_unknown) from error
            except BaseException:
                # An interruption leaves the connection in an unknown state.
                self.close(broken=True)
                raise
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _bounded(self, work: Callable[[Connection], T]) -> T:
        self._may_be_committed = False
        connection = self._connection or self._connect()
        self._may_be_committed = True
        if self.dialect.one_writer:  # SQLite's busy timeout bounds its waits.
            return work(connection)
        with deadlines.within(self.limit, self._raw):
            return work(connection)

    @contextmanager
    def trying_once(self) -> Generator[None]:
        """Turn retries off in this block."""
        patience, self.patience = self.patience, 0.0
        try:
            yield
        finally:
            self.patience = patience

    @contextmanager
    def busy_for(self, seconds: float) -> Generator[None]:
        """Let each statement in this block wait *seconds* for another writer of a SQLite file."""
        self.rows(text(busy_timeout(seconds)))
        try:
            yield
        finally:
            self.rows(text(busy_timeout(SQLITE_BUSY_SECONDS)))

    @contextmanager
    def lent(self, patience: float, limit: float) -> Generator[None]:
        """Lend this to another thread in this block, with its own *patience* and *limit*.

        It keeps its connection on PostgreSQL, where a new one takes 10 ms and plans each statement
        again. On SQLite a new one is cheap, and the old one may be usable only in its own thread.
        """
        before = self.patience, self.limit, self.guard
        self.patience, self.limit, self.guard = patience, limit, nullcontext
        if self.dialect.one_writer:
            self.close()
        try:
            yield
        finally:
            self.patience, self.limit, self.guard = before
            if self.dialect.one_writer:
                self.close()

    def close(self, broken: bool = False) -> None:
        """Close the connection; a later call opens a new one.

        :param broken: whether the connection is in an unknown state.
        """
        connection, self._connection = self._connection, None
        raw, self._raw = self._raw, None
        if connection is None:
            return
        with suppress(SQLAlchemyError):
            if broken:
                connection.invalidate()
            connection.close()
        # SQLAlchemy drops a broken detached connection without closing it.
        with suppress(Exception):
            if raw is not None:
                raw.close()

    def _connect(self) -> Connection:
        refuse_shared_memory(self.engine)
        connection = connect_apart(self.engine)
        raw = connection.connection.dbapi_connection
        assert raw is not None
        self._connection, self._raw = connection, raw
        try:
            if not self.dialect.one_writer:
                raw.commit()  # See `engines.end_transactions_of_listeners`.
            self.engine.dialect.set_isolation_level(raw, "AUTOCOMMIT")
            if self.dialect.one_writer:
                _use_explicit_transactions(raw)
                connection.exec_driver_sql(busy_timeout(SQLITE_BUSY_SECONDS))
                connection.commit()
            elif (unfit := unfit_encoding(raw)) is not None:
                raise SetupError(f"{unfit} {USE_UTF8}")
            else:
                load_odd_values(raw)
                keep_plans(raw)
        except BaseException:
            self.close(broken=True)
            raise
        return connection

    def _start_over(self) -> None:
        # The pool's other connections lead to the same dead server, so dispose of them too.
        self.close(broken=True)
        with suppress(SQLAlchemyError):
            self.engine.dispose()

    def _each(self, statements: Sequence[Statement], connection: Connection) -> list[Any]:
        # `keep_plans` made this cursor class; without pipelines it holds no statements back.
        cursors: Any = getattr(self._raw, "cursor_factory", None)
        if not hasattr(cursors, "held"):
            return self._transact(connection, partial(_in_turn, statements))
        *earlier_statements, last_statement = statements
        try:
            cursors.collects = True
            for statement in earlier_statements:
                connection.execute(*statement)
            cursors.collects = False
            rows = execute(connection, *last_statement)
            return [*(cursor.fetchall() for cursor, _ in cursors.held), rows]
        finally:
            cursors.collects = False
            cursors.held.clear()

    def _transact(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        # SQLAlchemy's begin() sends nothing in AUTOCOMMIT mode, so send BEGIN ourselves.
        self._may_be_committed = False
        if self.dialect.one_writer:
            leave_transaction(connection)
        connection.exec_driver_sql(self.dialect.begin)
        try:
            value = work(connection)
            self._may_be_committed = True
            connection.exec_driver_sql("COMMIT")
        except BaseException:
            try:
                connection.exec_driver_sql("ROLLBACK")
            except SQLAlchemyError:
                self._start_over()
            raise
        return value


def together(books: Bookkeeping, work: Callable[[Bookkeeping], T], repeat: bool = True) -> T:
    """Call *work*, and commit everything it writes in one transaction.

    :param work: must do nothing but database work, since it may be called again from the start.
    :param repeat: see `Bookkeeping.call`.
    """
    return books.transaction(lambda connection: work(_Together(books, connection)), repeat)


class _Together(Bookkeeping):
    """Bookkeeping whose statements and transactions join a transaction that is already open."""

    def __init__(self, books: Bookkeeping, connection: Connection) -> None:
        super().__init__(books.engine)
        self._open = connection

    def rows(
        self,
        statement: Executable,
        parameters: Mapping[str, Any] | None = None,
        repeat: bool = True,
    ) -> Rows:
        return _rows_of(self._open.execute(statement, parameters or {}))

    def call(self, work: Callable[[Connection], T], repeat: bool = True) -> T:
        return work(self._open)

    transaction = call

    def _transact(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        return work(connection)


def _in_turn(statements: Sequence[Statement], connection: Connection) -> list[Rows]:
    return [_rows_of(connection.execute(*statement)) for statement in statements]


def _rows_of(result: CursorResult[Any]) -> Rows:
    return result.all() if result.returns_rows else ()


def leave_transaction(connection: Connection) -> None:
    """End the transaction that an app's listener may have begun on a bookkeeping connection.

    SQLAlchemy's documentation for SQLite has a listener that sends BEGIN whenever SQLAlchemy begins
    a transaction. Inside one, SQLite refuses our own BEGIN and some PRAGMAs.
    """
    if not connection.in_transaction():
        connection.begin()
    driver: Any = connection.connection.dbapi_connection
    if getattr(driver, "in_transaction", False):  # psycopg has no such attribute.
        driver.rollback()


def _use_explicit_transactions(driver: Any) -> None:
    """Make sqlite3 begin no transactions itself, whatever ``autocommit`` the app has set."""
    import sqlite3

    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None)  # Python 3.12 and later.
    if legacy is not None and isinstance(driver, sqlite3.Connection):
        driver.rollback()  # A connection with autocommit=False starts in a transaction.
        driver.autocommit = True  # type: ignore[attr-defined,unused-ignore]
        driver.autocommit = legacy  # type: ignore[attr-defined,unused-ignore]


def execute(
    connection: Connection, statement: Executable, parameters: Mapping[str, Any] | None
) -> Rows:
    """Run one statement, which commits on its own, on a bookkeeping connection; return its rows."""
    rows = _rows_of(connection.execute(statement, parameters or {}))
    # AUTOCOMMIT has committed already; this ends the transaction that SQLAlchemy assumes. A test's
    # transaction stays open: see `SharedBookkeeping`.
    if not connection.in_nested_transaction():
        connection.commit()
    return rows


def is_locked(trouble: DatabaseTrouble) -> bool:
    """Return whether the cause of *trouble* is SQLite's lock, and nothing else."""
    cause = str(trouble.__cause__)
    return "database is locked" in cause or "database table is locked" in cause
