"""Record outcomes and claim runs: `record_and_claim`.

Every claim statement gets a new token, and each statement with which a worker renews or ends a run
includes it. Once the run has been reclaimed, the token matches no row, so a late write changes
nothing. A status, an id or a worker's name alone would not protect the row.

Recording and claiming are two statements in one transaction, so the claim sees what the outcomes
have freed. PostgreSQL gets both in one round trip, with one exception: if one of the outcomes is
of a run with a concurrency key, they are committed before the claim is sent; see
`WorkerClaims.claim`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Row, TextClause, text

from ..db.connection import Bookkeeping, Rows, Statement
from ..db.dialect import Dialect
from ..models.conditions import RUNNING, sql_list
from ..types import FAILED_KINDS, RETURNED_KINDS, WORKER_LOST, Claim, Outcome
from . import gate
from .claim_statement import claim_statement
from .columns import CLAIMED, most_attempts
from .leases import begin_handed, still_held
from .outcome import (
    failures_statement,
    forget_failures,
    is_plain,
    outcome_parameters,
    record_statement,
)

#: The pauses before the retries of an outcome whose row is blocked. A claim may lock a row for a
#: moment and then not take its run. Runs claimed in the same transaction begin only after these
#: pauses. But the first is nearly always enough, and without it the keeper would send the outcome
#: again only after half a second.
BLOCKED_PAUSES_SECONDS = (0.01, 0.04)


class ClaimRequest(NamedTuple):
    """A worker's request for runs.

    :ivar limit: the maximum number of runs to claim.
    :ivar token: the token that they get.
    :ivar tasks: the tasks that this worker can run.
    :ivar queues: the queues to claim from; empty means all but *elsewhere*.
    :ivar elsewhere: queues not to claim from, even if they are among *queues*.
    :ivar lease: seconds that the claim holds without a heartbeat.
    :ivar idle: whether every run that the worker holds has an outcome, so that a retry may be
        claimed.
    :ivar beyond: how many runs to read beyond *limit*, since the claim may have to park many.
    :ivar side_by_side: whether the runs will run at the same time, as async handlers do. If so, a
        retry may be claimed together with other runs. A last attempt, or one after a lost worker,
        is still claimed alone if *idle*, and otherwise skipped.
    :ivar handed: the id and token of a run that was handed to an executor. The worker begins this
        run, and claims none from the queue.
    :ivar blocked: the ids of runs to be skipped, since other transactions have locked their rows.
        Such a row is called *blocked* and not locked, since the columns ``locked_by`` and
        ``locked_until`` are about the lease.
    """

    limit: int
    token: str
    tasks: tuple[str, ...]
    queues: tuple[str, ...] = ()
    elsewhere: frozenset[str] = frozenset()
    lease: float = 120.0
    idle: bool = True
    beyond: int = 0
    side_by_side: bool = False
    handed: tuple[int, str] | None = None
    blocked: frozenset[int] = frozenset()

    def parameters(self, d: Dialect) -> dict[str, object]:
        """Return the parameters of `claim_statement`, or of `leases.begin_handed`."""
        run_id, handed_token = self.handed or (None, None)
        queues = tuple(self.elsewhere)
        if self.queues:
            queues = tuple(queue for queue in self.queues if queue not in self.elsewhere)
        return {
            **self._asdict(),
            "looked": self.limit + self.beyond,
            "id": run_id,
            "handed": handed_token,
            "blocked": list(self.blocked),
            "tasks": d.many(self.tasks),
            "queues": d.many(queues),
            "but_queues": not self.queues,
        }


class Answer(NamedTuple):
    """The recorded outcomes and new claims of `record_and_claim`.

    :ivar recorded: the ids of the runs whose outcomes are recorded.
    :ivar claims: the newly claimed runs.
    :ivar cancelled: the ids in *recorded* that became cancelled instead of being retried, because a
        cancel was requested while they ran.
    :ivar unrecorded: the ids of runs that are still held, and whose outcomes are not recorded yet,
        since another transaction has locked their rows.
    :ivar blocked: the ids of waiting runs that the claim has chosen and found blocked.
    :ivar parked: the ids of waiting runs that the claim has parked. The next runs of their keys
        must be opened.
    :ivar exhausted: whether another claim would find nothing now; `WorkerClaims` sets it.
    """

    recorded: frozenset[int] = frozenset()
    claims: tuple[Claim, ...] = ()
    cancelled: frozenset[int] = frozenset()
    unrecorded: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()
    parked: frozenset[int] = frozenset()
    exhausted: bool = False

    def plus(self, other: Answer) -> Answer:
        """Return this answer with the recorded and unrecorded outcomes of *other* added."""
        return self._replace(
            recorded=self.recorded | other.recorded,
            cancelled=self.cancelled | other.cancelled,
            unrecorded=self.unrecorded | other.unrecorded,
        )

    def stored(self, outcome: Outcome) -> Outcome:
        """Return *outcome* as it is stored in its row."""
        return outcome._replace(kind="cancelled") if outcome.id in self.cancelled else outcome


def record_and_claim(
    books: Bookkeeping,
    outcomes: Sequence[Outcome],
    request: ClaimRequest | None,
    repeat: bool = True,
    opens: Collection[int] = (),
) -> Answer:
    """Record *outcomes* under their tokens, and claim what *request* asks for.

    Both happen in one transaction. If the id of an outcome is neither in ``recorded`` nor in
    ``unrecorded``, its lease was lost.

    `Bookkeeping.call` retries what the database refuses for now. If the row of an outcome is
    blocked, this function retries the outcome for a moment.

    :param books: the worker's bookkeeping connection.
    :param repeat: whether to repeat the transaction if its connection breaks. If the first try was
        committed, the second one reports the outcomes as lost, and does not return the claims of
        the first.
    :param opens: the ids of runs that have ended or were parked. The next runs of their keys are
        opened before the claim; see `gate`.
    :raises DatabaseTrouble: nothing was recorded or claimed, or it is unknown whether anything was.
    """
    forget_failures(books, outcomes)
    answer = _send(books, outcomes, request, repeat, opens)
    all_recorded = len(answer.recorded) >= len(outcomes)
    unrecorded = () if all_recorded else still_held(books, outcomes, answer.recorded)
    for pause in BLOCKED_PAUSES_SECONDS:
        if not unrecorded:
            break
        time.sleep(pause)
        blocked_outcomes = [outcome for outcome in outcomes if outcome.id in unrecorded]
        answer = answer.plus(_send(books, blocked_outcomes, None, repeat))
        unrecorded = still_held(books, outcomes, answer.recorded)
    return answer._replace(unrecorded=frozenset(unrecorded)) if unrecorded else answer


def _send(
    books: Bookkeeping,
    outcomes: Sequence[Outcome],
    request: ClaimRequest | None,
    repeat: bool,
    opens: Collection[int] = (),
) -> Answer:
    d, statements = books.dialect, list[Statement]()
    if outcomes:
        plain = all(map(is_plain, outcomes))
        parameters = outcome_parameters(d, outcomes, plain)
        if d.one_writer and any(outcome.kind in FAILED_KINDS for outcome in outcomes):
            statements.append((failures_statement(d), parameters))
        statements.append((record_statement(d, plain), parameters))
    record_index = len(statements) - 1
    if opens:
        statements.append((gate.open_statement(d), {"ids": d.many(opens)}))
    if request:
        claim = begin_handed(d) if request.handed else claim_statement(d)
        statements.append((claim, request.parameters(d)))
    if not statements:
        return Answer()
    results = books.rows_of_each(statements, repeat)
    answer = _recorded(results[record_index]) if outcomes else Answer()
    return _with_claims(answer, results[-1], request.token) if request else answer


def release_token(books: Bookkeeping, token: str, run_id: int | None = None) -> bool:
    """Release every run held under *token*, without counting the attempt.

    Use this for a claim whose answer was lost, since the database may have committed it.

    :param run_id: the only run to release; None for all.
    :returns: False if another transaction has locked a row, so that its run is still held.
    """
    outcomes = [
        Outcome(row.id, token, "released", row.attempts, row.job_type, unbegun=True)
        for row in books.rows(_CLAIMED_UNDER, {"token": token})
        if run_id in (None, row.id)
    ]
    if not outcomes:
        return True
    answer = record_and_claim(books, outcomes, None)
    gate.open_behind(books, answer.recorded)
    return not answer.unrecorded


def already_recorded(books: Bookkeeping, outcomes: Iterable[Outcome]) -> Answer:
    """Return those of *outcomes* that are already stored.

    Use this for outcomes whose answer was lost, since the database may have committed them. For a
    failure, this also checks who recorded it: the attempt's worker, or a tick that reclaimed the
    run. If the next attempt has begun by now, the run's row no longer shows the failure, but
    ``job_failures`` does.
    """
    values = [
        {
            "id": o.id,
            "token": o.token,
            "kind": o.kind,
            "attempt": o.attempt,
            "lost": o.error_type == WORKER_LOST,
        }
        for o in outcomes
    ]
    return _recorded(books.rows(_already_recorded(books.dialect), {"outcomes": json.dumps(values)}))


@lru_cache(maxsize=2)
def _already_recorded(d: Dialect) -> TextClause:
    types = {"id": "bigint", "token": "text", "kind": "text", "attempt": "integer"}
    outcomes = d.table("outcomes", **types, lost="boolean")
    is_lost = f"(COALESCE({{}}.error_type, '') = '{WORKER_LOST}') = o.lost"
    # With EXISTS, PostgreSQL might read all failures, to look them up in a hash table.
    return text(f"""
    WITH o AS MATERIALIZED {outcomes}
    SELECT r.id AS ids, CASE WHEN r.attempts > o.attempt THEN o.kind ELSE r.status END AS stored
    FROM job_runs r JOIN o ON r.id = o.id
    WHERE {d.any_of("r.id", "SELECT id FROM o")} AND (
        (r.attempts = o.attempt AND {is_lost.format("r")}
            AND (r.status = o.kind OR (o.kind = 'failed' AND r.status = 'cancelled')))
        OR (o.kind IN {sql_list(RETURNED_KINDS)} AND r.attempts = o.attempt - 1)
        OR (o.kind IN {sql_list(FAILED_KINDS)} AND r.attempts > o.attempt AND o.token = (
            SELECT f.worker FROM job_failures f
            WHERE f.run_id = o.id AND f.attempt = o.attempt AND {is_lost.format("f")}))
    )
    """)


_CLAIMED_UNDER = text(f"""
    SELECT id, job_type, attempts FROM job_runs WHERE {RUNNING} AND locked_by = :token
