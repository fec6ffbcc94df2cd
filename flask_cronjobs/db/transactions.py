"""The transactions of sessions: blocks whose work commits as one, and SQLite's lock.

The caller of a guarded block adds its last statements and commits; the code inside cannot commit
the session. A COMMIT that it sends as SQL or through its driver goes unnoticed.

The last part is about SQLite's single write lock. While ``db.session`` holds it, our own connection
cannot write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction

from ..errors import AtomicCommit, DatabaseTrouble, SetupError
from .connection import Bookkeeping, is_locked
from .database import Database
from .dialect import dialect_of
from .engines import end_transactions_of_listeners
from .errors import sqlstate_of
from .statements import deadlines

T = TypeVar("T")


class Words(NamedTuple):
    """The words of an error about guarded code.

    :ivar who: names the code, such as ``A step``.
    :ivar beside: names what commits together with its work, such as ``its row``.
    :ivar instead: what the user can do instead, such as ``do it between two steps``.
    """

    who: str
    beside: str
    instead: str

    @property
    def committed(self) -> str:
        """The message for code that called ``session.commit()``."""
        return (
            f"{self.who} called db.session.commit(): its work commits together with {self.beside}. "
            f"Remove the commit (begin_nested() is fine), or {self.instead}."
        )

    @property
    def removed(self) -> str:
        """The message for code that removed the session."""
        return (
            f"{self.who} called db.session.remove(), so its work is in a session that does not "
            f"commit with {self.beside}. Remove the call, or {self.instead}."
        )


def _bind_of(db: Database, session: Session) -> Engine | Connection:
    """Return the engine, or the connection to which a test has bound *session*.

    It is the job tables' engine, since a session with further binds or a replica has several.
    """
    bind = session.get_bind()
    return bind if isinstance(bind, Connection) else db.engine


@contextmanager
def isolated(db: Database) -> Generator[None]:
    """Set the isolation level of all transactions that the session begins in this block.

    An app may run its engine in AUTOCOMMIT, where nothing is atomic. In REPEATABLE READ, a
    heartbeat on the run's row would make the finalizing write fail to serialize.

    A test that runs in its own transaction has begun it already, and there is no heartbeat.
    """
    session = db.session()
    bind = _bind_of(db, session)
    if isinstance(bind, Connection):
        yield
        return
    if session.in_transaction() and commits_by_itself(session.connection({"bind": bind})):
        # A receiver of appcontext_pushed or run_started has used the session; its work is
        # committed already.
        session.commit()
    level = dialect_of(bind).atomic_level
    end_transactions_of_listeners(bind)

    def begin(session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            session.connection({"bind": bind}, {"isolation_level": level})

    with _listening(session, "after_transaction_create", begin):
        yield


def commits_by_itself(connection: Connection) -> bool:
    """Return whether each statement on *connection*, which is in use, commits at once."""
    driver: Any = connection.connection.dbapi_connection
    autocommit = getattr(driver, "autocommit", False) is True
    if connection.dialect.name != "sqlite":  # A handler may use any database.
        return autocommit
    # An app that handles transactions itself has sent BEGIN by now.
    return not driver.in_transaction and (autocommit or driver.isolation_level is None)


@contextmanager
def _listening(session: Session, name: str, listener: Callable[..., None]) -> Generator[None]:
    event.listen(session, name, listener)
    try:
        yield
    finally:
        event.remove(session, name, listener)


@contextmanager
def guarded(
    db: Database, words: Words, failed: Callable[[], None] = lambda: None
) -> Generator[None]:
    """Keep the code in this block from committing the session; flush the session at the end.

    :param failed: called first if the code raises.
    :raises AtomicCommit: the code committed or removed the session.
    """
    session = db.session()

    def refuse(session: Session) -> None:
        if not session.in_nested_transaction():
            raise AtomicCommit(words.committed)

    with _listening(session, "before_commit", refuse):
        try:
            yield
            if db.session() is not session:
                raise AtomicCommit(words.removed)
            while (savepoint := session.get_nested_transaction()) is not None:
                savepoint.commit()
            session.flush()
        except BaseException:
            failed()
            raise


#: Seconds for which one try of a step waits for a locked row.
STEP_LOCK_SECONDS = 0.1


#: Sets the lock timeout until the transaction ends, and returns the previous one.
_LIMIT_LOCKS = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', :limit, true)"


@contextmanager
def bounded(connection: Connection, seconds: float) -> Generator[None]:
    """Limit the statements in this block to *seconds* on PostgreSQL, as bookkeeping does.

    Use it where interruptions are held back, since a connection may hang.
    """
    if dialect_of(connection.engine).one_writer:  # SQLite's busy timeout bounds its waits.
        yield
        return
    with deadlines.within(seconds, connection.connection.dbapi_connection):
        yield


def unless_locked(connection: Connection, work: Callable[[Connection], T]) -> T | None:
    """Call *work*; if a row that it needs stays locked, undo its writes and return None.

    This is for PostgreSQL. On SQLite, *connection* waits for the single lock for as long as the
    app's busy timeout says.
    """
    if dialect_of(connection.engine).one_writer or connection.in_nested_transaction():
        return work(connection)
    connection.exec_driver_sql("SAVEPOINT cronjobs_step")
    previous = connection.execute(
        text(_LIMIT_LOCKS), {"limit": f"{STEP_LOCK_SECONDS * 1000:.0f}ms"}
    ).scalar()
    try:
        result = work(connection)
        # At the commit, the app's hooks and deferred constraints may wait for longer.
        connection.execute(text(_LIMIT_LOCKS), {"limit": previous})
        return result
    except DBAPIError as error:
        if sqlstate_of(error.orig) != "55P03":  # lock_not_available
            raise
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT cronjobs_step")
        return None


def refuse_own_lock(session: Session, books: Bookkeeping) -> None:
    """Raise an error if the caller's own *session* holds the write lock that *books* needs.

    :raises SetupError: it holds the lock. Without this check, bookkeeping would wait until it
        fails.
    """
    # If the app sends BEGIN itself, a session that only reads looks the same, so try to write.
    if session_holds_lock(session):
        with books, refusing_own_lock(session, books, "The job tables cannot be written", "first"):
            books.transaction(lambda connection: None)


@contextmanager
def refusing_own_lock(
    session: Session, books: Bookkeeping, trouble: str, when: str
) -> Generator[None]:
    """Fail at once, with a clear error, if *session* holds the lock that this block needs.

    :param trouble: what cannot be done while it holds the lock.
    :param when: when to commit the session instead.
    :raises SetupError: the session holds the lock.
    """
    if not session_holds_lock(session):
        yield
        return
    try:
        with books.trying_once():
            yield
    except DatabaseTrouble as error:
        if not is_locked(error):
            raise
        raise SetupError(
            f"{trouble}: db.session holds SQLite's write lock. Commit (or roll back) the session "
            f"{when}; in a step, or with atomic=True, make this call before you write anything."
        ) from None


def session_holds_lock(session: Session) -> bool:
    """Return whether *session* may hold SQLite's write lock."""
    if session.get_bind().dialect.name != "sqlite" or not session.in_transaction():
        return False
    try:
        connection = session.connection().connection.driver_connection
    except SQLAlchemyError:  # After a failed flush, for example, it holds no lock.
        return False
    return bool(getattr(connection, "in_transaction", False))
