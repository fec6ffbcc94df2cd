"""Delete batches together with their runs, once all of these are old."""

from __future__ import annotations

from ...core.prune import Kind
from ...db.dialect import Dialect
from ...models.conditions import ENDED_BATCH
from .batch_rows import is_live


def _members_are_old(d: Dialect) -> str:
    """Return SQL for: all runs of the batch ``one`` are old, and its ``then`` run is gone."""

    def has_recent(status: str, age: str) -> str:
        # This is the order of the index of batches; with another, PostgreSQL might read all runs.
        return f"""
            (SELECT r.id FROM job_runs r
             WHERE r.batch_id = one.id AND r.status = '{status}' AND r.status <> 'running'
                AND r.finished_at >= {d.later(f"0 - :{age}")}
             ORDER BY r.run_at DESC, r.id DESC LIMIT 1) IS NOT NULL
        """

    # These conditions may read all members, so they come last and are rarely evaluated.
    has_recent_done = " OR ".join(
        has_recent(status, "retention") for status in ("succeeded", "cancelled", "skipped")
    )
    return f"""
        CASE WHEN {is_live("one")} THEN 0 = 1
            WHEN (SELECT r.id FROM job_runs r WHERE r.id = one.then_run_id) IS NOT NULL THEN 0 = 1
            ELSE NOT ({has_recent("dead", "retention_dead")} OR {has_recent_done}) END
    """


# The ``then`` run of a batch may read the batch's counts, so the batch is kept until that run is
# pruned.
BATCHES = Kind(
    "job_batches", ENDED_BATCH, "finished_at", "retention", _members_are_old, runs_by="batch_id"
)
