"""The transactions of sessions: blocks whose work commits as one, and what SQLite needs.

Whoever opens a guarded block adds its last statements and commits. The code in it can neither
commit nor end the transaction behind the session's back without being told.

Last, SQLite's one write lock, and its transactions, where its driver does not begin or end them.
While ``db.session`` holds the lock, our own connection cannot write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import PoolResetState

from ..errors import AtomicCommit, DatabaseTrouble, SetupError
from ..log import logger
from .connection import Bookkeeping, is_locked
from .database import Database
from .dialect import dialect_of
from .errors import sqlstate_of


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
    def ended(self) -> str:
        """It ended the transaction without the session."""
        return (
            f"{self.who} ended the transaction of db.session by SQL (COMMIT, ROLLBACK) or by its "
            f"driver's commit(). What it wrote before is committed without {self.beside}, so the "
            "run is not repeated. Let the session alone end it: remove the statement, or "
            f"{self.instead}."
        )

    @property
    def removed(self) -> str:
        """It removed the session."""
        return (
            f"{self.who} called db.session.remove(), so its work is in a session that does not "
            f"commit with {self.beside}. Remove the call, or {self.instead}."
        )


_NAME = "cronjobs_guard"
#: What may write. Whatever this misses gets its savepoint before the next statement.
_WRITES = r"(?is)\s*(WITH\b.*)?\b(INSERT|UPDATE|DELETE|REPLACE|CREATE|ALTER|DROP)\b"
#: PostgreSQL's codes for a savepoint that is not there, and for no transaction at all.
_MISSING = ("3B001", "25P01")


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
    :raises AtomicCommit: it committed, ended the transaction, or removed the session.
    """
    session = db.session()
    bind = _bind_of(db, session)

    def refuse(session: Session) -> None:
        if not session.in_nested_transaction():
            raise AtomicCommit(words.committed)

    with _listening(session, "before_commit", refuse), _watched(session, bind, words) as watch:
        try:
            yield
            if db.session() is not session:
                raise AtomicCommit(words.removed)
            while (savepoint := session.get_nested_transaction()) is not None:
                savepoint.commit()
            session.flush()
        except BaseException as error:
            failed()
            watch.check_failed(session, error)
            raise
        watch.check()


class TransactionWatch:
    """Notices that code ended a transaction of its session on one engine without the session.

    ``text("COMMIT")`` and the driver's ``commit()`` pass by all events of the session. What the
    code wrote until then is committed without what was to be committed with it. A savepoint tells:
    it goes with its transaction, however that ends. `check` raises then.

    The session may have others, on further binds or on a replica: they are the code's affair.

    sqlite3 begins a transaction only before the first statement that writes. So does this: a
    transaction that has read before it writes fails if anybody else has written in between.
    """

    def __init__(self, engine: Engine, words: Words) -> None:
        self._engine = engine
        self._words = words
        self._one_writer = dialect_of(engine).one_writer
        self._connection: Connection | None = None
        self._driver: Any = None
        self._is_set = False
        self._changes = 0
        self._in_statement = False
        self._ended = False

    def check(self, verb: str = "RELEASE") -> None:
        """Raise `AtomicCommit` if the code ended a transaction by itself.

        :param verb: what ends the savepoint.
        """
        connection = self._connection
        if connection is not None and connection.in_transaction():
            self._look(connection, verb)
        if self._ended:
            raise AtomicCommit(self._words.ended, committed=True)

    def check_failed(self, session: Session, error: BaseException) -> None:
        """Roll back the savepoints of *session*, and `check`, from *error*, which the code raised.

        Its own first: ours takes them along without the session's knowing.
        """
        try:
            while (savepoint := session.get_nested_transaction()) is not None:
                savepoint.rollback()
        except Exception:
            logger.debug("a savepoint of code that failed has not ended", exc_info=True)
        try:
            self.check("ROLLBACK TO")
        except AtomicCommit as ended:
            raise ended from error
        except Exception:
            logger.debug("the connection of code that failed cannot be asked", exc_info=True)

    def begin(self, session: Session, transaction: SessionTransaction, c: Connection) -> None:
        """Set the savepoint in *transaction*, or wait with it until something is written."""
        if transaction.parent is not None or c.engine is not self._engine:
            return
        self._connection, self._driver = c, c.connection.dbapi_connection
        self._is_set = self._in_statement = False
        self._changes = self._total_changes()
        if not self._one_writer or is_in_transaction(self._driver):
            self._set()
        event.listen(c, "before_cursor_execute", self._before)
        event.listen(c, "after_cursor_execute", self._after)
        event.listen(c, "rollback", self._rollback)

    def forget(self) -> None:
        """Let go of the connection, which holds this object."""
        self._connection = None

    def _before(self, _: object, __: object, statement: str, *___: object) -> None:
        if self._connection is None:
            return  # The code has ended.
        if not is_in_transaction(self._driver) and self._has_written():
            self._ended = True
        elif not self._is_set and (is_in_transaction(self._driver) or re.match(_WRITES, statement)):
            self._set()
        self._in_statement = True

    def _after(self, *_: object) -> None:
        self._in_statement = False

    def _rollback(self, connection: Connection) -> None:
        self._look(connection, "ROLLBACK TO")

    def _set(self) -> None:
        if self._one_writer and not is_in_transaction(self._driver):
            self._execute("BEGIN")
        self._execute(f"SAVEPOINT {_NAME}")
        self._is_set = True

    def _look(self, connection: Connection, verb: str) -> None:
        """Note whether the savepoint has gone, by ending it."""
        if connection.invalidated:
            return  # An interruption inside a query has closed it.
        if not is_in_transaction(self._driver):
            # A statement that fails may roll back all by itself: SQLite's if the disk is full, and
            # PostgreSQL's COMMIT.
            self._ended = self._ended or (self._has_written() and not self._in_statement)
        elif self._is_set:
            self._is_set = False
            try:
                self._execute(f"{verb} SAVEPOINT {_NAME}")
            except Exception as error:
                is_missing = sqlstate_of(error) in _MISSING or "no such savepoint" in str(error)
                self._ended = self._ended or is_missing
                logger.debug("the savepoint of a guarded block has not ended", exc_info=True)

    def _execute(self, statement: str) -> None:
        # Past the session, whose listeners and those of its connection need not hear of it.
        try:
            self._driver.cursor().execute(statement)
        except BaseException as error:
            if not isinstance(error, Exception) and self._connection is not None:
                self._connection.invalidate(error)  # As SQLAlchemy does with its own statements.
            raise

    def _has_written(self) -> bool:
        """Return whether a transaction was open that may have written something."""
        return self._is_set or self._total_changes() != self._changes

    def _total_changes(self) -> int:
        """Return how many rows SQLite's connection has changed, also past the session."""
        return getattr(self._driver, "total_changes", 0)


@contextmanager
def _watched(
    session: Session, bind: Engine | Connection, words: Words
) -> Generator[TransactionWatch]:
    """Watch the transaction that *session* has on *bind*, and those that it begins there."""
    watch = TransactionWatch(bind.engine, words)
    try:
        with _listening(session, "after_begin", watch.begin):
            if (begun := session.get_transaction()) is not None:
                watch.begin(session, begun, session.connection({"bind": bind}))
            yield watch
    finally:
        watch.forget()


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
