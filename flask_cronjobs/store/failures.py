"""Bound the rows of failed attempts that a run keeps."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Delete, delete, select

from .. import models
from ..types import Outcome
from .connection import Bookkeeping

#: How many failed attempts of a run have a row: the latest ones, as many as its page shows.
FAILURES_KEPT = 50


def forget_failures(books: Bookkeeping, outcomes: Iterable[Outcome]) -> None:
    """Make room for the failures in *outcomes*: delete the oldest of runs that have many.

    Call it before the outcomes are recorded. If they are not, as when a lease was lost, nothing is
    wrong: the run has begun as many attempts.
    """
    for outcome in outcomes:
        if outcome.attempt > FAILURES_KEPT and outcome.kind in ("failed", "dead"):
            books.rows(delete_failures(outcome.id, outcome.attempt - FAILURES_KEPT))


def delete_failures(run_id: int, attempt: int) -> Delete:
    """Return the DELETE of a run's failures up to *attempt*, but for those that are locked."""
    old = select(models.JobFailure.id).where(
        models.JobFailure.run_id == run_id, models.JobFailure.attempt <= attempt
    )
    return delete(models.JobFailure).where(
        models.JobFailure.id.in_(old.with_for_update(skip_locked=True))
    )
