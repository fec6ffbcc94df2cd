"""Look at the runs that come first in the queue, without claiming them, and at who holds one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from sqlalchemy import Connection, TextClause, text

from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import KEYED, UNKEYED
from ..types import is_alone
from .claim_statement import claim_statement

if TYPE_CHECKING:
    from .claim import ClaimRequest

#: How many waiting runs are looked at, of those with a concurrency key and of those without.
LOOKED_AT = 100


def look_at_queue(books: Bookkeeping) -> bool:
    """Return whether a claim may find a run, so that it is worth to start workers.

    False is certain. True is not: the runs that come first may be of tasks or keys that cannot be
    claimed.
    """
    rows = books.rows(look_statement(books.dialect))
    return any(row.due or row.waiting >= LOOKED_AT for row in rows)


@lru_cache(maxsize=4)
def look_statement(d: Dialect) -> TextClause:
    """Return the query for how many runs are in the first window, and how many of them are due.

    That window alone, in the order of an index: there may be a million runs that are due next year.
    """
    windows = " UNION ALL ".join(
        f"""
        SELECT count(*) AS waiting, count(CASE WHEN run_at <= {d.now} THEN 1 END) AS due FROM (
            SELECT run_at FROM job_runs WHERE {condition}
            ORDER BY priority DESC, run_at, id LIMIT {LOOKED_AT}
        ) AS first_window
        """
        for condition in (UNKEYED, KEYED)
    )
    return text(windows)


def next_run(books: Bookkeeping, request: ClaimRequest) -> tuple[str, bool] | None:
    """Return the task of the run that an idle worker would claim next; None if there is none.

    With it, whether that run must run alone. Nothing is claimed.

    :param request: for one run.
    """
    d = books.dialect
    rows = books.rows(claim_statement(d, only_look=True), request.parameters(d))
    return (rows[0].job_type, is_alone(*tuple(rows[0])[1:])) if rows else None


def holder(connection: Connection, run_id: int) -> str:
    """Return a sentence about who has locked a run's row, on PostgreSQL."""
    found = connection.execute(text(_HOLDER), {"run_id": run_id}).first()
    if found is None:
        return "Another transaction has locked its row, or has sent it a signal. End that one."
    return (
        f"Its row is locked by the database's process {found.pid} ({found.application_name or '?'}"
        f", {found.state}). End that transaction."
    )


#: Who has locked a row, unless several have.
_HOLDER = """
    SELECT pid, application_name, state FROM pg_stat_activity
    WHERE backend_xid = (SELECT xmax FROM job_runs WHERE id = :run_id) AND pid <> pg_backend_pid()
"""
