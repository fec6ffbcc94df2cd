"""Keep PostgreSQL's planner on the indexes, whatever its statistics say.

A queue is filled and emptied within minutes, so that statistics about it are wrong most of the
time. With wrong ones the planner reads and sorts a whole backlog for each claim, or joins outcomes
and runs in time that grows with the square of the batch. Each statement of bookkeeping reads few
rows, and there is an index for each. So we forbid what is not needed, with each statement and for
its transaction alone: behind a pooler, a setting of the session would be passed on to others.
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
#: Its settings end with the transaction.
SETTINGS = "SELECT " + ", ".join(f"set_config('{name}', 'off', true)" for name in _OFF)

_HAS_PLAN = re.compile(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


def keep_to_indexes(driver: Any) -> None:
    """Send `SETTINGS` along with each statement of a psycopg connection that has a plan.

    Both are sent at once and make one transaction, as if they were a pipeline of two statements; so
    it takes no more round trips than the statement alone. Without pipelines, which libpq has had
    since version 14, the planner is left alone.
    """
    from psycopg import Error, Pipeline

    if not Pipeline.is_supported():
        return
    base: type[Any] = driver.cursor_factory

    class SteadyCursor(base):  # type: ignore[misc]
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            if not (isinstance(query, str) and _HAS_PLAN.match(query)):
                return super().execute(query, *args, **options)
            first: Error | None = None
            try:
                with self.connection.pipeline():
                    try:
                        base(self.connection).execute(SETTINGS)
                        super().execute(query, *args, **options)
                    except Error as error:  # psycopg would log what comes after it.
                        first = error
            except Error as error:
                first = first or error
            if first is not None:
                raise first
            return self

    driver.cursor_factory = SteadyCursor
