"""Reclaim runs whose lease ended because their worker died, froze or lost the network.

This also reclaims runs that were handed to an executor and have not begun there, since its broker
may have lost them, and ends waiting runs without an attempt left, since no claim takes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ..db.connection import Bookkeeping
from ..errors import DatabaseTrouble, WorkerLost
from ..log import worker_name
from ..signals import News, announce, notify, run_news
from ..types import Claim, Outcome, handed_to
from . import leases
from .app_state import State
from .background import and_gevent
from .claim import Answer
from .leases import renewal_window
from .worker.claims import WorkerClaims
from .worker.outcomes import failure, released
from .worker.work_options import WorkOptions


def reclaim(state: State, books: Bookkeeping, news: News) -> Iterator[list[Outcome]]:
    """Reclaim runs whose lease ended; yield the outcomes of their attempts after each batch."""
    until = time.monotonic() + books.patience
    while expired := _abandoned(state, books):
        outcomes = [_outcome(state, claim) for claim in expired]
        try:
            recorded = _record(state, books, outcomes)
        except DatabaseTrouble as trouble:
            if not (books.dialect.one_writer and trouble.transient and time.monotonic() < until):
                raise
            continue  # Another writer took the lock, so let living workers renew once more.
        for outcome in recorded:
            announce(state.app, outcome, recorded=True)
            if not outcome.unbegun:
                notify(news, "outcome", run_news(outcome))
        yield [outcome for outcome in recorded if not outcome.unbegun]
        if len(outcomes) < leases.TAKEN_AT_ONCE or not recorded:
            break


def end_spent(state: State, books: Bookkeeping, news: News) -> Iterator[list[Outcome]]:
    """End waiting runs without an attempt left; yield their outcomes after each batch."""
    while outcomes := leases.end_spent(books):
        for outcome in outcomes:
            announce(state.app, outcome, recorded=True)
            notify(news, "outcome", run_news(outcome))
        yield outcomes


def _outcome(state: State, expired: Claim) -> Outcome:
    if handed_to(expired.token) is not None:  # It has not begun, and is handed over again.
        return released(expired)._replace(reclaimed=True)
    # Make a new exception for each run, since Sentry reports the same exception only once.
    error = WorkerLost(and_gevent("worker lost: the lease ended before an outcome was recorded"))
    return failure(state, expired, error, 0.0)._replace(reclaimed=True)


def _abandoned(state: State, books: Bookkeeping) -> list[Claim]:
    """Return the runs whose lease ended although their worker could have renewed it.

    On SQLite, the leases of living workers end, too, if the web app or a handler holds the
    write lock for longer than a lease. So wait until the lock is free, and then for a moment in
    which those workers renew their leases.
    """
    expired = leases.look_for_expired(books)
    if not (expired and books.dialect.one_writer):
        return expired
    books.transaction(lambda connection: None)  # This waits for the lock.
    time.sleep(renewal_window(state.settings.lease))
    identities = {claim.identity for claim in expired}
    return [claim for claim in leases.look_for_expired(books) if claim.identity in identities]


def _record(state: State, books: Bookkeeping, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Record *outcomes*; return those that were recorded."""
    claims = WorkerClaims(books, state, WorkOptions(worker_name()))
    # `claims` has claimed none of these runs, and cannot know which of them have a key.
    claims.openings.keyed.update(outcome.id for outcome in outcomes)
    if books.dialect.one_writer:
        # Do not wait for long: leases that were just renewed must not end again.
        with books.trying_once():
            answer = claims.record(outcomes)
    else:
        answer = _record_twice(claims, outcomes)
    return [answer.stored(outcome) for outcome in outcomes if outcome.id in answer.recorded]


def _record_twice(claims: WorkerClaims, outcomes: Sequence[Outcome]) -> Answer:
    try:
        return claims.record(outcomes)
    except DatabaseTrouble as trouble:
        if not trouble.transient:
            raise
        return claims.record(outcomes)
