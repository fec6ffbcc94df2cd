"""Take back runs whose worker died, froze or lost the network: their lease ran out.

Also take back runs that were handed to an executor and have not begun there: its broker may have
lost them. And end runs that wait but have no attempt left, since no claim takes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..db.connection import Bookkeeping
from ..errors import DatabaseTrouble, WorkerLost
from ..jobs.runs import leases
from ..jobs.runs.claim import Answer
from ..jobs.runs.leases import Expiry, renewal_window
from ..jobs.state import State
from ..log import worker_name
from ..signals import News, announce, notify
from ..types import Claim, Outcome, handed_to

if TYPE_CHECKING:
    from .worker.claims import WorkerClaims

#: How many expired leases are taken back at a time.
CHUNK = 200


class Reclaimed(NamedTuple):
    """What `reclaim` did.

    :ivar outcomes: those of the attempts that were taken back.
    :ivar given_up: those of the runs that had no attempt left.
    :ivar open_batches: whether a batch has not ended.
    """

    outcomes: list[Outcome]
    given_up: list[Outcome]
    open_batches: bool


def reclaim(state: State, books: Bookkeeping, news: News) -> Reclaimed:
    """Take back runs whose lease ran out, and give up waiting runs without attempts left."""
    reclaimed: list[Outcome] = []
    until = time.monotonic() + books.patience
    while (expiry := _abandoned(state, books)).leases:
        outcomes = [_outcome(state, each) for each in expiry.leases]
        try:
            recorded = _record(state, books, outcomes)
        except DatabaseTrouble as trouble:
            if not (books.dialect.one_writer and trouble.transient and time.monotonic() < until):
                raise
            continue  # Another writer took the lock: give the living workers their turn once more.
        for outcome in recorded:
            announce(state.app, outcome, recorded=True)
            if outcome.begun:
                notify(news, "outcome", outcome)
                reclaimed.append(outcome)
        if len(outcomes) < CHUNK or not recorded:
            break
    given_up = list(_give_up_exhausted(state, books, news)) if expiry.exhausted else []
    notify(news, "pause", None)
    return Reclaimed(reclaimed, given_up, expiry.open_batches)


def _outcome(state: State, expired: Claim) -> Outcome:
    # Here, as below: most ticks find nothing to take back, and need none of a worker's modules.
    from .worker.outcomes import failure, released

    if handed_to(expired.token) is not None:  # It has not begun, and is handed on again.
        return released(expired)._replace(reclaimed=True)
    # A new one for each: Sentry reports the same exception only once.
    error = WorkerLost("worker lost: the lease ran out before an outcome was recorded")
    return failure(state, expired, error, 0.0)._replace(reclaimed=True)


def _abandoned(state: State, books: Bookkeeping) -> Expiry:
    """Look for runs whose lease ran out, and whose worker had the opportunity to renew it.

    On SQLite somebody may have held the write lock for longer than a lease: the web app with an
    import, or a handler. Then workers are alive whose leases ran out. So wait until the lock is
    free, and then for a moment in which they renew them.
    """
    before = leases.look_for_expired(books, CHUNK)
    if not (before.leases and books.dialect.one_writer):
        return before
    books.transaction(lambda connection: None)  # It waits until nobody else holds the lock.
    time.sleep(renewal_window(state.settings.lease))
    claimed = {each.identity for each in before.leases}
    now = leases.look_for_expired(books, CHUNK)
    return now._replace(leases=[each for each in now.leases if each.identity in claimed])


def _give_up_exhausted(state: State, books: Bookkeeping, news: News) -> Iterator[Outcome]:
    while True:
        given_up = leases.give_up_exhausted(books, CHUNK)
        for outcome in given_up:
            announce(state.app, outcome, recorded=True)
            notify(news, "outcome", outcome)
            yield outcome
        if len(given_up) < CHUNK:
            return


def _record(state: State, books: Bookkeeping, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Record *outcomes*; return those that stand in their rows."""
    from .worker.claims import WorkerClaims
    from .worker.options import WorkOptions

    claims = WorkerClaims(books, state, WorkOptions(worker_name()))
    if books.dialect.one_writer:
        # Without waiting long: leases that were renewed meanwhile must not run out again.
        with books.trying_once():
            answer = claims.record(outcomes)
    else:
        answer = _record_twice(claims, outcomes)
    return [answer.stored(each) for each in outcomes if each.id in answer.recorded]


def _record_twice(claims: WorkerClaims, outcomes: Sequence[Outcome]) -> Answer:
    try:
        return claims.record(outcomes)
    except DatabaseTrouble as trouble:
        if not trouble.transient:
            raise
        return claims.record(outcomes)
