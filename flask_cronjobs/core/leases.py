"""Renew the leases of held runs, find leases that have ended, and begin runs in executors."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from sqlalchemy import TextClause, text

from ..db.connection import Bookkeeping, Rows
from ..db.dialect import Dialect
from ..errors import DatabaseTrouble
from ..models.conditions import ODD, RUNNING, SPENT
from ..text import clean
from ..types import Claim, Outcome
from . import gate
from .claim_statement import unpaused
from .columns import assigned, ended, leased, most_attempts, returned
from .outcome import is_ours, ours


class Renewal(NamedTuple):
    """The result of a heartbeat, or of a check between two heartbeats.

    :ivar held: the ids of the runs that are still held.
    :ivar cancelled: those of them for which a cancel was requested.
    :ivar blocked: those of them whose leases were not extended, since another transaction has
        locked their rows.
    """

    held: frozenset[int]
    cancelled: frozenset[int]
    blocked: frozenset[int] = frozenset()


#: Seconds to wait on SQLite, once the write lock is free, before runs are reclaimed, so that living
#: workers can renew their leases. This is long enough for each keeper to try once more.
RENEWAL_SECONDS = 3.0
#: The largest number of runs that are reclaimed, or ended because no attempt is left, at a time.
TAKEN_AT_ONCE = 200


def renewal_window(lease: float) -> float:
    """Return `RENEWAL_SECONDS`, or half of *lease* (in seconds) if that is less.

    While the write lock keeps a worker from renewing its leases, the worker treats them as valid
    for this long after each failed try. This is safe, since a tick that finds the lock free waits
    this long before it reclaims.
    """
    return min(RENEWAL_SECONDS, lease / 2)


#: A claim or an outcome, which names a held run by its id and its token.
Held: TypeAlias = Claim | Outcome


def renew(books: Bookkeeping, claims: Collection[Claim], lease: float) -> Renewal:
    """Extend the leases of *claims* to *lease* seconds from now."""
    parameters = {"held": as_held(claims), "lease": lease}
    renewal = _renewal(books.rows(_renew(books.dialect), parameters))
    if still_held(books, claims, renewal.held):
        current = watch(books, claims)
        renewal = current._replace(blocked=current.held - renewal.held)
    return renewal


def watch(books: Bookkeeping, claims: Iterable[Held]) -> Renewal:
    """Return what `renew` would, without extending the leases."""
    return _renewal(books.rows(_watch(books.dialect), {"held": as_held(claims)}))


def progress(books: Bookkeeping, claim: Claim, fraction: float, message: str | None) -> bool:
    """Write how far a run has got; return whether it was written.

    It is not written if the lease was lost, or if another transaction has locked the row.

    :param fraction: from 0 to 1.
    """
    values = {"id": claim.id, "token": claim.token, "fraction": fraction}
    return bool(books.rows(_progress(books.dialect), {**values, "message": clean(message)}))


def still_held(
    books: Bookkeeping, claims: Collection[Held], touched: Collection[int]
) -> Collection[int]:
    """Return the ids of those *claims* that a statement did not touch although they are held."""
    if len(touched) >= len(claims):
        return ()
    untouched = [claim for claim in claims if claim.id not in touched]
    return watch(books, untouched).held if untouched and books.dialect.skip_locked else ()


def look_for_expired(books: Bookkeeping) -> list[Claim]:
    """Return the claims whose lease ended, at most `TAKEN_AT_ONCE`, oldest first.

    The claims have no payload and no slot.
    """
    rows = books.rows(expired(books.dialect), {"limit": TAKEN_AT_ONCE})
    return [
        Claim(
            row.id,
            row.locked_by,
            row.job_type,
            stored_payload=None,
            attempt=row.attempts,
            max_attempts=most_attempts(row.max_attempts, row.attempts),
            stored_slot=None,
            definition_id=row.definition_id,
            forgiven=row.forgiven,
            label=row.label,
        )
        for row in rows
        if isinstance(row.locked_by, str)  # SQLite accepts a blob, which is not a token.
    ]


def end_spent(books: Bookkeeping) -> list[Outcome]:
    """End at most `TAKEN_AT_ONCE` waiting runs without an attempt left; return their outcomes.

    This happens only if ``max_attempts`` was lowered by hand.
    """
    rows = books.rows(_end_spent(books.dialect), {"limit": TAKEN_AT_ONCE})
    # Return the outcomes in any case, so that they are reported. Other workers open parked runs.
    with suppress(DatabaseTrouble):
        gate.open_behind(books, [row.id for row in rows])
    return [
        Outcome(
            *(row.id, "", "dead", row.attempts, row.job_type, row.last_error, row.error_type),
            definition_id=row.definition_id,
            label=row.label,
        )
        for row in rows
    ]


def _renewal(rows: Rows) -> Renewal:
    return Renewal(
        frozenset(row.id for row in rows),
        frozenset(row.id for row in rows if row.cancel_requested_at is not None),
    )


def as_held(claims: Iterable[Held]) -> str:
    """Return *claims* as the parameter of statements about held runs."""
    return json.dumps([{"id": claim.id, "token": claim.token} for claim in claims])


def held_table(d: Dialect) -> str:
    """Return SQL that reads the parameter of `as_held` as a table."""
    return d.table("held", id="bigint", token="text")


@lru_cache(maxsize=2)
def _renew(d: Dialect) -> TextClause:
    return text(f"""
    WITH {ours(d, held_table(d))}
    UPDATE job_runs SET locked_until = {d.clock_after(":lease")}
    FROM given WHERE {is_ours(d)}
    RETURNING job_runs.id, job_runs.cancel_requested_at
    """)


@lru_cache(maxsize=2)
def _watch(d: Dialect) -> TextClause:
    return text(f"""
    WITH given AS MATERIALIZED {held_table(d)}
    SELECT r.id, r.cancel_requested_at FROM job_runs r JOIN given ON r.id = given.id
    WHERE {d.any_of("r.id", "SELECT id FROM given")}
        AND r.locked_by = given.token AND (r.{RUNNING}) IS TRUE
    """)


@lru_cache(maxsize=2)
def _progress(d: Dialect) -> TextClause:
    own = f"id = :id AND locked_by = :token AND ({RUNNING}) IS TRUE"
    return text(f"""
    UPDATE job_runs SET progress = :fraction, progress_message = :message
    WHERE id = (SELECT id FROM job_runs WHERE {own} {d.skip_locked}) AND {own} RETURNING id
    """)


@lru_cache(maxsize=2)
def expired(d: Dialect) -> TextClause:
    """Return the query for expired leases of rows that are not locked."""
    return text(f"""
    SELECT id, locked_by, job_type, attempts, max_attempts, definition_id, forgiven, label
    FROM job_runs WHERE {RUNNING} AND locked_until <= {d.now} ORDER BY locked_until LIMIT :limit
    {d.skip_locked}
    """)


@lru_cache(maxsize=2)
def _end_spent(d: Dialect) -> TextClause:
    # With ORDER BY id, the planner might read the primary key instead of the partial index.
    spent = f"SELECT id FROM job_runs WHERE {ODD} AND {SPENT} LIMIT :limit {d.skip_locked}"
    last_error = "COALESCE('. The last error: ' || last_error, '')"
    error = f"'no attempt is left: max_attempts is ' || max_attempts || {last_error}"
    error_type = "COALESCE(error_type, 'NoAttemptLeft')"
    return text(f"""
    UPDATE job_runs SET {assigned(ended("'dead'", d.now, error, error_type))}
    WHERE {d.any_of("id", spent)}
    RETURNING id, job_type, attempts, last_error, error_type, definition_id, label
    """)


@lru_cache(maxsize=2)
def begin_handed(d: Dialect) -> TextClause:
    """Return the statement with which an executor's worker begins a run.

    It replaces the token with which the run was handed over, so if two workers bring the same
    token, only the first begins the run. The run does not begin if a cancel was requested, its task
    or queue is paused, this code does not have its task, or it no longer comes first in its strict
    order.
    """
    return text(f"""
    UPDATE job_runs SET {assigned(leased(d))}
    WHERE id = :id AND locked_by = :handed AND ({RUNNING}) IS TRUE
        AND cancel_requested_at IS NULL AND {d.one_of("job_type", "tasks")}
        AND {unpaused("job_type", "task")} AND {unpaused("queue", "queue")}
        AND {gate.comes_first("job_runs")}
    RETURNING {returned(d)}, NULL AS parked, NULL AS blocked
    """)
