"""Claim runs, renew their leases, and record their outcomes.

Every claim gets a fresh token, and every write about a claimed run names it. Once the lease has
gone to another worker, the token matches no row, so a late write changes nothing. A status, an id
or a worker's name alone would not protect the row.

`sql.claims` holds the statements.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Connection, Row, update
from sqlalchemy.orm import Session

from ..models import JobRun
from ..text import clean
from ..types import JSON, Claim, ClaimRequest, Exchange, Outcome
from .clock import database_now
from .connection import Bookkeeping, Rows
from .sql.claims import FAR, ClaimStatements, claim_statements

_UNKNOWN = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a heartbeat learned: the runs still held, and those among them to be cancelled."""

    held: frozenset[int]
    cancelled: frozenset[int]


@dataclass(frozen=True, slots=True)
class Expired:
    """A run whose lease ran out."""

    id: int
    token: str
    job_type: str
    attempt: int
    max_attempts: int


class Claims:
    """The writes of a worker about the runs that it holds.

    :param books: the worker's bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._dialect = books.dialect
        self._sql: ClaimStatements = claim_statements(books.dialect)

    def exchange(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None, repeat: bool = True
    ) -> Exchange:
        """Record *outcomes* under their tokens, and claim what *request* asks for.

        PostgreSQL does both in one statement (and claims in another if the front of the queue holds
        too few runs to claim), SQLite in one short transaction. If the id of an
        outcome is not in ``recorded``, its lease was lost.

        :param repeat: whether to repeat after a broken connection. If the first try had committed,
            a repeat reports its outcomes as lost and does not know of its claims.
        :raises DatabaseTrouble: nothing was recorded or claimed, or it is unknown whether it was.
        """
        rows: Rows = ()
        if self._dialect.one_statement:
            nothing = ClaimRequest(limit=0, token="", tasks=())
            parameters = _outcome_parameters(outcomes) | self._claim_parameters(request or nothing)
            rows = self._books.rows(self._sql.exchange, parameters, repeat)
            if rows and rows[-1].stored == FAR:
                rows = [*rows[:-1], *self._books.rows(self._sql.claim, parameters, repeat)]
        elif outcomes:
            rows = self._books.transaction(
                lambda c: self._exchange_in_steps(c, outcomes, request), repeat
            )
        elif request:
            rows = self._books.rows(self._sql.claim, self._claim_parameters(request), repeat)
        return self._received(rows, request.token if request else "")

    def renew(self, held: Iterable[Claim], lease: float) -> Renewal:
        """Extend the leases of *held* to *lease* seconds from now."""
        return _renewal(self._books.rows(self._sql.renew, {"held": _held(held), "lease": lease}))

    def watch(self, held: Iterable[Claim]) -> Renewal:
        """Return what `renew` would, without extending the leases."""
        return _renewal(self._books.rows(self._sql.watch, {"held": _held(held)}))

    def progress(self, claim: Claim, fraction: float, message: str | None) -> bool:
        """Write how far a run has got; return whether the lease still holds.

        :param fraction: from 0 to 1.
        """
        values = {"id": claim.id, "token": claim.token, "fraction": fraction}
        return bool(self._books.rows(self._sql.progress, {**values, "message": clean(message)}))

    def release_token(self, token: str) -> int:
        """Release every run held under *token*, not counting the attempt; return how many.

        For a claim whose answer was lost: the database may have committed it.
        """
        return len(self._books.rows(self._sql.release_token, {"token": token}))

    def already_recorded(self, outcomes: Iterable[Outcome]) -> Exchange:
        """Return which of *outcomes* their rows already have.

        For an `exchange` whose answer was lost: the database may have committed it.
        """
        looked_for = [{"id": o.id, "kind": o.kind, "attempt": o.attempt} for o in outcomes]
        parameters = {"outcomes": json.dumps(looked_for)}
        return _recorded(self._books.rows(self._sql.already_recorded, parameters))

    def expired_leases(self, limit: int = 200) -> list[Expired]:
        """Return at most *limit* runs whose lease ran out, oldest first."""
        rows = self._books.rows(self._sql.expired, {"limit": limit})
        return [
            Expired(row.id, row.locked_by, row.job_type, row.attempts, _most(row)) for row in rows
        ]

    def bury(self, limit: int) -> list[Outcome]:
        """End at most *limit* waiting runs that have no attempt left; return how each ended.

        No attempt ends so: somebody has lowered ``max_attempts`` by hand.
        """
        rows = self._books.rows(self._sql.bury, {"limit": limit})
        return [
            Outcome(row.id, "", "dead", row.attempts, row.job_type, row.last_error, row.error_type)
            for row in rows
        ]

    def _exchange_in_steps(
        self, connection: Connection, outcomes: Sequence[Outcome], request: ClaimRequest | None
    ) -> Rows:
        parameters = _outcome_parameters(outcomes)
        rows = list(connection.execute(self._sql.record, parameters).all())
        if any(outcome.kind in ("failed", "dead") for outcome in outcomes):
            recorded = json.dumps([row.id for row in rows])
            connection.execute(self._sql.failures, {**parameters, "recorded": recorded})
        if request:
            rows += connection.execute(self._sql.claim, self._claim_parameters(request)).all()
        return rows

    def _claim_parameters(self, request: ClaimRequest) -> dict[str, object]:
        return {
            "limit": request.limit,
            "token": request.token,
            "tasks": self._dialect.array(request.tasks),
            "queues": self._dialect.array(request.queues),
            "any_queue": not request.queues,
            "lease": request.lease,
            "alone": request.alone,
            "after": request.after,
        }

    def _received(self, rows: Rows, token: str) -> Exchange:
        claimed = [row for row in rows if row.job_type is not None]
        claimed.sort(key=lambda row: (-row.priority, row.run_at, row.id))
        recorded = _recorded([row for row in rows if row.job_type is None])
        return replace(recorded, claims=tuple(self._claim(row, token) for row in claimed))

    def _claim(self, row: Row[Any], token: str) -> Claim:
        payload: dict[str, JSON] = {}
        scheduled_for, broken = _UNKNOWN, None
        try:
            payload = self._dialect.parsed(row.payload)
            scheduled_for = self._dialect.moment(row.scheduled_for)
            if not isinstance(payload, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError("its payload is not a JSON object")
        except (AttributeError, TypeError, ValueError) as error:  # SQLite accepts any text.
            broken = f"the run's row cannot be read: {error!r}. Correct it in job_runs."
        return Claim(
            id=row.id,
            token=token,
            job_type=row.job_type,
            payload=payload,
            attempt=row.attempts,
            max_attempts=_most(row),
            scheduled_for=scheduled_for,
            idempotency_key=row.idempotency_key,
            definition_id=row.definition_id,
            concurrency_key=row.concurrency_key,
            broken=broken,
        )


def _most(row: Row[Any]) -> int:
    """Return ``max_attempts``; if it is no number, which SQLite accepts, the attempts so far."""
    most: Any = row.max_attempts
    return most if isinstance(most, int) else int(row.attempts)


def _renewal(rows: Rows) -> Renewal:
    return Renewal(
        frozenset(row.id for row in rows),
        frozenset(row.id for row in rows if row.cancel_requested_at is not None),
    )


def _recorded(rows: Rows) -> Exchange:
    return Exchange(
        recorded=frozenset(row.id for row in rows),
        cancelled=frozenset(row.id for row in rows if row.stored == "cancelled"),
    )


def _outcome_parameters(outcomes: Sequence[Outcome]) -> dict[str, object]:
    return {"outcomes": json.dumps([_outcome_row(outcome) for outcome in outcomes])}


def _outcome_row(outcome: Outcome) -> dict[str, object]:
    """Return *outcome* as the statements read it; a plain success needs few keys."""
    row: dict[str, object] = {"id": outcome.id, "token": outcome.token, "kind": outcome.kind}
    if outcome.result is not None:
        row["result"] = json.dumps(outcome.result)
    if outcome.kind != "succeeded":
        row |= {
            "attempt": outcome.attempt,
            "error": clean(outcome.error),
            "error_type": clean(outcome.error_type),
            "stack": clean(outcome.stack),
            "delay": outcome.delay,
            "reclaimed": int(outcome.reclaimed),
        }
    return row


def _held(claims: Iterable[Claim]) -> str:
    return json.dumps([{"id": claim.id, "token": claim.token} for claim in claims])


def finalize_in(session: Session, claim: Claim, result: JSON) -> bool:
    """Write ``succeeded`` in *session*'s transaction, if *claim*'s token still holds the run.

    For ``atomic=True``: the handler's own writes and its outcome must commit together, so this
    runs on the app's session. `Claims.exchange` writes all other outcomes, many at a time and
    with SQL for failures and releases, on the bookkeeping connection.

    :returns: whether the run was still held.
    """
    statement = (
        update(JobRun)
        .where(JobRun.id == claim.id, JobRun.locked_by == claim.token, JobRun.status == "running")
        .values(
            status="succeeded",
            finished_at=database_now(),
            updated_at=database_now(),
            result=result,
            last_error=None,
            error_type=None,
            locked_by=None,
            locked_until=None,
            concurrency_share=None,
        )
        .returning(JobRun.id)
        .execution_options(synchronize_session=False)
    )
    return session.execute(statement).first() is not None
