"""``atomic=True``: the handler's ``db.session`` work and the run's success in one commit.

The row is finalized inside the session's own transaction, under the claim's token, just before the
commit. If the lease was lost, no row matches and everything is rolled back. If the process dies,
the database rolls it back. So database effects happen exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from ... import failpoints
from ...current_run import CurrentRun
from ...errors import AtomicCommit, CronJobsError, LeaseLost
from ...log import logger
from ...registry.payload import kept_result
from ...state import State
from ...store.claims import Claims
from ...store.outcomes import finalize_in
from ...types import JSON, Claim, Outcome
from .transaction_watch import watched


def call(
    state: State, run: CurrentRun, handler: Callable[..., object], disarm: Callable[[], None]
) -> JSON:
    """Call *handler* for *run*, then finalize the run and commit, all in ``db.session``.

    :param disarm: called before the commit, so that no timeout splits it.
    :raises AtomicCommit: the handler committed by itself, or ended the transaction.
    :raises LeaseLost: the run is another worker's by now; all is rolled back.
    """
    claim, session = run.claim, cast(Session, state.db.session())
    bind = _bind_of(session, state.engine)
    with _isolated(session, bind):
        with _no_commit(session), watched(session, bind) as watch:
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
    level = "READ COMMITTED" if bind.dialect.name == "postgresql" else "SERIALIZABLE"

    def begin(session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            session.connection({"bind": bind}, {"isolation_level": level})

    event.listen(session, "after_transaction_create", begin)
    try:
        yield
    finally:
        event.remove(session, "after_transaction_create", begin)


def _commits_by_itself(connection: Connection) -> bool:
    driver: Any = connection.connection.dbapi_connection
    autocommit = getattr(driver, "autocommit", False) is True
    if connection.dialect.name == "postgresql":
        return autocommit
    # An app whose driver leaves transactions to it has sent a BEGIN by now.
    return not driver.in_transaction and (autocommit or driver.isolation_level is None)


@contextmanager
def _no_commit(session: Session) -> Generator[None]:
    event.listen(session, "before_commit", _refuse)
    try:
        yield
    finally:
        event.remove(session, "before_commit", _refuse)


def _refuse(session: Session) -> None:
    if session.in_nested_transaction():
        return
    raise AtomicCommit(_COMMITTED)
