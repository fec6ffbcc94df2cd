"""Claim runs, and record their outcomes.

Every claim gets a fresh token, and every write about a claimed run names it. Once the lease has
gone to another worker, the token matches no row, so a late write changes nothing. A status, an id
or a worker's name alone would not protect the row.

`exchange` holds the statements that claim and record on PostgreSQL, and claim on SQLite.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from sqlalchemy import Connection, TextClause, text

from ...db.connection import Bookkeeping, Rows
from ...db.dialect import Dialect
from ...models.conditions import (
    HANDED,
    HOLDS_KEY,
    KEYED,
    RUNNABLE,
    RUNNING,
    UNKEYED,
    UNPLACED,
    sql_list,
)
from ...types import FAILED_KINDS, RETURNED_KINDS, Outcome, is_alone
from ..outcomes import (
    failures,
    forget_failures,
    is_plain,
    outcome_parameters,
    record,
    success_arrays,
)
from . import claim as statements
from .claim import NO_CLAIM, ClaimRequest, Exchange, received, recorded_in
from .handed import begin
from .leases import as_held, given, passed_over

#: How many waiting runs are looked at, of those with a concurrency key and of those without.
LOOKED_AT = 100
#: For how long after its claim a run may come back that a worker has claimed ahead, in seconds: one
#: that another run holds up there is given back within half of it.
AHEAD_FOR = 1.0
#: How long to wait before an outcome whose row is locked is tried again, in seconds, and how often.
#: A claim may lock a row for a moment that it does not take.
MOMENTS = (0.01, 0.04)


class Front(NamedTuple):
    """What `Claims.front` saw of the runs that come first.

    :ivar may_find: whether a claim may find a run, so that it is worth to start workers. False is
        certain. True is not: the runs may be of tasks or keys that cannot be claimed.
    :ivar turns_pend: whether turns of strict orders are to be given first; see `jobs.orders`.
    :ivar ahead: whether a worker has just claimed a run. It may have claimed it ahead, and give it
        back: a tick does not end meanwhile.
    """

    may_find: bool
    turns_pend: bool = False
    ahead: bool = False


class Claims:
    """Claims runs for a worker, and records what came of them.

    :ivar books: the worker's bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self.books: Bookkeeping = books
        self._dialect = books.dialect

    def exchange(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None, repeat: bool = True
    ) -> Exchange:
        """Record *outcomes* under their tokens, and claim what *request* asks for.

        PostgreSQL does both in one statement, SQLite in one short transaction. If the id of an
        outcome is neither in ``recorded`` nor in ``locked``, its lease was lost.

        Four things are tried again, each for its own reason:

        1. what the database refuses for now: by `Bookkeeping.call`;
        2. outcomes whose rows are locked: by `_exchange_repeating_locked`, and later by the keeper;
        3. an exchange whose answer was lost: by `Exchanger`, which first asks what was committed;
        4. the same if the server committed it after that: by `Exchanger.release_late`.

        :param repeat: whether to repeat after a broken connection. If the first try had committed,
            a repeat reports its outcomes as lost and does not know of its claims.
        :raises DatabaseTrouble: nothing was recorded or claimed, or it is unknown whether it was.
        """
        forget_failures(self.books, outcomes)
        exchange = self._exchange_repeating_locked(outcomes, request, repeat)
        unbegun = [each for each in outcomes if each.kind == "released" and not each.begun]
        if unbegun:
            self.books.rows(_restore_keys(self._dialect), {"held": as_held(unbegun)})
        return exchange

    def _exchange_repeating_locked(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None, repeat: bool
    ) -> Exchange:
        """Exchange, and try again for a moment to record outcomes whose rows are locked."""
        exchange = self._send(outcomes, request, repeat)
        for pause in MOMENTS:
            locked = passed_over(self.books, outcomes, exchange.recorded)
            if not locked:
                return exchange
            time.sleep(pause)
            left = [outcome for outcome in outcomes if outcome.id in locked]
            exchange = exchange.plus(self._send(left, None, repeat))
        locked = passed_over(self.books, outcomes, exchange.recorded)
        return exchange._replace(locked=frozenset(locked))

    def _send(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None, repeat: bool
    ) -> Exchange:
        d, rows = self._dialect, self.books.rows
        parameters = request.parameters(d) if request else {}
        found: Rows = ()
        if request and request.handed:
            assert not outcomes
            found = rows(begin(d), parameters, repeat)
        elif outcomes and d.one_statement:
            plain = all(map(is_plain, outcomes))
            parameters |= success_arrays(outcomes) if plain else outcome_parameters(d, outcomes)
            both = statements.record_and_claim(d, plain, claims=request is not None)
            found = rows(both, parameters, repeat)
        elif outcomes:
            steps = partial(_record_then_claim, d, outcomes, request)
            found = self.books.transaction(steps, repeat)
        elif request:
            found = rows(statements.claim(d), parameters, repeat)
        return received(d, found, request.token if request else "")

    def first(self, request: ClaimRequest) -> tuple[str, bool] | None:
        """Return the task of the run that an idle worker would claim next; None if there is none.

        With it, whether that run must run alone. Nothing is claimed.

        :param request: for one run.
        """
        rows = self.books.rows(statements.first(self._dialect), request.parameters(self._dialect))
        return (rows[0].job_type, is_alone(*tuple(rows[0])[1:])) if rows else None

    def release_token(self, token: str, run_id: int | None = None) -> int:
        """Release every run held under *token*, not counting the attempt; return how many.

        For a claim whose answer was lost: the database may have committed it.

        :param run_id: release this one alone.
        """
        rows = self.books.rows(_CLAIMED_UNDER, {"token": token})
        released = [
            Outcome(row.id, token, "released", row.attempts, row.job_type)
            for row in rows
            if run_id in (None, row.id)
        ]
        return len(self.exchange(released, None).recorded) if released else 0

    def already_recorded(self, outcomes: Iterable[Outcome]) -> Exchange:
        """Return which of *outcomes* their rows already have.

        For an `exchange` whose answer was lost: the database may have committed it.
        """
        looked_for = [{"id": o.id, "kind": o.kind, "attempt": o.attempt} for o in outcomes]
        parameters = {"outcomes": json.dumps(looked_for)}
        return recorded_in(self.books.rows(_already_recorded(self._dialect), parameters))

    def front(self) -> Front:
        """Look at the runs that come first, without claiming them."""
        rows = self.books.rows(text(front_of_queue(self._dialect)))
        turns_pend = any(row.unplaced for row in rows)
        may_find = turns_pend or any(row.due or row.waiting >= LOOKED_AT for row in rows)
        return Front(may_find, turns_pend, ahead=any(row.ahead for row in rows))


