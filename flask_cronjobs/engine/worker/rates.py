"""What one worker does about rate limits: open slots before its claims, take them after."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from ... import failpoints
from ...db.connection import Bookkeeping
from ...jobs import rates
from ...jobs.rates import Slot
from ...jobs.runs.claim import ClaimRequest
from ...registry.rate import Rate
from ...types import Claim, Outcome

#: How often a busy worker looks at most, in seconds.
LOOK_EVERY = 0.05


class RateLimits:
    """The rate limits of the runs that one worker claims. It belongs to the keeper's thread.

    An app without rates sends no statement for them.

    :param by_task: the tasks that have a rate.
    :ivar next_at: when the next slot comes for which a due run waits, by `time.monotonic`.
    """

    def __init__(self, books: Bookkeeping, by_task: Mapping[str, Rate]) -> None:
        self.next_at: float = float("inf")
        self._books = books
        self._by_task = by_task
        self._slots: dict[tuple[int, str], Slot] = {}
        self._look_at = 0.0

    def open_slots(self, request: ClaimRequest, idle: bool) -> None:
        """Let due runs be claimed that have a slot now.

        A busy worker looks seldom, one that is idle each time, so that it finds what has just come.

        :raises DatabaseTrouble: it is not known which.
        """
        now = time.monotonic()
        if not self._by_task or (not idle and now < self._look_at):
            return
        found = rates.open_slots(self._books, self._by_task, request)
        self._look_at = now + LOOK_EVERY
        # Not at once: somebody may have locked the key's row.
        wait = float("inf") if found.wait is None else max(found.wait, LOOK_EVERY)
        self.next_at = now + wait

    def spend(self, claims: Sequence[Claim]) -> list[Claim]:
        """Take slots for *claims*; return those that got none, and must not begin.

        :raises DatabaseTrouble: none of them may begin.
        """
        if not self._by_task:  # Most apps: they pay nothing for each run.
            return []
        limited = [claim for claim in claims if claim.job_type in self._by_task]
        if not limited:
            return []
        failpoints.reach("before-rate")
        slots = rates.spend(self._books, self._by_task, limited)
        failpoints.reach("after-rate")
        self._look_at = 0.0
        self._slots |= {
            claim.identity: slot for claim in limited if (slot := slots.get(claim.id)) is not None
        }
        return [claim for claim in limited if slots.get(claim.id, 0) is None]

    def hold_back(self, outcomes: Sequence[Outcome]) -> None:
        """Hold the keys back for which *outcomes* ask.

        :raises DatabaseTrouble: perhaps they are not.
        """
        for outcome in outcomes if self._by_task else ():
            rate = self._by_task.get(outcome.job_type)
            if outcome.holds_rate and rate is not None:
                rates.hold_back(self._books, outcome.id, rate, outcome.delay)

    def give_back(self, outcomes: Sequence[Outcome], recorded: Collection[int]) -> None:
        """Give the slots back of those of *outcomes* that are *recorded* and have not begun.

        :param recorded: ids of runs.
        :raises DatabaseTrouble: perhaps they stay taken.
        """
        if not self._slots:
            return
        outcomes = [outcome for outcome in outcomes if outcome.id in recorded]
        slots = [(outcome, self._slots.pop(outcome.identity, None)) for outcome in outcomes]
        unused = [slot for outcome, slot in slots if slot is not None and not outcome.begun]
        if unused:
            rates.give_back(self._books, unused)
