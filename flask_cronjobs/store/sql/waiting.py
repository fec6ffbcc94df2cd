"""The statements of `Claims.may_find` and `Claims.look`."""

from __future__ import annotations

from ...models.conditions import FREE, KEYED
from ..dialect import Dialect

#: What is paused. By the index, since PostgreSQL's planner is kept from reading whole tables.
PAUSES = "SELECT kind, name FROM job_pauses ORDER BY kind, name"
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


def pauses_and_front(d: Dialect) -> str:
    """Return `front_of_queue` with a row for each pause: an idle worker asks for both at once."""
    nothing = "CAST(NULL AS text) AS kind, CAST(NULL AS text) AS name"
    return f"""
        SELECT {nothing}, waiting, due FROM ({front_of_queue(d)}) AS fronts
        UNION ALL SELECT kind, name, 0, 0 FROM ({PAUSES}) AS pauses
    """
