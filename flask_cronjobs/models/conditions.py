"""Conditions on the rows of the job tables, as SQL texts.

Apart from the mapped classes, which take long to import and which most statements do not need.

Queries must use these texts: SQLite uses a partial index only if the query repeats the index's
condition literally, with its constants.
"""

from __future__ import annotations

RUNNABLE = "status IN ('queued', 'failed')"
FREE = f"{RUNNABLE} AND concurrency_key IS NULL"
KEYED = f"{RUNNABLE} AND concurrency_key IS NOT NULL"
#: Runnable, but for the attempts: somebody lowered ``max_attempts`` by hand.
SPENT = f"{RUNNABLE} AND attempts >= max_attempts"
# The same rows as FREE and KEYED, by the CHECK constraints, in words from which PostgreSQL does not
# know that: without statistics it would choose the index of the one order for a search by groups.
FREE_GROUPS = "finished_at IS NULL AND locked_by IS NULL AND concurrency_key IS NULL"
KEYED_GROUPS = "finished_at IS NULL AND locked_by IS NULL AND concurrency_key IS NOT NULL"
RUNNING = "status = 'running'"
#: The run has its idempotency key to itself; see ``JobRun.unique_while``.
HOLDS_KEY = (
    "idempotency_key IS NOT NULL AND (unique_while IS NULL OR (finished_at IS NULL"
    " AND (unique_while = 'pending' OR started_at IS NULL)))"
)
LIVE = "status IN ('queued', 'failed', 'running')"
DEAD = "status = 'dead'"
DONE = "status IN ('succeeded', 'cancelled', 'skipped')"
#: Few runs among many that succeeded, so listing them needs an index of its own.
SET_ASIDE = "status IN ('cancelled', 'skipped')"
DONE_EFFECT = "state = 'done'"
OPEN_EFFECT = "state IN ('begun', 'in_doubt')"
SCHEDULED = "paused_at IS NULL AND next_run_at IS NOT NULL"
PINGED = "ping_url IS NOT NULL"
KEY_HAS_LIMIT = "(concurrency_key IS NULL) = (concurrency_limit IS NULL)"
#: The run was handed to an engine and has not begun there: its token says so, see `types.HANDED`.
HANDED = f"{RUNNING} AND locked_by LIKE 'handed:%'"
