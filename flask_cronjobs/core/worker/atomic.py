"""Call a handler with ``atomic=True``: its work and its success are committed together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from ...db import failpoints
from ...db.transactions import Words, bounded, guarded, isolated
from ...errors import CronJobsError, LeaseLost
from ...log import logger
from ...types import JSON, Claim, Outcome
from ..app_state import State
from ..background import end_fork
from ..claim import already_recorded
from ..current import CurrentRun
from ..insert import writing_connection
from ..look import locker
from ..outcome import record_success
from ..tasks.payload import kept_result

#: Seconds that an atomic handler waits before it tries again to write a locked row.
BLOCKED_PAUSE_SECONDS = 0.2
_WORDS = Words("A handler with atomic=True", "the run's success", "remove atomic=True")


def call_atomic(
    state: State, run: CurrentRun, handler: Callable[..., object], disarm: Callable[[], None]
) -> JSON:
    """Call *handler* for *run*, then finalize the run and commit, all in ``db.session``.

    The row is finalized inside the session's own transaction, under the claim's token, just before
    the commit. If the lease was lost, no row matches and everything is rolled back. If the process
    dies, the database rolls it back. So database effects happen exactly once.

    While another transaction has locked the row, this waits, and can be interrupted.

    :param disarm: called before the commit, so that no timeout interrupts it.
    :raises AtomicCommit: the handler committed, or removed the session.
    :raises LeaseLost: the run was reclaimed meanwhile; all is rolled back.
    """
    claim, session, pid = run.claim, state.db.session(), os.getpid()
    with isolated(state.db):
        with guarded(state.db, _WORDS, disarm):
            value = handler(**run.payload)
            if os.getpid() != pid:
                end_fork()
            failpoints.reach("after-handler")
        result = kept_result(value, state.settings, str(claim))
        connection, is_logged = writing_connection(session), False
        while not _try_commit(state, run, connection, result, disarm):
            if not is_logged:
                logger.warning("%s: its commit waits. %s", claim, locker(connection, claim.id))
                is_logged = True
            time.sleep(BLOCKED_PAUSE_SECONDS)
    failpoints.reach("after-finalize")
    return result


def _try_commit(
    state: State,
    run: CurrentRun,
    connection: Connection,
    result: JSON,
    disarm: Callable[[], None],
) -> bool:
    """Commit if the run is still ours; return False if its row is locked.

    As in bookkeeping, each statement has a time limit, since it cannot be interrupted.
    """
    claim, session = run.claim, state.db.session()
    with run.books.guard(), bounded(connection, run.books.limit):
        is_held = record_success(connection, claim, result)
        if is_held is None:
            return False
        disarm()
        if not is_held:
            session.rollback()
            raise LeaseLost("the lease was lost before the commit; the work is rolled back")
        failpoints.reach("before-finalize")
        _commit(state, session, claim)
    return True


def _commit(state: State, session: Session, claim: Claim) -> None:
    """Commit; if that raises, check whether the database has committed nevertheless.

    A hook of the app, such as ``after_commit``, may raise an error after the commit.
    """
    try:
        session.commit()
    except Exception:
        if not _is_committed(state, claim):
            raise
        logger.exception(
            "task %s, run %d: its work was committed, but then a hook of the session's commit "
            "raised an error. The run has succeeded.",
            claim.job_type,
            claim.id,
        )


def _is_committed(state: State, claim: Claim) -> bool:
    success = Outcome(claim.id, claim.token, "succeeded", claim.attempt, claim.job_type)
    with suppress(CronJobsError), state.bookkeeping() as books:
        return claim.id in already_recorded(books, [success]).recorded
    return False
