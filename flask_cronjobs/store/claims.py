"""Claim runs, renew their leases, and record their outcomes.

Every claim gets a fresh token, and every write about a claimed run names it. Once the lease has
gone to another worker, the token matches no row, so a late write changes nothing. A status, an id
or a worker's name alone would not protect the row.

`sql.claims` holds the statements.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from sqlalchemy import Connection, TextClause, text, update
from sqlalchemy.orm import Session

from .. import models
from ..text import clean
from ..types import JSON, Claim, Outcome, is_alone
from .claimed import most_attempts, received, recorded
from .clock import database_now
from .connection import Bookkeeping, Rows
from .dialect import dialect_of, json_text
from .failures import forget_failures
from .outcome_values import is_plain, outcome_arrays, outcome_parameters, success_arrays
from .rows import ClaimRequest, Exchange
from .sql import exchange as statements
from .sql.claims import ClaimStatements, claim_statements
from .sql.handed import begin, in_brokers
from .sql.outcomes import ended
from .sql.waiting import LOOKED_AT, front_of_queue
from .turns import Turns

#: How long to wait before an outcome whose row is locked is tried again, in seconds, and how often.
#: A claim may lock a row for a moment that it does not take.
MOMENTS = (0.01, 0.04)


class Renewal(NamedTuple):
    """What a heartbeat learned, or a look between two.

    :ivar held: the runs still held.
    :ivar cancelled: those among them that are to be cancelled.
    :ivar locked: those among them whose leases a heartbeat did not extend, since another
        transaction has locked their rows.
    :ivar is_heartbeat: whether the leases of the others were extended.
    """

    held: frozenset[int]
    cancelled: frozenset[int]
    locked: frozenset[int] = frozenset()
    is_heartbeat: bool = False


class Expired(NamedTuple):
    """A run whose lease ran out."""

    id: int
    token: str
    job_type: str
    attempt: int
    max_attempts: int
    definition_id: int | None = None

    @property
    def identity(self) -> tuple[int, str]:
        """The same as its claim's."""
        return self.id, self.token


class Expiry(NamedTuple):
    """What `Claims.expired_leases` saw.

    :ivar leases: the runs whose lease ran out, oldest first.
    :ivar exhausted: whether a run waits that has no attempt left.
    :ivar open_batches: whether a batch has not ended.
    """

    leases: list[Expired]
    exhausted: bool = False
    open_batches: bool = False


class Front(NamedTuple):
    """What `Claims.front` saw of the runs that come first.

    :ivar may_find: whether a claim may find a run, so that it is worth to start workers. False is
        certain. True is not: the runs may be of tasks or keys that cannot be claimed.
    :ivar turns_pend: whether turns of strict orders are to be given first; see `Turns`.
    """

    may_find: bool
    turns_pend: bool = False


class Held(Protocol):
    """What names a held run: a `Claim`, or an `Outcome`."""

    @property
    def id(self) -> int:
        """The run's id."""
        ...

    @property
    def token(self) -> str:
        """The token of the claim."""
        ...


