"""Take back runs whose worker died, froze or lost the network: their lease ran out.

Also end runs that wait but have no attempt left, since no claim takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import DatabaseTrouble, WorkerLost
from ..log import worker_name
from ..signals import announce, notify
from ..state import State
from ..store import Claims
from ..types import Outcome
from .observer import Observer
from .worker.exchange import Exchanger
from .worker.options import WorkOptions
from .worker.outcomes import failure

#: How many expired leases are taken back at a time.
BATCH = 200


def reclaim(state: State, claims: Claims, observer: Observer) -> int:
    """Take back runs whose lease ran out, as failed attempts, and bury those without attempts.

    :returns: how many runs were taken back.
    """
    _bury(state, claims, observer)
    error = WorkerLost("worker lost: the lease ran out before an outcome was recorded")
    total = 0
    while True:
        outcomes = [
            replace(failure(state, expired, error, 0.0), reclaimed=True)
            for expired in claims.expired_leases(BATCH)
        ]
        if not outcomes:
            return total
        recorded = _record(state, claims, outcomes)
        for outcome in recorded:
            announce(state.app, outcome, recorded=True)
            notify(observer.outcome, outcome)
        total += len(recorded)
        if len(outcomes) < BATCH:
            return total


def _bury(state: State, claims: Claims, observer: Observer) -> None:
    while True:
        buried = claims.bury(BATCH)
        for outcome in buried:
            announce(state.app, outcome, recorded=True)
            notify(observer.outcome, outcome)
        if len(buried) < BATCH:
            return


def _record(state: State, claims: Claims, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Record *outcomes*, twice if the connection broke; return those that stand in their rows."""
    exchanger = Exchanger(claims, state, WorkOptions(worker_name()))
    try:
        exchange = exchanger.exchange(outcomes, 0, alone=False)
    except DatabaseTrouble as trouble:
        if not trouble.transient:
            raise
        exchange = exchanger.exchange(outcomes, 0, alone=False)
    return [exchange.stored(each) for each in outcomes if each.id in exchange.recorded]
