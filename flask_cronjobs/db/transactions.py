"""The transactions of sessions: blocks whose work commits as one, and what SQLite needs.

Whoever opens a guarded block adds its last statements and commits. The code in it cannot commit the
session. If it sends COMMIT by SQL or by its driver, nobody notices.

Last, SQLite's one write lock, and its transactions, where its driver does not begin or end them.
While ``db.session`` holds the lock, our own connection cannot write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import PoolResetState

from ..errors import AtomicCommit, DatabaseTrouble, SetupError
from .connection import Bookkeeping, is_locked
from .database import Database
from .dialect import dialect_of
from .errors import sqlstate_of
from .statements import deadlines

T = TypeVar("T")


class Words(NamedTuple):
    """What guarded code is told.

    :ivar who: the code: ``A step``.
    :ivar beside: what is to commit together with its work: ``its row``.
    :ivar instead: what it may do otherwise: ``do it between two steps``.
    """

    who: str
    beside: str
    instead: str

    @property
    def committed(self) -> str:
        """It called ``session.commit()``."""
        return (
            f"{self.who} called db.session.commit(): its work commits together with {self.beside}. "
            f"Remove the commit (begin_nested() is fine), or {self.instead}."
        )

    @property
    def removed(self) -> str:
        """It removed the session."""
        return (
            f"{self.who} called db.session.remove(), so its work is in a session that does not "
            f"commit with {self.beside}. Remove the call, or {self.instead}."
        )


def _bind_of(db: Database, session: Session) -> Engine | Connection:
    """Return what *session* writes to the job database by: a test may have bound a connection.

    Otherwise the engine, since a session with further binds or a replica has several.
    """
    bind = session.get_bind()
    return bind if isinstance(bind, Connection) else db.engine


@contextmanager
def isolated(db: Database) -> Generator[None]:
    """Set the isolation level of each transaction of the session, also of one after a rollback.

    An app may run its engine in AUTOCOMMIT, where nothing is atomic. In REPEATABLE READ the
    heartbeat on the run's row would make the finalizing write a serialization failure.

    A test that works in a transaction of its own has begun it, and there is no heartbeat.
    """
    session = db.session()
    bind = _bind_of(db, session)
    if isinstance(bind, Connection):
        yield
        return
    if session.in_transaction() and _commits_by_itself(session.connection({"bind": bind})):
        # A receiver of appcontext_pushed or run_started has used it. What it did is committed.
        session.commit()
    level = dialect_of(bind).atomic_level

    def begin(session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            session.connection({"bind": bind}, {"isolation_level": level})

    with _listening(session, "after_transaction_create", begin):
        yield


def _commits_by_itself(connection: Connection) -> bool:
    driver: Any = connection.connection.dbapi_connection
    autocommit = getattr(driver, "autocommit", False) is True
    if not dialect_of(connection.engine).one_writer:
        return autocommit
    # An app whose driver leaves transactions to it has sent a BEGIN by now.
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
    """Refuse that the code in this block commits the session; flush at its end, and do not commit.

    :param failed: called first when the code has raised.
    :raises AtomicCommit: it committed, or removed the session.
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


#: For how long a step waits for a locked row at a time, in seconds.
LOCK_FOR = 0.1


#: Sets it until the transaction ends, and returns what it was.
_LIMIT_LOCKS = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', :limit, true)"


@contextmanager
def bounded(connection: Connection, seconds: float) -> Generator[None]:
    """Let the statements in this block take *seconds* at most on PostgreSQL, as in bookkeeping.

    For where no interruption is heard: a connection may hang.
    """
    if dialect_of(connection.engine).one_writer:  # SQLite's busy timeout bounds its waits.
        yield
        return
    with deadlines.within(seconds, connection.connection.dbapi_connection):
        yield


def unless_locked(connection: Connection, work: Callable[[Connection], T]) -> T | None:
    """Call *work*; return None, with what it wrote undone, if a row of it stays locked.

    On PostgreSQL. On SQLite, *connection* waits for the one lock as the app has set it.
    """
    if dialect_of(connection.engine).one_writer or connection.in_nested_transaction():
        return work(connection)
    connection.exec_driver_sql("SAVEPOINT cronjobs_step")
    own = connection.execute(text(_LIMIT_LOCKS), {"limit": f"{LOCK_FOR * 1000:.0f}ms"}).scalar()
    try:
        found = work(connection)
        # The app's hooks, and its deferred constraints, may wait at the commit.
        connection.execute(text(_LIMIT_LOCKS), {"limit": own})
        return found
    except DBAPIError as error:
        if sqlstate_of(error.orig) != "55P03":  # lock_not_available
            raise
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT cronjobs_step")
        return None


