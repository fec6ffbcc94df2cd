"""The soak's task with a rate, and the check that the rate holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random

from flask_cronjobs import current_run
from flask_cronjobs.models import JobRun
from tests.soak.history import History, Said

#: The attempts of a rate key that may begin in this time, in seconds, and at once.
RATE = (10, 1.0, 3)
KINDS = 3 * ["rated"]
PAYLOADS: dict[str, Callable[[Random], dict[str, object]]] = {
    "rated": lambda choose: {"key": str(choose.randint(1, 2))}
}


def declare() -> None:
    """Declare the task in the app of the soak."""
    from tests.soak.app import AGAIN, BROKER, chance, db, jobs, performing

    @jobs.task(retry=AGAIN, rate="10/s", rate_key="soak:{key}", burst=RATE[2])
    def rated(key: str) -> dict[str, object]:
        """Begin at a rate; at times fail."""
        run = db.session.get_one(JobRun, current_run.id)
        # A run of an executor took its start earlier, when it was handed on.
        has_slot = run.locked_by == current_run.claim.token and BROKER not in os.environ
        started = run.started_at.timestamp() if has_slot and run.started_at else None
        db.session.rollback()
        with performing(key=f"rate:{key}", started=started) as nonce:
            if chance().random() < 0.2:
                raise RuntimeError("as it was asked to")
            return nonce


def rates_hold(history: History) -> Iterator[str]:
    """No window of a rate key has more attempts than its length and the burst allow."""
    number, seconds, burst = RATE
    times: dict[str, list[float]] = {}
    for line in history.said:
        if line.what == "begun" and line.started is not None and line.key is not None:
            times.setdefault(line.key, []).append(line.started)
    for key, starts in times.items():
        # How much later than at an even rate each began, and the maximum of this so far.
        behind = most = float("-inf")
        for place, at in enumerate(sorted(starts)):
            behind = at - place * seconds / number
            most = max(most, behind)
            # SQLite rounds to milliseconds.
            if most - behind - 0.001 > (burst - 1) * seconds / number:
                yield f"the key {key}: attempt {place} began too early, at {at:.3f}"


def _rated(faster: float) -> list[Said]:
    """Return attempts of a rate key that are too fast, for so long that the check must see it."""
    number, seconds, _ = RATE
    times = (100 + n * seconds / number / faster for n in range(300))
    return [Said("begun", 6, 200, 1, "", "rate:2", 1, at) for at in times]


CHECKS = (rates_hold,)
#: Changes of a lawful history's trace that are allowed, and others that are not.
LAWFUL = {"a rate to the full": _rated(1)}
CORRUPTIONS = {
    "rates_hold": {
        "too many at once": [
            Said("begun", 6, n, 1, "", "rate:1", 1, 100 + n / 50) for n in range(5)
        ],
        "a little too many for long": _rated(1.01),
    }
}
