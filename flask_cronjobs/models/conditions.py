"""Conditions on the rows of the job tables, as SQL texts.

They are separate from the mapped classes, which take a long time to import and which most
statements do not need.

Queries must use these texts, since SQLite uses a partial index only if the query repeats the
index's condition literally, with its constants.

Each write of a run evaluates the conditions of all indexes, so the part that is false for most runs
comes first.
"""

from __future__ import annotations

from collections.abc import Iterable


def sql_list(values: Iterable[str]) -> str:
    """Return *values* as the SQL list after IN."""
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"


#: The run waits for its first attempt or for the next one, due or not.
UNCLAIMED = "status IN ('queued', 'failed')"
#: As far as its row says, nothing holds the run back. Claims read these runs, due or not.
READY = f"{UNCLAIMED} AND gate IS NULL"
#: Unclaimed, but without an attempt left, since ``max_attempts`` was lowered by hand.
SPENT = f"attempts >= max_attempts AND {UNCLAIMED}"
# The CHECK constraints make these the same rows as READY, which PostgreSQL cannot know. With one
# condition for both indexes, and without statistics, it would search for groups in
# `ix_job_runs_ready`, where all runs are in a single order.
READY_GROUPS = "finished_at IS NULL AND locked_by IS NULL AND gate IS NULL"
#: Snoozed so often that the event it waits for may never come.
SNOOZED = "snoozes >= 100 AND finished_at IS NULL"
#: Needs attention, as few runs do. A query for `SPENT` or `SNOOZED` alone must repeat this whole
#: condition, too, since the index has it; see the top of this module.
ODD = f"(({SPENT}) OR ({SNOOZED}))"
RUNNING = "status = 'running'"
#: Holds its idempotency key; see ``JobRun.unique_while``.
HOLDS_KEY = (
    "idempotency_key IS NOT NULL AND (unique_while IS NULL OR (finished_at IS NULL"
    " AND (unique_while = 'pending' OR started_at IS NULL)))"
)
LIVE = "status IN ('queued', 'failed', 'running')"
DEAD = "status = 'dead'"
#: Belongs to a definition: a slot, or a run that was queued by hand.
DEFINED = "definition_id IS NOT NULL"
LIVE_DEFINED = f"{DEFINED} AND {LIVE}"
HAS_SHARE = "concurrency_share IS NOT NULL"
#: Holds an idempotency key, or has given it up.
HAD_KEY = "idempotency_key IS NOT NULL"
DONE = "status IN ('succeeded', 'cancelled', 'skipped')"
#: Pruned on its own; the runs of a batch are pruned with the batch.
DONE_ALONE = f"{DONE} AND batch_id IS NULL"
#: Few runs among many that succeeded, so listing them needs a separate index.
SET_ASIDE = "status IN ('cancelled', 'skipped')"
DONE_EFFECT = "state = 'done'"
OPEN_EFFECT = "state IN ('begun', 'in_doubt')"
SCHEDULED = "paused_at IS NULL AND next_run_at IS NOT NULL"
PINGED = "ping_url IS NOT NULL"
#: Has a place in the strict order of its key.
ORDERED = "strict AND finished_at IS NULL"
#: A claim has met it behind others of its concurrency key; see `core.gate`.
PARKED = "gate IN ('keys', 'order')"
#: Unclaimed, with a rate.
RATED = f"rate_key IS NOT NULL AND {UNCLAIMED}"
#: Waits for the next start of its rate key.
RATE_WAITS = f"{RATED} AND gate = 'rate'"
#: Its start has come, and nobody has claimed it yet.
RATE_READY = f"{RATED} AND gate IS NULL"
KEY_HAS_LIMIT = "(concurrency_key IS NULL) = (concurrency_limit IS NULL)"
#: Running runs are left out, so that a claim need not write to this index; the index of leases has
#: them.
IN_BATCH = "batch_id IS NOT NULL AND status <> 'running'"
#: A batch with a run that has not ended, or that other runs may still join.
OPEN_BATCH = "finished_at IS NULL"
ENDED_BATCH = "finished_at IS NOT NULL"
#: A batch whose ``then`` is enqueued.
FOLLOWED = "then_run_id IS NOT NULL"
#: The operation changed exactly one run.
OF_ONE_RUN = "run_id IS NOT NULL"
#: Handed to an executor, which has not begun it yet; its token says so, see `types.HANDED_PREFIX`.
HANDED = f"{RUNNING} AND locked_by LIKE 'handed:%'"
