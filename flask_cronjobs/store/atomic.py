"""The one write about a run that is made in the user's own transaction."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.orm import Session

from ..models import JobRun
from ..types import JSON, Claim
from .clock import database_now


def finalize_in(session: Session, claim: Claim, result: JSON) -> bool:
    """Write ``succeeded`` in *session*'s transaction if *claim*'s token still holds the run."""
    statement = (
        update(JobRun)
        .where(JobRun.id == claim.id, JobRun.locked_by == claim.token, JobRun.status == "running")
        .values(
            status="succeeded",
            finished_at=database_now(),
            updated_at=database_now(),
            result=result,
            last_error=None,
            error_type=None,
            locked_by=None,
            locked_until=None,
            concurrency_share=None,
        )
        .returning(JobRun.id)
        .execution_options(synchronize_session=False)
    )
    return session.execute(statement).first() is not None
