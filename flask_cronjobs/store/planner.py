"""Keep PostgreSQL to one plan for each statement of bookkeeping, and let it plan only once.

A queue is filled and emptied within minutes, so statistics about it are wrong most of the time.
With wrong ones the planner reads and sorts a whole backlog for each claim, or compares each outcome
with each run. Each statement of bookkeeping reads few rows, and there is an index for them. So we
forbid what is not needed, for each transaction by itself: behind a pooler, a setting of the session
would be passed on to others.
"""

from __future__ import annotations

import re
from typing import Any

_OFF = (
    # Read a whole table, or all that an index finds, and sort it.
    *("enable_seqscan", "enable_bitmapscan", "enable_sort"),
    # Compare each row of one side with each of the other. What is left is to hash one of them.
    *("enable_nestloop", "enable_mergejoin"),
    # Compile a statement, which takes a hundred times as long as to run it.
    "jit",
)
#: Sent before each statement that has a plan; its settings end with the transaction. It returns
#: the process that serves it.
SETTINGS = (
    "SELECT pg_backend_pid(), set_config('plan_cache_mode', 'force_generic_plan', true), "
    + ", ".join(f"set_config('{name}', 'off', true)" for name in _OFF)
)
#: How often psycopg sends a statement before it prepares it. A tick sends most of them once.
PREPARED_AFTER = 1

_HAS_PLAN = re.compile(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


def keep_plans(driver: Any) -> None:
    """Let a psycopg connection send `SETTINGS` along with each statement that has a plan.

    Both are sent at once and make one transaction, so it takes no more round trips than the
    statement alone. Without pipelines, which libpq has had since version 14, the planner is free.

    To plan a claim takes several times as long as to run it, so its plan is kept as a prepared
    statement; but not behind a pooler, which may not know those. There, the process that serves us
    is not the one that the connection began with. Nor if the app has turned them off.
    """
    from psycopg import Error, OperationalError, Pipeline

    may_prepare = driver.prepare_threshold is not None
    # Until we know who serves us; and without the settings, a plan for any batch may be slow.
    driver.prepare_threshold = None
    if not Pipeline.is_supported():
        return
    base: Any = driver.cursor_factory

    class SteadyCursor(base):  # type: ignore[misc]
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            if not (isinstance(query, str) and _HAS_PLAN.match(query)):
                return base.execute(self, query, *args, **options)
            settings = base(self.connection)
            first: Error | None = None
            try:
                with self.connection.pipeline():
                    try:
                        settings.execute(SETTINGS)
                        base.execute(self, query, *args, **options)
                    except Error as error:  # psycopg would log what comes after it.
                        first = error
            except Error as error:
                first = first or error
            except IndexError as error:  # psycopg lost count of a failed pipeline's answers.
                self.connection.close()
                first = OperationalError(f"the connection is lost: {error}")
            if first is not None:
                raise first
            served_by = int(settings.pgresult.get_value(0, 0))
            direct = may_prepare and served_by == self.connection.info.backend_pid
            self.connection.prepare_threshold = PREPARED_AFTER if direct else None
            return self

    driver.cursor_factory = SteadyCursor
