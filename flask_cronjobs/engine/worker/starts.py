"""The starts of rate limits: opened before a worker's claims, and taken after them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from ...db import failpoints
from ...db.connection import Bookkeeping
from ...jobs import rates
from ...jobs.rates import BEFORE_ALL, Start
from ...jobs.runs.claim import ClaimRequest
from ...registry.options import Rate
from ...types import Claim, Outcome

#: How often a busy worker looks for turns and starts, in seconds.
LOOK_EVERY = 0.05


class RateLimits:
    """The rate limits of the runs that one worker claims. It belongs to the keeper's thread.

    An app without rates sends no statement for them.

    :param by_task: the tasks that have a rate.
    :param request: the tasks and queues of the worker. A run that was handed to it took its start
        before.
    :ivar next_at: when the next start comes for which a due run waits, by `time.monotonic`.
    """

    def __init__(
        self, books: Bookkeeping, by_task: Mapping[str, Rate], request: ClaimRequest
    ) -> None:
        self.next_at: float = float("inf")
        self._books = books
        self._by_task = by_task
        self._request = request
        self._begun: Mapping[str, Rate] = {} if request.handed else by_task
        self._starts: dict[tuple[int, str], Start] = {}
        self._after = BEFORE_ALL
        self._look_at = 0.0

    def open(self, idle: bool) -> None:
        """Let due runs be claimed that have a start now.

        A busy worker looks seldom, one that is idle each time, so that it finds what has just come.

        :raises DatabaseTrouble: it is not known which.
        """
        now = time.monotonic()
        if not self._begun or (not idle and now < self._look_at):
            return
        found = rates.open_starts(self._books, self._begun, self._request, self._after)
        self._after = found.after
        ended = time.monotonic()
        # To go through thousands of keys takes long: a tenth of the time for that.
        self._look_at = ended + max(LOOK_EVERY, 10 * (ended - now))
        # Not at once: somebody may have locked the key's row.
        wait = float("inf") if found.wait is None else max(found.wait, LOOK_EVERY)
        self.next_at = ended + wait

    def spend(self, claims: Sequence[Claim]) -> list[Claim]:
        """Take starts for *claims*; return those that got none, and must not begin.

        :raises DatabaseTrouble: none of them may begin.
        """
        if not self._begun:  # Most apps: they pay nothing for each run.
            return []
        limited = [claim for claim in claims if claim.job_type in self._begun]
        if not limited:
            return []
        failpoints.reach("before-rate")
        starts = rates.spend(self._books, self._begun, limited)
        failpoints.reach("after-rate")
        self._look_at = 0.0
        self._starts |= {
            claim.identity: start
            for claim in limited
            if (start := starts.get(claim.id)) is not None
        }
        return [claim for claim in limited if starts.get(claim.id, 0) is None]

    def hold_back(self, outcomes: Sequence[Outcome]) -> None:
        """Hold the keys back for which *outcomes* ask.

        :raises DatabaseTrouble: perhaps they are not.
        """
        for outcome in outcomes if self._by_task else ():
            rate = self._by_task.get(outcome.job_type)
            if outcome.holds_rate and rate is not None:
                rates.hold_back(self._books, outcome.id, rate, outcome.delay)

    def give_back(self, outcomes: Sequence[Outcome], recorded: Collection[int]) -> None:
        """Give the starts back of those of *outcomes* that are *recorded* and have not begun.

        :param recorded: ids of runs.
        :raises DatabaseTrouble: perhaps they stay taken.
        """
        if not self._starts:
            return
        outcomes = [outcome for outcome in outcomes if outcome.id in recorded]
        starts = [(outcome, self._starts.pop(outcome.identity, None)) for outcome in outcomes]
        unused = [start for outcome, start in starts if start is not None and not outcome.begun]
        if unused:
            rates.give_back(self._books, unused)