class Claims:
    """The writes of a worker about the runs that it holds.

    :param books: the worker's bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._dialect = books.dialect
        self._sql: ClaimStatements = claim_statements(books.dialect)
        self._keys = False

    @property
    def one_writer(self) -> bool:
        """Whether the database lets only one connection at a time write, as SQLite does."""
        return self._dialect.name == "sqlite"

    @property
    def patience(self) -> float:
        """For how many seconds a call is repeated."""
        return self._books.patience

    def wait_for_writers(self) -> None:
        """Wait until nobody else holds SQLite's write lock.

        :raises DatabaseTrouble: somebody held it for too long.
        """
        self._books.transaction(lambda connection: None)

    def trying_once(self) -> AbstractContextManager[None]:
        """Repeat nothing in this block: a lock that is held is trouble at once."""
        return self._books.trying_once()

    def exchange(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None, repeat: bool = True
    ) -> Exchange:
        """Record *outcomes* under their tokens, and claim what *request* asks for.

        PostgreSQL does both in one statement (and claims in another if the front of the queue holds
        too few runs to claim, or the first with keys), SQLite in one short transaction. If the id
        of an outcome is neither in ``recorded`` nor in ``locked``, its lease was lost.

        :param repeat: whether to repeat after a broken connection. If the first try had committed,
            a repeat reports its outcomes as lost and does not know of its claims.
        :raises DatabaseTrouble: nothing was recorded or claimed, or it is unknown whether it was.
        """
        if request is not None and request.handed is not None:
            assert not outcomes
            return self._begin(request)
        forget_failures(self._books, outcomes)
        exchange = self._exchange_patiently(outcomes, request, repeat)
        unbegun = [each for each in outcomes if each.kind == "released" and not each.begun]
        if unbegun:
            self._books.rows(self._sql.restore_keys, {"held": _held(unbegun)})
        return exchange

    def _exchange_patiently(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None, repeat: bool
    ) -> Exchange:
        """Exchange, and try again for a moment to record outcomes whose rows are locked."""
        exchange = self._exchange(outcomes, request, repeat)
        for pause in MOMENTS:
            locked = self._passed_over(outcomes, exchange.recorded)
            if not locked:
                return exchange
            time.sleep(pause)
            left = [outcome for outcome in outcomes if outcome.id in locked]
            again = self._exchange(left, None, repeat)
            exchange = exchange._replace(
                recorded=exchange.recorded | again.recorded,
                cancelled=exchange.cancelled | again.cancelled,
            )
        locked = self._passed_over(outcomes, exchange.recorded)
        return exchange._replace(locked=frozenset(locked))

    def _exchange(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None, repeat: bool
    ) -> Exchange:
        rows: Rows = ()
        if self._dialect.one_statement:
            rows = self._exchange_at_once(outcomes, request, repeat)
        elif outcomes:
            rows = self._books.transaction(
                lambda c: self._exchange_in_steps(c, outcomes, request), repeat
            )
        elif request:
            rows = self._books.rows(self._claim_sql, self._claim_parameters(request), repeat)
        return received(self._dialect, rows, request.token if request else "")

    def _exchange_at_once(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None, repeat: bool
    ) -> Rows:
        parameters: dict[str, object] = {}
        records: statements.Records = "nothing"
        if outcomes:
            plain = all(map(is_plain, outcomes))
            records = "successes" if plain else "outcomes"
            parameters |= (
                success_arrays(outcomes) if plain else outcome_arrays(self._dialect, outcomes)
            )
        claims: statements.Claimable = "nothing"
        if request:
            claims = "all" if self._keys else "free"
            parameters |= self._claim_parameters(request)
        if records == claims == "nothing":
            return ()
        statement = statements.record_and_claim(self._dialect, records, claims)
        rows = self._books.rows(statement, parameters, repeat)
        return self._claim_beyond(rows, parameters, repeat)

    def _claim_beyond(self, rows: Rows, parameters: dict[str, object], repeat: bool) -> Rows:
        """Claim by another statement if the last of *rows* says so; return the rows of both."""
        mark = rows[-1].stored if rows else None
        if mark not in statements.MARKS:
            return rows
        more: Rows = ()
        if mark == statements.FAR:
            statement = statements.claim(self._dialect, self._keys)
            more = self._books.rows(statement, parameters, repeat)
        else:
            self._keys = mark == statements.KEYED_TOO
        if mark == statements.KEYED_TOO:
            statement = statements.record_and_claim(self._dialect, "nothing", "all")
            again = self._books.rows(statement, parameters, repeat)
            more = self._claim_beyond(again, parameters, repeat)
        return [*rows[:-1], *more]

    def first(
        self,
        tasks: tuple[str, ...],
        queues: tuple[str, ...] = (),
        elsewhere: frozenset[str] = frozenset(),
    ) -> tuple[str, bool] | None:
        """Return the task of the run that an idle worker would claim next; None if there is none.

        With it, whether that run must run alone. Nothing is claimed. The parameters are as of
        `ClaimRequest`.
        """
        request = ClaimRequest(1, "", tasks, queues, elsewhere)
        rows = self._books.rows(statements.first(self._dialect), self._claim_parameters(request))
        return (rows[0].job_type, is_alone(*tuple(rows[0])[1:])) if rows else None

    def renew(self, held: Collection[Claim], lease: float) -> Renewal:
        """Extend the leases of *held* to *lease* seconds from now."""
        parameters = {"held": _held(held), "lease": lease}
        renewed = _renewal(self._books.rows(self._sql.renew, parameters))
        if self._passed_over(held, renewed.held):
            watched = self.watch(held)
            renewed = watched._replace(locked=watched.held - renewed.held)
        return renewed._replace(is_heartbeat=True)

    def watch(self, held: Iterable[Held]) -> Renewal:
        """Return what `renew` would, without extending the leases."""
        return _renewal(self._books.rows(self._sql.watch, {"held": _held(held)}))

    def progress(self, claim: Claim, fraction: float, message: str | None) -> bool:
        """Write how far a run has got; return whether it was written.

        It is not if the lease was lost, or if another transaction has locked the row.

        :param fraction: from 0 to 1.
        """
        values = {"id": claim.id, "token": claim.token, "fraction": fraction}
        return bool(self._books.rows(self._sql.progress, {**values, "message": clean(message)}))

    def release_token(self, token: str, run_id: int | None = None) -> int:
        """Release every run held under *token*, not counting the attempt; return how many.

        For a claim whose answer was lost: the database may have committed it.

        :param run_id: release this one alone.
        """
        rows = self._books.rows(self._sql.claimed_under, {"token": token})
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
        return recorded(self._books.rows(self._sql.already_recorded, parameters))

    def expired_leases(self, limit: int = 200) -> Expiry:
        """Look for runs whose lease ran out, at most *limit*, and for what else is over."""
        rows = self._books.rows(self._sql.expired, {"limit": limit})
        leases = [
            Expired(
                row.id,
                row.locked_by,
                row.job_type,
                row.attempts,
                most_attempts(row.max_attempts, row.attempts),
                row.definition_id,
            )
            for row in rows
            if isinstance(row.locked_by, str)  # A blob, which SQLite accepts, is nobody's token.
        ]
        return Expiry(
            leases,
            exhausted=any(row.locked_by is None and row.job_type is not None for row in rows),
            open_batches=any(row.job_type is None for row in rows),
        )

    @property
    def turns(self) -> Turns:
        """What decides which runs of strict orders may be claimed."""
        return Turns(self._books)

    def in_brokers(self, queue: str) -> int:
        """Return how many runs of *queue* were handed to an engine and have not begun there."""
        rows = self._books.rows(in_brokers(self._dialect), {"queue": queue})
        return int(rows[0].number)

    def front(self) -> Front:
        """Look at the runs that come first, without claiming them."""
        rows = self._books.rows(text(front_of_queue(self._dialect)))
        turns_pend = any(row.unplaced for row in rows)
        may_find = turns_pend or any(row.due or row.waiting >= LOOKED_AT for row in rows)
        return Front(may_find, turns_pend)

    def give_up_exhausted(self, limit: int) -> list[Outcome]:
        """End at most *limit* waiting runs that have no attempt left; return how each ended.

        No attempt ends so: somebody has lowered ``max_attempts`` by hand.
        """
        rows = self._books.rows(self._sql.give_up_exhausted, {"limit": limit})
        return [
            Outcome(row.id, "", "dead", row.attempts, row.job_type, row.last_error, row.error_type)
            for row in rows
        ]

    def _begin(self, request: ClaimRequest) -> Exchange:
        assert request.handed is not None
        run_id, handed = request.handed
        values = {"id": run_id, "handed": handed, "token": request.token, "lease": request.lease}
        parameters = {**values, "tasks": self._dialect.array(request.tasks)}
        rows = self._books.rows(begin(self._dialect), parameters, repeat=False)
        return received(self._dialect, rows, request.token)

    def _passed_over(self, held: Collection[Held], touched: Collection[int]) -> Collection[int]:
        """Return which of *held* a statement did not touch, though they are held still."""
        if len(touched) >= len(held):
            return ()
        left = [each for each in held if each.id not in touched]
        return self.watch(left).held if left and not self.one_writer else ()

    def _exchange_in_steps(
        self, connection: Connection, outcomes: Sequence[Outcome], request: ClaimRequest | None
    ) -> Rows:
        parameters = outcome_parameters(self._dialect, outcomes)
        rows = list(connection.execute(self._sql.record, parameters).all())
        if any(outcome.kind in ("failed", "dead") for outcome in outcomes):
            written = json.dumps([row.id for row in rows])
            connection.execute(self._sql.failures, {**parameters, "recorded": written})
        if request:
            rows += connection.execute(self._claim_sql, self._claim_parameters(request)).all()
        return rows

    @property
    def _claim_sql(self) -> TextClause:
        return statements.claim(self._dialect, keys=True)

    def _claim_parameters(self, request: ClaimRequest) -> dict[str, object]:
        queues = tuple(request.elsewhere)
        if request.queues:
            queues = tuple(each for each in request.queues if each not in request.elsewhere)
        return {
            "limit": request.limit,
            "token": request.token,
            "tasks": self._dialect.array(request.tasks),
            "queues": self._dialect.array(queues),
            "but_queues": not request.queues,
            "lease": request.lease,
            "idle": request.idle,
            "after": request.after,
            "side_by_side": request.side_by_side,
        }


def _renewal(rows: Rows) -> Renewal:
    return Renewal(
        frozenset(row.id for row in rows),
        frozenset(row.id for row in rows if row.cancel_requested_at is not None),
    )


def _held(claims: Iterable[Held]) -> str:
    return json.dumps([{"id": claim.id, "token": claim.token} for claim in claims])


def finalize_in(session: Session, claim: Claim, result: JSON) -> bool:
    """Write ``succeeded`` in *session*'s transaction, if *claim*'s token still holds the run.

    For ``atomic=True``: the handler's own writes and its outcome must commit together, so this
    runs on the app's session. `Claims.exchange` writes all other outcomes, many at a time and
    with SQL for failures and releases, on the bookkeeping connection.

    :returns: whether the run was still held.
    """
    kept = None if result is None else json_text(result)
    as_json = dialect_of(session.get_bind().engine).json("CAST(:result AS text)")
    statement = (
        update(models.JobRun)
        .where(
            models.JobRun.id == claim.id,
            models.JobRun.locked_by == claim.token,
            models.JobRun.status == "running",
        )
        .values(
            status="succeeded",
            finished_at=database_now(),
            updated_at=database_now(),
            result=text(as_json).bindparams(result=kept),
            last_error=None,
            error_type=None,
            locked_by=None,
            locked_until=None,
            concurrency_share=None,
            turn=text(ended()),
        )
        .returning(models.JobRun.id)
        .execution_options(synchronize_session=False)
    )
    return session.execute(statement).first() is not None
