"""Bookkeeping on the connection of ``db.session``, for tests of apps that have only that one.

A test may run in a transaction that is rolled back at its end: ``db.session`` is bound to a
`Connection`, and only that connection sees what was written. Or the database is SQLite in memory,
whose pool has one connection for all. Only the test's thread may use it, so a worker with a keeper
cannot run there, but the helpers of `flask_cronjobs.testing` can.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ..errors import DatabaseTrouble, SetupError
from .connection import Bookkeeping
from .errors import explain

T = TypeVar("T")


class SharedBookkeeping(Bookkeeping):
    """Bookkeeping on a connection that it shares with ``db.session``, in the same thread.

    In a test's transaction each call is a savepoint; in memory each call commits. A call is not
    retried, since no other connection could change the outcome.

    :param database: an engine or connection for which `engines.is_shared` is true.
    """

    def __init__(self, database: Engine | Connection) -> None:
        super().__init__(database.engine)
        self._database = database
        self._noted: list[Callable[[Connection], Any]] | None = None

    def call(self, work: Callable[[Connection], T], repeat: bool = True) -> T:
        """Call *work* with the connection.

        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: *work* failed; or, in memory, ``db.session`` has uncommitted work.
        """
        try:
            with borrowed(self._database) as connection:
                value = work(connection)
        except SQLAlchemyError as error:
            raise explain(error, self.engine) from error
        if self._noted is not None:
            self._noted.append(work)
        return value

    #: A call is one transaction or savepoint already.
    transaction = call

    def _transact(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        return work(connection)

    @contextmanager
    def busy_for(self, seconds: float) -> Generator[None]:
        """Do nothing, since there is no other connection to wait for."""
        yield

    @contextmanager
    def around_handler(self) -> Generator[None]:
        """Let a handler use the connection in this block.

        1. In a test's transaction, the handler gets a savepoint, which its commits and rollbacks
           cannot leave.
        2. Afterwards the marks of ``once`` are written again, since the handler may have rolled
           them back. Writing them twice does no harm.

        :raises SetupError: the handler has ended the test's transaction.
        """
        marks: list[Callable[[Connection], Any]] = []
        self._noted = marks
        try:
            with _own_savepoint(self._database):
                yield
        finally:
            self._noted = None
        for work in marks:
            self.call(work)


@contextmanager
def _own_savepoint(database: Engine | Connection) -> Generator[None]:
    if isinstance(database, Engine):
        yield
        return
    whole = database.get_transaction()
    try:
        with borrowed(database):
            yield
    except SQLAlchemyError as error:
        raise SetupError(_ENDED) from error
    if whole is not None and database.get_transaction() is not whole:
        raise SetupError(_ENDED)


_ENDED = (
    "A handler has ended the transaction in which the test runs, so its work cannot be rolled "
    "back. Give db.session join_transaction_mode='create_savepoint'."
)


@contextmanager
def borrowed(database: Engine | Connection) -> Generator[Connection]:
    """Yield the one connection of *database*, in a savepoint or a transaction that ends here.

    :raises DatabaseTrouble: in memory, ``db.session`` has uncommitted work, which would be
        committed.
    """
    if isinstance(database, Engine):
        _refuse_unfinished_work(database)
        with database.begin() as connection:
            yield connection
        return
    with database.begin_nested() if database.in_transaction() else database.begin():
        yield database


def _refuse_unfinished_work(engine: Engine) -> None:
    # Ask the driver directly: returning a connection to this pool rolls everything back.
    pool: Any = engine.pool
    import sqlite3  # Here, since an app with PostgreSQL does not need it.

    if getattr(pool.connection.dbapi_connection, "in_transaction", False):
        raise DatabaseTrouble(
            "The job tables cannot be written: the database is SQLite in memory, where all code "
            "shares one connection, and db.session has uncommitted work there. Commit (or roll "
            "back) the session first.",
            transient=True,
        ) from sqlite3.OperationalError("database is locked")
