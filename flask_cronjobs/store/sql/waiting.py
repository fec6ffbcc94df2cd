"""The statement of `Claims.may_find`."""

from __future__ import annotations

from ...models.conditions import FREE, KEYED
from ..dialect import Dialect

#: How many waiting runs are looked at, of those with a concurrency key and of those without.
FRONT = 100


def front_of_queue(d: Dialect) -> str:
    """Return the query for how many runs are in the front of the queue, and how many are due.

    The front alone, in the order of an index: there may be a million runs that are due next year.
    """
    return " UNION ALL ".join(
        f"""
        SELECT count(*) AS waiting, count(CASE WHEN run_at <= {d.now} THEN 1 END) AS due FROM (
            SELECT run_at FROM job_runs WHERE {condition}
            ORDER BY priority DESC, run_at, id LIMIT {FRONT}
        ) AS front
        """
        for condition in (FREE, KEYED)
    )
