"""What one worker claims and records, and what a broken connection has left unknown."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from ...db import failpoints
from ...db.connection import Bookkeeping
from ...errors import DatabaseTrouble
from ...jobs import orders, rates
from ...jobs.rates import BEFORE_ALL, Start
from ...jobs.runs.claim import (
    Answer,
    ClaimRequest,
    already_recorded,
    record_and_claim,
    release_token,
)
from ...jobs.runs.look import look_at_queue, next_run
from ...jobs.state import State, Throttle
from ...registry.options import Rate
from ...types import Claim, Outcome
from .options import WorkOptions
from .outcomes import released

#: How often a busy worker looks for turns and starts, in seconds.
LOOK_EVERY = 0.05


class Turns:
    """Gives the turns of strict orders. It belongs to the keeper's thread.

    :param ordered: the tasks with a strict order that the code has.
    :param pend: whether turns are to be given: runs of a strict order came or ended.
    """

    def __init__(self, books: Bookkeeping, ordered: Collection[str], pend: bool) -> None:
        self.ordered: Collection[str] = ordered
        self.pend: bool = pend
        self._books = books
        self._looked = Throttle()

    def give(self) -> bool:
        """Give the turn to the next run of each strict order; return whether that changed anything.

        :raises DatabaseTrouble: it is not known for which.
        """
        failpoints.reach("before-turns")
        changed = orders.give(self._books)
        self.pend = False
        self._looked.block_for(LOOK_EVERY)
        return changed

    def give_before_claim(self, idle: bool) -> bool:
        """Give the turns before a claim, if it is time; return whether that changed anything.

        An app without strict orders never looks, and a busy worker looks seldom. One that is idle
        looks each time, so that it finds what has just come.

        :raises DatabaseTrouble: as of `give`.
        """
        is_time = self.pend or (self.ordered and (idle or self._looked.ready()))
        return self.give() if is_time else False

    def note_ended(self, outcomes: Iterable[Outcome]) -> None:
        """Note that *outcomes* are recorded: behind one in a strict order another may come."""
        self.pend |= any(outcome.job_type in self.ordered for outcome in outcomes)


class RateLimits:
    """The rate limits of the runs that one worker claims. It belongs to the keeper's thread.

    An app without rates sends no statement for them.

    :param by_task: the tasks that have a rate.
    :param handed: whether its run took a start when it was handed on.
    :ivar next_at: when the next start comes for which a due run waits, by `time.monotonic`.
    """

    def __init__(self, books: Bookkeeping, by_task: Mapping[str, Rate], handed: bool) -> None:
        self.next_at: float = float("inf")
        self._books = books
        self._by_task = by_task
        self._begun: Mapping[str, Rate] = {} if handed else by_task
        self._starts: dict[tuple[int, str], Start] = {}
        self._after = BEFORE_ALL
        self._look_at = 0.0

    def open_starts(self, request: ClaimRequest, idle: bool) -> None:
        """Let due runs be claimed that have a start now.

        A busy worker looks seldom, one that is idle each time, so that it finds what has just come.

        :raises DatabaseTrouble: it is not known which.
        """
        now = time.monotonic()
        if not self._begun or (not idle and now < self._look_at):
            return
        found = rates.open_starts(self._books, self._begun, request, self._after)
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


#: How often to look for claims that were committed late, in seconds.
LATE_EVERY = 1.0


class WorkerClaims:
    """The claims of one worker, and their outcomes. It belongs to the keeper's thread.

    :ivar exhausted: whether the last answer said that nothing more can be claimed.
    :ivar unheard: whether runs may have been claimed without our hearing of it.
    :ivar turns: gives the turns of strict orders before claims.
    :ivar rates: opens the starts of rate limits before claims, and takes them after.
    """

    def __init__(self, books: Bookkeeping, state: State, options: WorkOptions) -> None:
        self.exhausted: bool = False
        self.unheard: bool = False
        self._books = books
        self._request = ClaimRequest(
            limit=1,
            token="",
            tasks=tuple(state.registry.tasks),
            queues=options.queues,
            elsewhere=options.elsewhere,
            lease=options.lease or state.settings.lease,
            handed=options.handed,
        )
        self._worker = options.worker
        self._after = ""
        self.turns: Turns = Turns(books, state.registry.ordered, options.queue_look.turns_pend)
        own = state.registry.rates if options.rates is None else options.rates
        self.rates: RateLimits = RateLimits(books, own, options.handed is not None)
        self._got_less = False
        # The tokens of claims whose answers were lost, and until when they may yet be committed.
        self._unheard: dict[str, float] = {}
        self._looked = Throttle()
        self._unconfirmed: set[tuple[int, str]] = set()

    def record(self, outcomes: Sequence[Outcome]) -> Answer:
        """Record *outcomes*, and claim nothing.

        :raises DatabaseTrouble: as of `record_and_claim`.
        """
        return self.claim(outcomes, 0, idle=False)

    def claim(
        self,
        outcomes: Sequence[Outcome],
        wanted: int,
        idle: bool,
        tasks: tuple[str, ...] | None = None,
        side_by_side: bool = False,
        look_first: bool = False,
    ) -> Answer:
        """Record *outcomes* and claim *wanted* runs.

        Four things are tried again, each for its own reason:

        1. what the database refuses for now: by `Bookkeeping.call`, in each statement;
        2. outcomes whose rows are locked: by `record_and_claim` in `jobs`, and later by the keeper;
        3. outcomes whose answer was lost: they are looked up, and sent again; those that are still
           missing are looked up once more, since the server may have committed them meanwhile;
        4. claims whose answer was lost: they are given back, and looked for again while they hold.

        :param idle: whether the worker holds nothing else, so that a retry may be claimed.
        :param tasks: the tasks to claim runs of; None for all.
        :param side_by_side: as of `ClaimRequest`.
        :param look_first: if the last claim got less than it wanted, look whether something is due
            before the next one: a claim takes more time, and SQLite's lock.
        :raises DatabaseTrouble: it is not known what was recorded and claimed. Call it again.
        """
        try:
            if self.unheard:
                self.release_unheard()
            # Before the claim, which may take a run that was recorded as failed.
            known = self._recorded_unheard(outcomes)
            request: ClaimRequest | None = None
            if wanted > 0:
                self.rates.open_starts(self._request, idle=not outcomes)
                if look_first and self._got_less and not outcomes and self._queue_is_empty():
                    self.exhausted = True
                    return Answer()
                if self.turns.give_before_claim(idle=not outcomes):
                    self.rates.open_starts(self._request, idle=True)
                request = self._request._replace(
                    limit=wanted,
                    token=f"{self._worker}:{secrets.token_hex(6)}",
                    idle=idle,
                    after=self._after,
                    side_by_side=side_by_side,
                    tasks=self._request.tasks if tasks is None else tasks,
                )
            answer = self._send(outcomes, request).plus(known)
            answer = answer.plus(self._recorded_late(outcomes, answer))
            self.turns.note_ended(outcomes)
            self.rates.give_back(outcomes, answer.recorded)
        except DatabaseTrouble:
            self._unconfirmed |= {outcome.identity for outcome in outcomes}
            raise
        return answer

    def next_run(self) -> tuple[str, bool] | None:
        """Return what `jobs.runs` does, for the tasks and queues of this worker."""
        return next_run(self._books, self._request)

    def open_starts(self) -> float:
        """Let runs be claimed whose rates have free starts; return when the next start comes."""
        self.rates.open_starts(self._request, idle=True)
        return self.rates.next_at

    def may_come_back(self) -> bool:
        """Return whether another worker may give back a run that it has just claimed.

        :raises DatabaseTrouble: the database could not be used.
        """
        return self._request.handed is None and look_at_queue(self._books).just_claimed

    def release_unheard(self, now: bool = False) -> None:
        """Release what was claimed by statements whose answers were lost.

        The server may have gone on with one, and commit it after we looked. So look again every
        second, for as long as such a claim would hold.

        :param now: look even if a second has not passed.
        :raises DatabaseTrouble: it is not known what was claimed.
        """
        moment, hold = time.monotonic(), self._request.lease
        self._unheard = {
            token: min(end, moment + hold) for token, end in self._unheard.items() if end > moment
        }
        if self._unheard and (now or self.unheard or self._looked.ready()):
            self._looked.block_for(LATE_EVERY)
            for token in self._unheard:
                release_token(self._books, token)
            self.unheard = False

    def _send(self, outcomes: Sequence[Outcome], request: ClaimRequest | None) -> Answer:
        if request is not None:
            self._unheard[request.token] = float("inf")
            self.unheard = True
        written = frozenset(outcome.id for outcome in outcomes if outcome.finalized)
        unwritten = [outcome for outcome in outcomes if not outcome.finalized]
        self.rates.hold_back(unwritten)
        answer = record_and_claim(self._books, unwritten, request, repeat=False)
        too_early = self.rates.spend(answer.claims)
        if too_early:
            record_and_claim(self._books, [released(claim) for claim in too_early], None)
        # Outcomes may have freed a concurrency key, and a claim may have started in the middle of
        # the keys: only a claim without either that finds nothing is final.
        self.exhausted = not (request is None or outcomes or answer.claims or self._after)
        if request is not None:
            del self._unheard[request.token]
            self.unheard = False
            self._got_less = len(answer.claims) < request.limit
            keys = [claim.concurrency_key for claim in answer.claims if claim.concurrency_key]
            self._after = keys[-1] if keys else ""
        if too_early:
            kept = tuple(claim for claim in answer.claims if claim not in too_early)
            answer = answer._replace(claims=kept)
        return answer._replace(recorded=answer.recorded | written)

    def _recorded_unheard(self, outcomes: Sequence[Outcome]) -> Answer:
        """Return which *outcomes* were recorded by a statement whose answer was lost."""
        if not self._unconfirmed:
            return Answer()
        asked = [outcome for outcome in outcomes if outcome.identity in self._unconfirmed]
        return already_recorded(self._books, asked) if asked else Answer()

    def _recorded_late(self, outcomes: Sequence[Outcome], answer: Answer) -> Answer:
        """Return which were, of those that *answer* lacks; then none is unconfirmed any more."""
        if not self._unconfirmed:
            return Answer()
        answered = [outcome for outcome in outcomes if outcome.id not in answer.locked]
        missing = [outcome for outcome in answered if outcome.id not in answer.recorded]
        found = self._recorded_unheard(missing)
        self._unconfirmed -= {outcome.identity for outcome in answered}
        return found

    def _queue_is_empty(self) -> bool:
        """Return whether a claim would find nothing; note whether turns are to be given."""
        seen = look_at_queue(self._books)
        self.turns.pend |= seen.turns_pend
        return not seen.may_find
