"""Write a success in the handler's own transaction, for ``atomic=True``."""

from __future__ import annotations

from sqlalchemy import text, update
from sqlalchemy.orm import Session

from .. import models
from ..types import JSON, Claim
from .clock import database_now
from .dialect import dialect_of, json_text
from .sql.outcomes import ended


def finalize_in(session: Session, claim: Claim, result: JSON) -> bool:
    """Write ``succeeded`` in *session*'s transaction, if *claim*'s token still holds the run.

    The handler's own writes and its outcome must commit together, so this runs on the app's
    session. `Claims.exchange` writes all other outcomes, many at a time and with SQL for failures
    and releases, on the bookkeeping connection.

    :returns: whether the run was still held.
    """
    kept = None if result is None else json_text(result)
    as_json = dialect_of(session.get_bind().engine).json("CAST(:result AS text)")
    statement = (
        update(models.JobRun)
        .where(
            models.JobRun.id == claim.id,
            models.JobRun.locked_by == claim.token,
            models.JobRun.status == "running",
        )
        .values(
            status="succeeded",
            finished_at=database_now(),
            updated_at=database_now(),
            result=text(as_json).bindparams(result=kept),
            last_error=None,
            error_type=None,
            locked_by=None,
            locked_until=None,
            concurrency_share=None,
            turn=text(ended()),
        )
        .returning(models.JobRun.id)
        .execution_options(synchronize_session=False)
    )
    return session.execute(statement).first() is not None