def _record_then_claim(
    d: Dialect, outcomes: Sequence[Outcome], request: ClaimRequest | None, connection: Connection
) -> Rows:
    """Do on SQLite what `record_and_claim` does on PostgreSQL; return the same rows."""
    parameters = outcome_parameters(d, outcomes)
    plain = all(map(is_plain, outcomes))
    rows = list(connection.execute(record(d, _RECORDED, plain), parameters).all())
    if any(outcome.kind in FAILED_KINDS for outcome in outcomes):
        written = json.dumps([row.id for row in rows])
        connection.execute(failures(d), {**parameters, "recorded": written})
    if request:
        rows += connection.execute(statements.claim(d), request.parameters(d)).all()
    return rows


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
        for condition in (UNKEYED, KEYED)
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


@lru_cache(maxsize=2)
def _already_recorded(d: Dialect) -> TextClause:
    outcomes = d.table("outcomes", id="bigint", kind="text", attempt="integer")
    return text(f"""
    WITH o AS MATERIALIZED {outcomes}
    SELECT r.id, r.status AS stored FROM job_runs r JOIN o ON r.id = o.id
    WHERE {d.any_of("r.id", "SELECT id FROM o")} AND (
        (r.status = o.kind AND r.attempts = o.attempt)
        OR (o.kind = 'failed' AND r.status = 'cancelled' AND r.attempts = o.attempt)
        OR (o.kind IN {sql_list(RETURNED_KINDS)} AND r.attempts = o.attempt - 1)
    )
    """)


#: What SQLite's statement returns of each run, in the shape of a claim's row.
_RECORDED = f"job_runs.id AS id, {NO_CLAIM}, job_runs.status AS stored"

_CLAIMED_UNDER = text(f"""
    SELECT id, job_type, attempts FROM job_runs WHERE {RUNNING} AND locked_by = :token
""")


@lru_cache(maxsize=2)
def _restore_keys(d: Dialect) -> TextClause:
    """Return the statement that gives runs their keys back that were claimed and did not begin.

    Not if another run has the key by now; and of several that want it back, the last gets it.
    """
    ids = "SELECT id FROM given"
    # LIMIT keeps PostgreSQL from a join with all keys: it looks up one for each run.
    waits = f"{RUNNABLE} AND unique_while = 'waiting' AND started_at IS NOT NULL"
    never_begun = f"{waits} AND attempts = 0 AND snoozes = 0"
    free = f"""
        SELECT id FROM job_runs r WHERE {d.any_of("id", ids)} AND {never_begun}
            AND (
                SELECT id FROM job_runs
                WHERE idempotency_key = r.idempotency_key AND {HOLDS_KEY} LIMIT 1
            ) IS NULL AND (
                SELECT id FROM job_runs WHERE {d.any_of("id", ids)} AND {never_begun}
                    AND idempotency_key = r.idempotency_key AND id > r.id LIMIT 1
            ) IS NULL {d.skip_locked_of("r")}
    """
    return text(f"""
    WITH given AS MATERIALIZED {given(d)}
    UPDATE job_runs SET started_at = NULL, updated_at = {d.now} WHERE {d.any_of("id", free)}
    RETURNING id
    """)
