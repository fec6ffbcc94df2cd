"""Taking back runs whose worker died, froze or lost the network: their lease ran out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from ..errors import DatabaseTrouble, WorkerLost
from ..signals import announce, pass_on
from ..state import State
from ..store import Claims, Expired
from ..types import Claim, Exchange, Outcome
from .worker.outcomes import failure

#: How many expired leases are taken back at a time.
BATCH = 200


def reclaim(
    state: State, claims: Claims, on_outcome: Callable[[Outcome], None] | None = None
) -> int:
    """Take back runs whose lease ran out, as failed attempts; how many."""
    total = 0
    while True:
        outcomes = [_lost(state, expired) for expired in claims.expired_leases(BATCH)]
        if not outcomes:
            return total
        recorded = _record(claims, outcomes)
        for outcome in recorded:
            announce(state.app, outcome, recorded=True)
            pass_on(on_outcome, outcome)
        total += len(recorded)
        if len(outcomes) < BATCH:
            return total


def _record(claims: Claims, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Record *outcomes*; those that were, also where a broken connection lost the answer."""
    try:
        return _stored(outcomes, claims.exchange(outcomes, None, repeat=False))
    except DatabaseTrouble as trouble:
        if not trouble.transient:
            raise
    settled = claims.already_recorded(outcomes)
    left = [outcome for outcome in outcomes if outcome.id not in settled.recorded]
    return _stored(outcomes, settled) + _stored(left, claims.exchange(left, None))


def _stored(outcomes: Sequence[Outcome], exchange: Exchange) -> list[Outcome]:
    return [exchange.stored(each) for each in outcomes if each.id in exchange.recorded]


def _lost(state: State, expired: Expired) -> Outcome:
    claim = Claim(
        id=expired.id,
        token=expired.token,
        job_type=expired.job_type,
        payload={},
        attempt=expired.attempt,
        max_attempts=expired.max_attempts,
        scheduled_for=datetime.now(timezone.utc),
    )
    error = WorkerLost("worker lost: the lease ran out before an outcome was recorded")
    task = state.registry.tasks.get(expired.job_type)
    return replace(failure(task, state, claim, error, 0.0), reclaimed=True)
