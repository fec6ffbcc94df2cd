"""Conditions on the rows of the job tables, as SQL texts.

Apart from the mapped classes, which take long to import and which most statements do not need.

Queries must use these texts: SQLite uses a partial index only if the query repeats the index's
condition literally, with its constants.

What is false of most runs comes first: each write of a run evaluates the conditions of all indexes.
"""

from __future__ import annotations

from collections.abc import Iterable


def sql_list(values: Iterable[str]) -> str:
    """Return *values* as SQL to stand after IN."""
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"


RUNNABLE = "status IN ('queued', 'failed')"
# Not those that have met a gate, or whose turn has not come at a rate: claims must not read through
# them.
UNKEYED = f"{RUNNABLE} AND concurrency_key IS NULL AND rate_mark IS NULL"
KEYED = f"concurrency_key IS NOT NULL AND gate IS NULL AND rate_mark IS NULL AND {RUNNABLE}"
#: Runnable, but for the attempts: somebody lowered ``max_attempts`` by hand.
SPENT = f"attempts >= max_attempts AND {RUNNABLE}"
# The same rows as UNKEYED and KEYED, by the CHECK constraints, in words from which PostgreSQL does
# not know that: without statistics it would choose the index of the one order to search by groups.
UNKEYED_GROUPS = (
    "finished_at IS NULL AND locked_by IS NULL AND concurrency_key IS NULL AND rate_mark IS NULL"
)
KEYED_GROUPS = (
    "finished_at IS NULL AND locked_by IS NULL"
    " AND concurrency_key IS NOT NULL AND gate IS NULL AND rate_mark IS NULL"
)
#: Its handler raised ``Snooze`` again and again: what it waits for may never come.
SNOOZED = "snoozes >= 100 AND finished_at IS NULL"
#: Needs a look, as hardly any run does. A query of a part repeats the whole: see above.
ODD = f"(({SPENT}) OR ({SNOOZED}))"
RUNNING = "status = 'running'"
#: The run has its idempotency key to itself; see ``JobRun.unique_while``.
HOLDS_KEY = (
    "idempotency_key IS NOT NULL AND (unique_while IS NULL OR (finished_at IS NULL"
    " AND (unique_while = 'pending' OR started_at IS NULL)))"
)
LIVE = "status IN ('queued', 'failed', 'running')"
DEAD = "status = 'dead'"
#: Of a definition: its slots, and what was queued by hand.
DEFINED = "definition_id IS NOT NULL"
LIVE_DEFINED = f"{DEFINED} AND {LIVE}"
HAS_SHARE = "concurrency_share IS NOT NULL"
#: It holds its idempotency key, or has given it up.
HAD_KEY = "idempotency_key IS NOT NULL"
DONE = "status IN ('succeeded', 'cancelled', 'skipped')"
#: Is pruned by itself: the runs of a batch go with it.
DONE_ALONE = f"{DONE} AND batch_id IS NULL"
#: Few runs among many that succeeded, so listing them needs an index of its own.
SET_ASIDE = "status IN ('cancelled', 'skipped')"
DONE_EFFECT = "state = 'done'"
OPEN_EFFECT = "state IN ('begun', 'in_doubt')"
SCHEDULED = "paused_at IS NULL AND next_run_at IS NOT NULL"
PINGED = "ping_url IS NOT NULL"
#: Has a place in the strict order of its key.
ORDERED = "strict AND finished_at IS NULL"
#: A claim has met it when it was not the first in the strict order of its key; see `core.gate`.
PARKED = "gate = 'order'"
#: Begins at a rate. Not one that is parked: it would take the place of the one before it.
RATED = f"rate_key IS NOT NULL AND gate IS NULL AND {RUNNABLE}"
#: Waits for the next start of its rate key.
RATE_WAITS = f"{RATED} AND rate_mark = 'waits'"
#: Its start has come, and nobody has claimed it yet.
RATE_READY = f"{RATED} AND rate_mark IS NULL"
KEY_HAS_LIMIT = "(concurrency_key IS NULL) = (concurrency_limit IS NULL)"
#: Not while it runs, so that a claim writes nothing to their index. The index of leases has those.
IN_BATCH = "batch_id IS NOT NULL AND status <> 'running'"
#: Of a batch: some run has not ended, or some may still join.
OPEN_BATCH = "finished_at IS NULL"
ENDED_BATCH = "finished_at IS NOT NULL"
#: Its ``then`` is enqueued.
FOLLOWED = "then_run_id IS NOT NULL"
#: Of an operation: one run, not many or something else.
OF_ONE_RUN = "run_id IS NOT NULL"
#: The run was handed to an executor and has not begun there: its token says so, see `types.HANDED`.
HANDED = f"{RUNNING} AND locked_by LIKE 'handed:%'"
