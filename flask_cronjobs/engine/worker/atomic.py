"""``atomic=True``: the handler's ``db.session`` work and the run's success in one commit.

The row is finalized inside the session's own transaction, under the claim's token, just before the
commit. If the lease was lost, no row matches and everything is rolled back. If the process dies,
the database rolls it back. So database effects happen exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from ... import failpoints
from ...db.connection import is_in_transaction
from ...db.dialect import dialect_of
from ...db.errors import sqlstate_of
from ...errors import AtomicCommit, CronJobsError, LeaseLost
from ...jobs.outcomes import finalize_in
from ...jobs.runs.current import CurrentRun
from ...jobs.runs.exchange import Claims
from ...jobs.state import State
from ...log import logger
from ...registry.payload import kept_result
from ...types import JSON, Claim, Outcome


def call(
    state: State, run: CurrentRun, handler: Callable[..., object], disarm: Callable[[], None]
) -> JSON:
    """Call *handler* for *run*, then finalize the run and commit, all in ``db.session``.

    :param disarm: called before the commit, so that no timeout splits it.
    :raises AtomicCommit: the handler committed by itself, or ended the transaction.
    :raises LeaseLost: the run is another worker's by now; all is rolled back.
    """
    claim, session = run.claim, state.db.session()
    bind = _bind_of(session, state.db.engine)
    with _isolated(session, bind):
        with _listening(session, "before_commit", _refuse), _watched(session, bind) as watch:
            try:
                value = handler(**run.payload)
                failpoints.reach("after-handler")
                if state.db.session() is not session:
                    raise AtomicCommit(_REPLACED)
                session.flush()
            except BaseException as error:
                disarm()
                watch.check_failed(error)
                raise
            watch.check()
        disarm()
        result = kept_result(value, state.settings.max_payload_bytes, str(claim))
        if not finalize_in(session, claim, result):
            session.rollback()
            raise LeaseLost("the lease was lost before the commit; the work is rolled back")
        failpoints.reach("before-finalize")
        _commit(state, session, claim)
    failpoints.reach("after-finalize")
    return result


def _commit(state: State, session: Session, claim: Claim) -> None:
    """Commit; if that raises, look whether it was committed all the same.

    A hook of the app's, such as ``after_commit``, may raise when all is done.
    """
    try:
        session.commit()
    except Exception:
        if not _is_committed(state, claim):
            raise
        logger.exception(
            "task %s, run %d: its work is committed, and then a hook of the session's commit "
            "raised. The run has succeeded.",
            claim.job_type,
            claim.id,
        )


def _is_committed(state: State, claim: Claim) -> bool:
    success = Outcome(claim.id, claim.token, "succeeded", claim.attempt, claim.job_type)
    with suppress(CronJobsError), state.bookkeeping() as books:
        return claim.id in Claims(books).already_recorded([success]).recorded
    return False


_COMMITTED = (
    "A handler with atomic=True called db.session.commit(): its work commits together with the "
    "run's success. Remove the commit (begin_nested() is fine), or remove atomic=True."
)
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
_REPLACED = (
    "A handler with atomic=True called db.session.remove(), so its work is in a session that does "
    "not commit with the run's success. Remove the call, or remove atomic=True."
)


def _bind_of(session: Session, engine: Engine) -> Engine | Connection:
    """Return what *session* writes to the job database by: a test may have bound a connection.

    Otherwise the engine, since a session with further binds or a replica has several.
    """
    bind = session.get_bind()
    return bind if isinstance(bind, Connection) else engine


@contextmanager
def _isolated(session: Session, bind: Engine | Connection) -> Generator[None]:
    """Set the isolation level of each transaction of *session*, also of one after a rollback.

    An app may run its engine in AUTOCOMMIT, where nothing is atomic. In REPEATABLE READ the
    heartbeat on the run's row would make the finalizing write a serialization failure.

    A test that works in a transaction of its own has begun it, and there is no heartbeat.
    """
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


def _refuse(session: Session) -> None:
    if session.in_nested_transaction():
        return
    raise AtomicCommit(_COMMITTED)


class TransactionWatch:
    """Notices that a handler ended a transaction of its session on one engine without the session.

    ``text("COMMIT")`` and the driver's ``commit()`` pass by all events of the session. What the
    handler wrote until then is committed without its run's success. A savepoint tells: it goes with
    its transaction, however that ends. `check` raises then.

    The session may have others, on further binds or on a replica: they are the handler's affair.

    sqlite3 begins a transaction only before the first statement that writes. So does this: a
    transaction that has read before it writes fails if anybody else has written in between.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._one_writer = dialect_of(engine).one_writer
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
            return  # The handler has ended.
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
                self._ended = self._ended or _is_missing(error)
                logger.debug("the savepoint of an atomic run has not ended", exc_info=True)

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


def _is_missing(error: Exception) -> bool:
    """Return whether *error* says that there is no such savepoint."""
    return sqlstate_of(error) in _MISSING or "no such savepoint" in str(error)


@contextmanager
def _watched(session: Session, bind: Engine | Connection) -> Generator[TransactionWatch]:
    """Watch the transaction that *session* has on *bind*, and those that it begins there."""
    watch = TransactionWatch(bind.engine)
    try:
        with _listening(session, "after_begin", watch.begin):
            if (begun := session.get_transaction()) is not None:
                watch.begin(session, begun, session.connection({"bind": bind}))
            yield watch
    finally:
        watch.forget()
