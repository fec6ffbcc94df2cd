"""Which batches go with their runs once all of these are old."""

from __future__ import annotations

from ...core.prune import Kind
from ...db.dialect import Dialect
from ...models.conditions import ENDED_BATCH
from .batch_rows import is_live


def _members_are_old(d: Dialect) -> str:
    """Return SQL for: each run of the batch ``one``, and its ``then``, is past its retention."""

    def kept(status: str, age: str) -> str:
        # This is the order of the index of batches; with another, PostgreSQL might read all runs.
        return f"""
            (SELECT r.id FROM job_runs r
             WHERE r.batch_id = one.id AND r.status = '{status}' AND r.status <> 'running'
                AND r.finished_at >= {d.later(f"0 - :{age}")}
             ORDER BY r.run_at DESC, r.id DESC LIMIT 1) IS NOT NULL
        """

    # The last conditions read all members. They are reached once the batch may go, or nearly.
    done = " OR ".join(kept(each, "retention") for each in ("succeeded", "cancelled", "skipped"))
    return f"""
        CASE WHEN {is_live("one")} THEN 0 = 1
            WHEN (SELECT r.id FROM job_runs r WHERE r.id = one.then_run_id) IS NOT NULL THEN 0 = 1
            ELSE NOT ({kept("dead", "retention_dead")} OR {done}) END
    """


# The ``then`` of a batch may still ask for the counts, until it is pruned itself.
BATCHES = Kind(
    "job_batches", ENDED_BATCH, "finished_at", "retention", _members_are_old, runs_by="batch_id"
)
