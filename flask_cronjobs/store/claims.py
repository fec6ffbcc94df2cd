"""Claims: taking runs, holding them by lease, and finalizing them under their token.

Every write about a held run carries its token, fresh for each claim, and matches no row once the
lease went to somebody else. That, and never a status, an id or a worker's name alone, is the fence.

The keeper's `exchange` records the outcomes that have piled up and claims what comes next: on
PostgreSQL in one statement, on SQLite in one short transaction. `claims_sql` holds the texts.
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
from .sql.claims import ClaimStatements, claim_statements

_UNKNOWN = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a heartbeat learned: runs still held, and those of them that are to be cancelled."""

    held: frozenset[int]
    cancelled: frozenset[int]


@dataclass(frozen=True, slots=True)
class Expired:
    """A run whose lease ran out, as `expired_leases` found it."""

    id: int
    token: str
    job_type: str
    attempt: int
    max_attempts: int


class Claims:
    """Every write of a worker about the runs that it holds.

    :param books: the worker's bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._dialect = books.dialect
        self._sql: ClaimStatements = claim_statements(books.dialect)

    def exchange(
        self,
        outcomes: Sequence[Outcome],
        request: ClaimRequest | None,
        repeat: bool = True,
    ) -> Exchange:
        """Record *outcomes* under their tokens, and claim what *request* asks for.

        An outcome whose id is not in ``recorded`` matched no row: its lease was lost.

        :param repeat: whether to do it again after the connection broke. The second time finds
            done what the first did: recorded outcomes would pass for lost, and claims be forgotten.
        :raises DatabaseTrouble: nothing, or nothing known, was recorded and claimed.
        """
        rows: Rows = ()
        if self._dialect.one_statement:
            parameters = self._parameters(outcomes, request)
            rows = self._books.rows(self._sql.exchange, parameters, repeat)
        elif outcomes:
            rows = self._books.transaction(
                lambda c: self._exchange_in_steps(c, outcomes, request), repeat
            )
        elif request:
            rows = self._books.rows(self._sql.claim, self._claim_parameters(request), repeat)
        return self._received(rows, request.token if request else "")

    def renew(self, held: Iterable[Claim], lease: float) -> Renewal:
        """The heartbeat: extend the lease of *held* by *lease* seconds from now."""
        parameters = {"held": _held(held), "lease": lease}
        rows = self._books.rows(self._sql.renew, parameters)
        return Renewal(
            frozenset(row.id for row in rows),
            frozenset(row.id for row in rows if row.cancel_requested_at is not None),
        )

    def watch(self, held: Iterable[Claim]) -> Renewal:
        """As `renew`, but only looks."""
        rows = self._books.rows(self._sql.watch, {"held": _held(held)})
        return Renewal(
            frozenset(row.id for row in rows),
            frozenset(row.id for row in rows if row.cancel_requested_at is not None),
        )

    def progress(self, claim: Claim, fraction: float, message: str | None) -> bool:
        """Write how far a held run is; whether the lease still holds."""
        rows = self._books.rows(
            self._sql.progress,
            {"id": claim.id, "token": claim.token, "fraction": fraction, "message": clean(message)},
        )
        return bool(rows)

    def release_token(self, token: str) -> int:
        """Give back every run held under *token*, attempts not counted; how many there were.

        For a claim whose answer never came: the database may have committed it all the same.
        """
        return len(self._books.rows(self._sql.release_token, {"token": token}))

    def settled(self, outcomes: Iterable[Outcome]) -> Exchange:
        """Which of *outcomes* stand in their rows already.

        For a record whose answer never came: it may have been committed before the trouble.
        """
        parameters = {"outcomes": json.dumps([_settled_row(outcome) for outcome in outcomes])}
        return _recorded(self._books.rows(self._sql.settled, parameters))

    def expired_leases(self, limit: int = 200) -> list[Expired]:
        """Runs whose lease ran out, oldest first, at most *limit*."""
        rows = self._books.rows(self._sql.expired, {"limit": limit})
        return [
            Expired(row.id, row.locked_by, row.job_type, row.attempts, row.max_attempts)
            for row in rows
        ]

    def _exchange_in_steps(
        self, connection: Connection, outcomes: Sequence[Outcome], request: ClaimRequest | None
    ) -> Sequence[Row[Any]]:
        parameters = self._outcome_parameters(outcomes)
        rows = list(connection.execute(self._sql.record, parameters).all())
        if any(outcome.kind in ("failed", "dead") for outcome in outcomes):
            recorded = json.dumps([row.id for row in rows])
            connection.execute(self._sql.failures, {**parameters, "recorded": recorded})
        if request:
            rows += connection.execute(self._sql.claim, self._claim_parameters(request)).all()
        return rows

    def _parameters(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None
    ) -> dict[str, object]:
        nothing = ClaimRequest(limit=0, token="", tasks=())
        return self._outcome_parameters(outcomes) | self._claim_parameters(request or nothing)

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

    def _received(self, rows: Sequence[Row[Any]], token: str) -> Exchange:
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
        except (AttributeError, TypeError, ValueError) as error:  # SQLite takes any text.
            broken = f"the run's row cannot be read: {error!r}. Mend it in job_runs."
        return Claim(
            id=row.id,
            token=token,
            job_type=row.job_type,
            payload=payload,
            attempt=row.attempts,
            max_attempts=row.max_attempts,
            scheduled_for=scheduled_for,
            idempotency_key=row.idempotency_key,
            definition_id=row.definition_id,
            concurrency_key=row.concurrency_key,
            broken=broken,
        )

    @staticmethod
    def _outcome_parameters(outcomes: Sequence[Outcome]) -> dict[str, object]:
        return {"outcomes": json.dumps([_outcome_row(outcome) for outcome in outcomes])}


def _recorded(rows: Sequence[Row[Any]]) -> Exchange:
    return Exchange(
        recorded=frozenset(row.id for row in rows),
        cancelled=frozenset(row.id for row in rows if row.stored == "cancelled"),
    )


def _outcome_row(outcome: Outcome) -> dict[str, object]:
    """*outcome* as the statements read it; the keys of a plain success stay few."""
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


def _settled_row(outcome: Outcome) -> dict[str, object]:
    return {"id": outcome.id, "kind": outcome.kind, "attempt": outcome.attempt}


def _held(claims: Iterable[Claim]) -> str:
    return json.dumps([{"id": claim.id, "token": claim.token} for claim in claims])


def finalize_in(session: Session, claim: Claim, result: JSON) -> bool:
    """Write ``succeeded`` in *session*'s transaction if *claim*'s token still holds the run."""
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
