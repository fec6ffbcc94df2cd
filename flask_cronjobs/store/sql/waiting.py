"""The statement of `Claims.front`."""

from __future__ import annotations

from ...models.conditions import FREE, HANDED, KEYED, UNPLACED
from ..dialect import Dialect

#: How many waiting runs are looked at, of those with a concurrency key and of those without.
LOOKED_AT = 100
#: For how long after its claim a run may come back that a worker has claimed ahead, in seconds: one
#: that another run holds up there is given back within half of it.
AHEAD_FOR = 1.0


def front_of_queue(d: Dialect) -> str:
    """Return the query for how many runs are in the front of the queue, and how many are due.

    The front alone, in the order of an index: there may be a million runs that are due next year.
    Where nobody has looked yet whose turn it is in a strict order, a run may be due. And a run that
    another worker has just claimed may come back.
    """
    unplaced = f"SELECT id FROM job_runs WHERE {UNPLACED} ORDER BY id LIMIT 1"
    fronts = " UNION ALL ".join(
        f"""
        SELECT count(*) AS waiting, count(CASE WHEN run_at <= {d.now} THEN 1 END) AS due,
            0 AS unplaced, 0 AS ahead FROM (
            SELECT run_at FROM job_runs WHERE {condition}
            ORDER BY priority DESC, run_at, id LIMIT {LOOKED_AT}
        ) AS front
        """
        for condition in (FREE, KEYED)
    )
    ahead = f"""
        SELECT id FROM job_runs
        WHERE status = 'running' AND started_at > {d.later(str(-AHEAD_FOR))}
            AND ({HANDED}) IS NOT TRUE
        ORDER BY locked_until DESC LIMIT 1
    """
    return f"""
        {fronts} UNION ALL SELECT 0, 0, count(*), 0 FROM ({unplaced}) AS unplaced
        UNION ALL SELECT 0, 0, 0, count(*) FROM ({ahead}) AS ahead
    """