""")


# The positions of values in a row, since looking up their names takes too long.
_OF_CLAIM = CLAIMED.index("rank")
_PLACE = itemgetter(*(CLAIMED.index(name) for name in ("rank", "run_at", "id")))
_ID = itemgetter(CLAIMED.index("id"))
_OTHER = itemgetter(len(CLAIMED))


def _with_claims(answer: Answer, rows: Rows, token: str) -> Answer:
    """Return *answer* with the claims in *rows*, made under *token*, in the order of the queue.

    The other rows have the ids of runs that were parked or are blocked.
    """
    claim_rows = sorted([row for row in rows if _OTHER(row) is None and _ID(row)], key=_PLACE)
    claims = tuple([_claim(row, token) for row in claim_rows])
    if len(claim_rows) == len(rows):
        return answer._replace(claims=claims)
    parked, blocked = (_ids(getattr(row, name) for row in rows) for name in ("parked", "blocked"))
    return answer._replace(claims=claims, parked=parked, blocked=blocked)


def _claim(row: Row[Any], token: str) -> Claim:
    claim = Claim._make((row[0], token, *row[1:_OF_CLAIM]))
    if type(claim.max_attempts) is int:
        return claim
    return claim._replace(max_attempts=most_attempts(claim.max_attempts, claim.attempt))


def _recorded(rows: Iterable[Sequence[Any]]) -> Answer:
    """Return the recorded outcomes in *rows*.

    A row has an id, or several ids separated by commas, and the status that was stored.
    """
    statuses = [(int(id_), status) for ids, status in rows for id_ in str(ids).split(",")]
    cancelled = frozenset([id_ for id_, status in statuses if status == "cancelled"])
    return Answer(recorded=frozenset([id_ for id_, _ in statuses]), cancelled=cancelled)


def _ids(values: Iterable[object]) -> frozenset[int]:
    """Return the ids in *values*: each is an id, several ids separated by commas, or None."""
    return frozenset(int(id_) for ids in values if ids is not None for id_ in str(ids).split(","))
