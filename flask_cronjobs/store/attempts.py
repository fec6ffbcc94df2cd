"""What a run keeps of its attempts: failures, and what handlers print and log."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from sqlalchemy import Delete, TextClause, delete, select, text

from .. import models
from ..types import Claim, Outcome
from .connection import Bookkeeping
from .dialect import Dialect

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


_FORGET_OUTPUTS = text("DELETE FROM job_outputs WHERE run_id = :id AND attempt <= :attempt")


def write_output(books: Bookkeeping, claim: Claim, output: str) -> bool:
    """Write what the attempt of *claim* has printed and logged so far.

    The lease may be lost, or the run may have ended: an attempt's output is kept all the same,
    but never in the place of another claim's.

    :returns: False if the run is gone, or if another transaction has locked its row.
    """
    if claim.attempt > FAILURES_KEPT:
        books.rows(_FORGET_OUTPUTS, {"id": claim.id, "attempt": claim.attempt - FAILURES_KEPT})
    values = {"id": claim.id, "attempt": claim.attempt, "token": claim.token, "output": output}
    return bool(books.rows(_write_output(books.dialect), values))


@lru_cache(maxsize=2)
def _write_output(d: Dialect) -> TextClause:
    # The foreign key takes this lock, and would wait for it.
    lock = "FOR KEY SHARE SKIP LOCKED" if d.skip_locked else ""
    return text(f"""
    INSERT INTO job_outputs (run_id, attempt, worker, output, written_at)
    SELECT id, :attempt, :token, :output, {d.clock} FROM job_runs WHERE id = :id {lock}
    ON CONFLICT (run_id, attempt) DO UPDATE
    SET worker = excluded.worker, output = excluded.output, written_at = excluded.written_at
    WHERE job_outputs.worker = excluded.worker OR EXISTS (
        SELECT 1 FROM job_runs AS r WHERE r.id = excluded.run_id AND r.locked_by = excluded.worker
    )
    RETURNING run_id
    """)
