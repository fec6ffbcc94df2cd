"""The statements of `store.pruning`."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ...models.conditions import DEAD, DONE, DONE_EFFECT, ENDED_BATCH
from ..dialect import Dialect
from .batches import among


class Kind(NamedTuple):
    """Rows that are kept for some time.

    :ivar which: which rows of the table, in the words of an index.
    :ivar ended: the column with the time from which they are kept.
    :ivar age: the setting that says for how many seconds.
    :ivar free: SQL for: the old row ``one`` may go.
    """

    table: str
    which: str
    ended: str
    age: str
    free: str = "1 = 1"


RUNS = Kind("job_runs", DONE, "finished_at", "retention")
# A dead run that stops its key waits for an operator, however long.
DEAD_RUNS = RUNS._replace(which=f"{DEAD} AND (on_dead = 'stop') IS NOT TRUE", age="retention_dead")
# The effects of a run that has not succeeded stay while its row is there: a retry, of its own or an
# operator's, must find them.
EFFECTS = Kind(
    "job_effects",
    DONE_EFFECT,
    "done_at",
    "retention_dead",
    """COALESCE((SELECT r.status FROM job_runs r WHERE r.id = one.run_id), 'succeeded')
        IN ('succeeded', 'skipped')""",
)
# From the outside in: the members of a batch inside another are counted as long as that one is. Its
# ``then`` may still ask for the counts, until it is pruned itself.
BATCHES = Kind(
    "job_batches",
    ENDED_BATCH,
    "finished_at",
    "retention",
    """(SELECT r.id FROM job_runs r
        WHERE r.batch_id = one.id AND r.status <> 'running' LIMIT 1) IS NULL
    AND (SELECT r.id FROM job_runs r WHERE r.id = one.then_run_id) IS NULL
    AND (SELECT p.id FROM job_batches p WHERE p.id = one.parent_id) IS NULL""",
)
KINDS = (RUNS, DEAD_RUNS, EFFECTS, BATCHES)


def past(d: Dialect, kind: Kind) -> str:
    """Return SQL for: a row of *kind* is older than its retention."""
    return f"{kind.which} AND {kind.ended} < {d.later(f'0 - :{kind.age}')}"


@lru_cache
def oldest(d: Dialect, kind: Kind) -> str:
    """Return the query for some old rows of *kind*, from the time ``place`` on."""
    place = "CAST(:place AS timestamptz)" if d.name == "postgresql" else ":place"
    columns = ", status, batch_id" if kind.table == "job_runs" else ""
    return f"""
        SELECT id, {kind.ended} AS ended, CAST({kind.ended} AS text) AS place,
            CASE WHEN {kind.free} THEN 1 ELSE 0 END AS free {columns}
        FROM {kind.table} AS one WHERE {past(d, kind)} AND {kind.ended} >= {place}
        ORDER BY {kind.ended} LIMIT :chunk
    """


@lru_cache
def locked_runs(d: Dialect, kind: Kind) -> str:
    """Return `oldest` of runs, locked, but for those of the batches in ``held``.

    So that a run that an operator retries at this moment keeps both its row and its failures.
    """
    lock = "FOR UPDATE SKIP LOCKED" if d.name == "postgresql" else ""
    held = f"AND ({among(d, 'batch_id', 'held')}) IS NOT TRUE"
    return oldest(d, kind).replace("ORDER BY", f"{held} ORDER BY") + lock


@lru_cache
def behind(d: Dialect) -> str:
    """Return the query for the time, and when the oldest row of each kind ended that may go."""
    oldest_of = (
        f"(SELECT min(ended) FROM ({oldest(d, kind)}) AS o WHERE free = 1)" for kind in KINDS
    )
    return f"SELECT {d.now}, {', '.join(oldest_of)}"


def delete(d: Dialect, table: str, column: str = "id") -> str:
    """Return the DELETE of the rows whose *column* is in ``ids``."""
    return f"DELETE FROM {table} WHERE {among(d, column)}"


def delete_ended(d: Dialect, kind: Kind) -> str:
    """Return `delete` of rows that are of *kind* still."""
    return f"{delete(d, kind.table)} AND ({kind.which}) IS TRUE"
