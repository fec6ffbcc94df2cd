"""Rate limits in a worker: it opens gates before its claims, and takes starts after them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...core.claim import Answer, ClaimRequest
from ...core.tasks.rate import Rate
from ...db import failpoints
from ...db.connection import Bookkeeping
from ...types import Claim, Outcome
from . import rates
from .rates import BEFORE_ALL

#: Seconds between two checks of a busy worker for free starts.
CHECK_SECONDS = 0.05
#: The largest number of seconds for which a worker skips runs of a key whose row is locked.
MAX_REST_SECONDS = 1.0


class RateLimits:
    """The rate limits of the runs that one worker claims. It belongs to the keeper's thread.

    An app without rates sends no statement for them.

    :param by_task: the rate of each task that has one.
    :param request: the tasks and queues of the worker. If it claims runs that were handed over,
        they have taken their starts already.
    :ivar next_at: the time of the next start for which a due run waits, by `time.monotonic`.
    """

    def __init__(
        self, books: Bookkeeping, by_task: Mapping[str, Rate], request: ClaimRequest
    ) -> None:
        self.next_at: float = float("inf")
        self._books = books
        self._by_task = by_task
        self._request = request
        self._claim_rates: Mapping[str, Rate] = {} if request.handed else by_task
        self._refusals: dict[str, _Refusal] = {}
        self._after = BEFORE_ALL
        self._next_check_at = 0.0

    def open(self, promptly: bool, tasks: tuple[str, ...] | None = None) -> None:
        """Open the gates of due runs whose rates have a free start.

        :param promptly: check even if the last check was a moment ago, so that the worker finds
            runs that have just been enqueued.
        :param tasks: the tasks of the claim; None for all.
        :raises DatabaseTrouble: it is unknown which runs may be claimed.
        """
        now = time.monotonic()
        if not self._claim_rates or (not promptly and now < self._next_check_at):
            return
        request = self._request if tasks is None else self._request._replace(tasks=tasks)
        most = {key: int(now >= refusal.until) for key, refusal in self._refusals.items()}
        starts = rates.open_starts(self._books, self._claim_rates, request, self._after, most)
        self._after = starts.after
        ended = time.monotonic()
        # Checking thousands of keys takes long, so spend at most a tenth of the time on it.
        self._next_check_at = ended + max(CHECK_SECONDS, 10 * (ended - now))
        # Wait a little, since the key's row may be locked.
        wait = float("inf") if starts.wait is None else max(starts.wait, CHECK_SECONDS)
        rest_ends = (refusal.until for key, refusal in self._refusals.items() if not most[key])
        self.next_at = min(ended + wait, *rest_ends, float("inf"))

    def spend(self, claims: Sequence[Claim]) -> list[Claim]:
        """Take starts for *claims*; return the claims that got none, and must not begin.

        :raises DatabaseTrouble: none of the claims may begin.
        """
        if not self._claim_rates:  # Most apps have no rates, and pay nothing for each run.
            return []
        rated_claims = [claim for claim in claims if claim.job_type in self._claim_rates]
        if not rated_claims:
            return []
        failpoints.reach("before-rate")
        refused_keys = rates.spend(self._books, self._claim_rates, rated_claims)
        failpoints.reach("after-rate")
        self._next_check_at = 0.0
        self._note_refused(set(refused_keys.values()))
        return [claim for claim in rated_claims if claim.id in refused_keys]

    def _note_refused(self, keys: Collection[str]) -> None:
        """Skip *keys*, which gave no start, for longer each time, and forget old refusals."""
        now = time.monotonic()
        self._refusals = {
            key: refusal
            for key, refusal in self._refusals.items()
            if now < refusal.until + MAX_REST_SECONDS
        }
        for key in keys:
            previous = self._refusals.get(key)
            rest = CHECK_SECONDS if previous is None else min(2 * previous.rest, MAX_REST_SECONDS)
            if previous is None or now >= previous.until:
                self._refusals[key] = _Refusal(now + rest, rest)

    def record_holding(self, outcomes: Sequence[Outcome]) -> Answer:
        """Record those of *outcomes* that hold their rate keys back.

        :raises DatabaseTrouble: it is unknown which are recorded.
        """
        answer = Answer()
        for outcome in outcomes if self._by_task else ():
            rate = self._by_task.get(outcome.job_type)
            if outcome.holds_rate and rate is not None:
                answer = answer.plus(rates.record_and_hold(self._books, outcome, rate))
        return answer


class _Refusal(NamedTuple):
    """A key that gave no start although one seemed free, since its row was locked or had changed.

    :ivar until: the time at which it is tried again with one run, by `time.monotonic`.
    :ivar rest: the seconds for which it is skipped.
    """

    until: float
    rest: float
