"""Bookkeeping where there is one connection, which it shares with ``db.session``: tests of apps.

A test may work in a transaction that is rolled back at its end: ``db.session`` is bound to a
`Connection`, and what was written is seen there alone. Or the database is SQLite in memory: its
pool has one connection for everybody. Only the thread of the test may use it. So no worker with a
keeper runs there, but the helpers of `flask_cronjobs.testing` do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ..errors import DatabaseTrouble, SetupError
from .connection import Bookkeeping
from .errors import explain

T = TypeVar("T")


def is_shared(database: Engine | Connection) -> bool:
    """Return whether *database* is, or has, the only connection there is."""
    return isinstance(database, Connection) or isinstance(database.pool, StaticPool)


def refuse_shared(database: Engine | Connection) -> None:
    """Refuse to begin workers, which need connections of their own.

    :raises SetupError: *database* is one connection, in a transaction of a test.
    """
    if isinstance(database, Connection):
        raise SetupError(
            "db.session is bound to one connection, as in a test whose transaction is rolled back. "
            "A tick would not see what is written there. Use drain() of flask_cronjobs.testing."
        )


class SharedBookkeeping(Bookkeeping):
    """Bookkeeping on a connection that it shares with ``db.session``, in the same thread.

    In a transaction, each call is a savepoint. In memory, each call commits. Nothing is tried
    twice: nobody else could change what it depends on.

    :param database: for which `is_shared` is true.
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

    #: In one transaction or savepoint, too.
    transaction = call

    def _transact(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        return work(connection)

    @contextmanager
    def busy_for(self, seconds: float) -> Generator[None]:
        """Do nothing: nobody else has a connection to wait for."""
        yield

    @contextmanager
    def around_handler(self) -> Generator[None]:
        """Let a handler use the connection in this block.

        1. In a test's transaction, give it a savepoint: its commits and rollbacks end there.
        2. Then write the marks of ``once`` again: a rollback of the handler's may have undone them,
           and must not. They are written so that it does no harm to write them twice.

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
    "A handler has ended the transaction in which the test works: what it did cannot be rolled "
    "back. Give db.session join_transaction_mode='create_savepoint'."
)


@contextmanager
def borrowed(database: Engine | Connection) -> Generator[Connection]:
    """Yield the one connection of *database*, in a savepoint or a transaction that ends here.

    :raises DatabaseTrouble: in memory, somebody has uncommitted work, which would be committed.
    """
    if isinstance(database, Engine):
        _refuse_unfinished_work(database)
        with database.begin() as connection:
            yield connection
        return
    with database.begin_nested() if database.in_transaction() else database.begin():
        yield database


def _refuse_unfinished_work(engine: Engine) -> None:
    # Ask the driver directly: a connection that goes back to this pool rolls everything back.
    pool: Any = engine.pool
    import sqlite3  # Here, since an app with PostgreSQL does not need it.

    if getattr(pool.connection.dbapi_connection, "in_transaction", False):
        raise DatabaseTrouble(
            "The job tables cannot be written: the database is SQLite in memory, with one "
            "connection for everybody, and db.session has uncommitted work there. Commit (or roll "
            "back) the session first.",
            transient=True,
        ) from sqlite3.OperationalError("database is locked")
