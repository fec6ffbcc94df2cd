"""``atomic=True``: the handler's ``db.session`` work and the run's success in one commit.

The row is finalized inside the session's own transaction, under the claim's token, just before the
commit. If the lease was lost, no row matches and everything is rolled back. If the process dies,
the database rolls it back. So database effects happen exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sqlalchemy.orm import Session

from ... import failpoints
from ...db.commit_guard import Words, bind_of, guarded, isolated
from ...errors import AtomicCommit, CronJobsError, LeaseLost
from ...jobs.outcomes import finalize_in
from ...jobs.runs.current import CurrentRun
from ...jobs.runs.record_and_claim import already_recorded
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
    bind = bind_of(session, state.db.engine)
    with isolated(session, bind):
        with guarded(session, bind, _WORDS, disarm):
            value = handler(**run.payload)
            failpoints.reach("after-handler")
            if state.db.session() is not session:
                raise AtomicCommit(_REPLACED)
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
        return claim.id in already_recorded(books, [success]).recorded
    return False


_WORDS = Words(
    committed="A handler with atomic=True called db.session.commit(): its work commits together "
    "with the run's success. Remove the commit (begin_nested() is fine), or remove atomic=True.",
    ended="A handler with atomic=True ended the transaction of db.session by SQL (COMMIT, "
    "ROLLBACK) or by its driver's commit(). What it wrote before is committed without the run's "
    "success, so the run is not repeated. Let the session alone end it: remove the statement, or "
    "atomic=True.",
)
_REPLACED = (
    "A handler with atomic=True called db.session.remove(), so its work is in a session that does "
    "not commit with the run's success. Remove the call, or remove atomic=True."
)