def begin_before_savepoints(engine: Engine) -> None:
    """Let SQLite connections of *engine* begin a transaction before a savepoint.

    A savepoint that opens a transaction: sqlite3 sends BEGIN before INSERT, UPDATE and DELETE, but
    not before SAVEPOINT. To SQLite, such a savepoint is the whole transaction, so releasing it
    commits: runs that were enqueued in it would survive a rollback of the session, and work in it
    would not be atomic. At that time it is too late to begin one, so it must be done when the
    savepoint is made.
    """
    if engine.dialect.name == "sqlite":
        event.listen(engine, "savepoint", _begin)


def end_interrupted_transactions(engine: Engine) -> None:
    """Let no connection of *engine* keep a transaction that an interruption has hit.

    After an interruption inside a query, SQLAlchemy closes the connection. To SQLite a closed one
    keeps its transaction, and the write lock, for as long as somebody has an open cursor. Frames of
    SQLAlchemy's have one, and live on in the exception's traceback.

    After an interruption at the begin of a commit, SQLAlchemy takes the transaction for ended, and
    gives the connection back to the pool as it is: with the locks, and with work that the next one
    who takes the connection would commit. Seen with SQLAlchemy 2.1.9, on both databases.
    """
    if engine.dialect.name == "sqlite":
        event.listen(engine, "invalidate", _roll_back)
    event.listen(engine, "reset", _roll_back_unended)


def is_in_transaction(driver: Any) -> bool:
    """Return, without asking the database, whether a transaction is open on a driver's connection.

    :param driver: a connection of sqlite3 or psycopg. Those of other drivers have none.
    """
    status = getattr(getattr(driver, "info", None), "transaction_status", 0)  # `IDLE` is 0.
    return bool(getattr(driver, "in_transaction", status))


def _begin(connection: Connection, name: str | None) -> None:
    driver: Any = connection.connection.dbapi_connection
    # An app whose driver leaves transactions to it (AUTOCOMMIT, or SQLAlchemy's recipe with a
    # listener that sends BEGIN) has decided by itself.
    ours = driver.isolation_level is not None and getattr(driver, "autocommit", False) is not True
    if ours and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN")


def _roll_back(driver: Any, _record: object, _error: object) -> None:
    with suppress(Exception):  # It may be broken, or closed already.
        driver.rollback()


def _roll_back_unended(driver: Any, _record: object, state: PoolResetState) -> None:
    if state.transaction_was_reset and is_in_transaction(driver):
        driver.rollback()


def refuse_own_lock(session: Session, books: Bookkeeping) -> None:
    """Refuse to go on if the caller's own *session* holds the write lock that *books* needs.

    :raises SetupError: it does. Without this check, bookkeeping would wait for it until it fails.
    """
    # An app may send BEGIN itself, and then a session that only reads looks the same. So try.
    if session_holds_lock(session):
        with books, refusing_own_lock(session, books, "The job tables cannot be written", "first"):
            books.transaction(lambda connection: None)


@contextmanager
def refusing_own_lock(
    session: Session, books: Bookkeeping, trouble: str, when: str
) -> Generator[None]:
    """Fail at once, with a clear error, if *session* holds the lock that this block needs.

    :param trouble: what cannot be done then.
    :param when: when to commit the session instead.
    :raises SetupError: it holds it.
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
            f"{when}; in a step, or with atomic=True, do this before anything is written."
        ) from None


def session_holds_lock(session: Session) -> bool:
    """Return whether *session* may hold SQLite's write lock."""
    if session.get_bind().dialect.name != "sqlite" or not session.in_transaction():
        return False
    try:
        connection = session.connection().connection.driver_connection
    except SQLAlchemyError:  # For example, a failed flush has rolled back: it holds nothing.
        return False
    return bool(getattr(connection, "in_transaction", False))
