"""Look at the first runs of the queue without claiming them, and find who has locked one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from sqlalchemy import Connection, TextClause, text

from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import READY
from ..types import must_run_alone
from .claim_statement import claim_statement
from .columns import most_attempts

if TYPE_CHECKING:
    from .claim import ClaimRequest

#: The most waiting runs that `look_at_queue` checks.
LOOKED_AT_RUNS = 100


def look_at_queue(books: Bookkeeping) -> bool:
    """Return whether a claim may find a run, so that starting workers is worthwhile.

    False is certain. True is not, since the first runs may have tasks or keys that cannot be
    claimed.
    """
    rows = books.rows(look_statement(books.dialect))
    return any(row.due or row.waiting >= LOOKED_AT_RUNS for row in rows)


@lru_cache(maxsize=4)
def look_statement(d: Dialect) -> TextClause:
    """Return the query that counts the first waiting runs, and those of them that are due.

    It reads at most `LOOKED_AT_RUNS`, in the order of an index, since a million runs may wait for
    next year.
    """
    return text(f"""
    SELECT count(*) AS waiting, count(CASE WHEN run_at <= {d.now} THEN 1 END) AS due FROM (
        SELECT run_at FROM job_runs WHERE {READY}
        ORDER BY priority DESC, run_at, id LIMIT {LOOKED_AT_RUNS}
    ) AS first_window
    """)


def next_run(books: Bookkeeping, request: ClaimRequest) -> tuple[str, bool] | None:
    """Return the next claimable run's task, and whether it must run alone; None if there is none.

    Nothing is claimed.

    :param request: a request for one run.
    """
    d = books.dialect
    rows = books.rows(claim_statement(d, only_look=True), request.parameters(d))
    if not rows:
        return None
    task, attempt, most, error_type = tuple(rows[0])
    return task, must_run_alone(attempt, most_attempts(most, attempt), error_type)


def locker(connection: Connection, run_id: int) -> str:
    """Return a sentence that says which process of PostgreSQL has locked a run's row."""
    row = connection.execute(text(_LOCKER), {"run_id": run_id}).first()
    if row is None:
        return "Another transaction has locked its row or sent it a signal. End that transaction."
    return (
        f"Its row is locked by the database's process {row.pid} ({row.application_name or '?'}"
        f", {row.state}). End that transaction."
    )


#: Finds the process that has locked a row, unless several have.
_LOCKER = """
    SELECT pid, application_name, state FROM pg_stat_activity
    WHERE backend_xid = (SELECT xmax FROM job_runs WHERE id = :run_id) AND pid <> pg_backend_pid()
"""
