"""Exchange outcomes for claims, give turns and slots, find out what trouble left unknown."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from ... import failpoints
from ...db.connection import Bookkeeping
from ...errors import DatabaseTrouble
from ...jobs import orders, rates
from ...jobs.rates import BEFORE_ALL, Slot
from ...jobs.runs.claim import ClaimRequest, Exchange
from ...jobs.runs.exchange import Claims
from ...jobs.state import State
from ...registry.rate import Rate
from ...types import Claim, Outcome
from .options import WorkOptions
from .outcomes import released

#: How often a busy worker looks for turns and slots, in seconds.
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
        self._due_at = 0.0

    def give(self) -> bool:
        """Give the turn to the next run of each strict order; return whether that changed anything.

        :raises DatabaseTrouble: it is not known for which.
        """
        failpoints.reach("before-turns")
        changed = orders.give(self._books)
        self.pend = False
        self._due_at = time.monotonic() + LOOK_EVERY
        return changed

    def give_before_claim(self, idle: bool) -> bool:
        """Give the turns before a claim, if it is time; return whether that changed anything.

        An app without strict orders never looks, and a busy worker looks seldom. One that is idle
        looks each time, so that it finds what has just come.

        :raises DatabaseTrouble: as of `give`.
        """
        is_time = self.pend or (self.ordered and (idle or time.monotonic() >= self._due_at))
        return self.give() if is_time else False

    def note_ended(self, outcomes: Iterable[Outcome]) -> None:
        """Note that *outcomes* are recorded: behind one in a strict order another may come."""
        self.pend |= any(outcome.job_type in self.ordered for outcome in outcomes)


class RateLimits:
    """The rate limits of the runs that one worker claims. It belongs to the keeper's thread.

    An app without rates sends no statement for them.

    :param by_task: the tasks that have a rate.
    :param handed: whether its run took a slot when it was handed on.
    :ivar next_at: when the next slot comes for which a due run waits, by `time.monotonic`.
    """

    def __init__(self, books: Bookkeeping, by_task: Mapping[str, Rate], handed: bool) -> None:
        self.next_at: float = float("inf")
        self._books = books
        self._by_task = by_task
        self._begun: Mapping[str, Rate] = {} if handed else by_task
        self._slots: dict[tuple[int, str], Slot] = {}
        self._after = BEFORE_ALL
        self._look_at = 0.0

    def open_slots(self, request: ClaimRequest, idle: bool) -> None:
        """Let due runs be claimed that have a slot now.

        A busy worker looks seldom, one that is idle each time, so that it finds what has just come.

        :raises DatabaseTrouble: it is not known which.
        """
        now = time.monotonic()
        if not self._begun or (not idle and now < self._look_at):
            return
        found = rates.open_slots(self._books, self._begun, request, self._after)
        self._after = found.after
        ended = time.monotonic()
        # To go through thousands of keys takes long: a tenth of the time for that.
        self._look_at = ended + max(LOOK_EVERY, 10 * (ended - now))
        # Not at once: somebody may have locked the key's row.
        wait = float("inf") if found.wait is None else max(found.wait, LOOK_EVERY)
        self.next_at = ended + wait

    def spend(self, claims: Sequence[Claim]) -> list[Claim]:
        """Take slots for *claims*; return those that got none, and must not begin.

        :raises DatabaseTrouble: none of them may begin.
        """
        if not self._begun:  # Most apps: they pay nothing for each run.
            return []
        limited = [claim for claim in claims if claim.job_type in self._begun]
        if not limited:
            return []
        failpoints.reach("before-rate")
        slots = rates.spend(self._books, self._begun, limited)
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


#: How often to look for claims that were committed late, in seconds.
LATE_EVERY = 1.0


class Exchanger:
    """One worker's exchanges with the database.

    When the connection broke in an exchange, nobody knows whether the server had committed it. The
    next `exchange` finds out before it does anything else: which outcomes stand in their rows, and
    which runs were claimed under a token that nobody received.

    :ivar exhausted: whether the last exchange found that nothing more can be claimed.
    :ivar turns: gives the turns of strict orders before claims.
    :ivar rates: opens the slots of rate limits before claims, and takes them after.
    """

    def __init__(self, claims: Claims, state: State, options: WorkOptions) -> None:
        self.exhausted: bool = False
        self._claims = claims
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
        self.turns: Turns = Turns(claims.books, state.registry.ordered, options.front.turns_pend)
        own = state.registry.rates if options.rates is None else options.rates
        self.rates: RateLimits = RateLimits(claims.books, own, options.handed is not None)
        self._got_less = False
        self._unconfirmed_token: str | None = None
        self._in_trouble = False
        self._late: dict[str, float] = {}
        self._late_at = 0.0
        self._unconfirmed_outcomes: set[tuple[int, str]] = set()

    @property
    def unconfirmed(self) -> bool:
        """Whether runs may have been claimed without our hearing of it."""
        return self._unconfirmed_token is not None

    def record(self, outcomes: Sequence[Outcome]) -> Exchange:
        """Record *outcomes*, and claim nothing.

        :raises DatabaseTrouble: as of `exchange`.
        """
        return self.exchange(outcomes, 0, idle=False)

    def exchange(
        self,
        outcomes: Sequence[Outcome],
        wanted: int,
        idle: bool,
        tasks: tuple[str, ...] | None = None,
        side_by_side: bool = False,
        look_first: bool = False,
    ) -> Exchange:
        """Record *outcomes* and claim *wanted* runs.

        :param idle: whether the worker holds nothing else, so that a retry may be claimed.
        :param tasks: the tasks to claim runs of; None for all.
        :param side_by_side: as of `ClaimRequest`.
        :param look_first: if the last claim got less than it wanted, look whether something is due
            before the next one: a claim takes more time, and SQLite's lock.
        :raises DatabaseTrouble: it is not known what was recorded and claimed. Call it again.
        """
        try:
            confirmed = self._confirm(outcomes) if self._in_trouble else Exchange()
            left = [outcome for outcome in outcomes if outcome.id not in confirmed.recorded]
            if wanted > 0:
                self.rates.open_slots(self._request, idle=not left)
            looks = look_first and wanted > 0 and self._got_less and not left
            is_empty = looks and self._front_is_empty()
            request: ClaimRequest | None = None
            if wanted > 0 and not is_empty:
                if self.turns.give_before_claim(idle=not left):
                    self.rates.open_slots(self._request, idle=True)
                request = self._request._replace(
                    limit=wanted,
                    token=f"{self._worker}:{secrets.token_hex(6)}",
                    idle=idle,
                    after=self._after,
                    side_by_side=side_by_side,
                    tasks=self._request.tasks if tasks is None else tasks,
                )
            exchange = self._exchange(left, request)
            self.exhausted = self.exhausted or is_empty
            late = self._recorded_late(left, exchange)
            self.turns.note_ended(left)
            self.rates.give_back(left, exchange.recorded)
        except DatabaseTrouble:
            self._in_trouble = True
            self._unconfirmed_outcomes |= {outcome.identity for outcome in outcomes}
            raise
        self._in_trouble = False
        return exchange.plus(confirmed, late)

    def first(self) -> tuple[str, bool] | None:
        """Return what `Claims.first` does, for the tasks and queues of this worker."""
        return self._claims.first(self._request)

    def open_slots(self) -> float:
        """Let runs be claimed whose rates have free slots; return when the next slot comes."""
        self.rates.open_slots(self._request, idle=True)
        return self.rates.next_at

    def may_come_back(self) -> bool:
        """Return whether another worker may give back a run that it has just claimed.

        :raises DatabaseTrouble: the database could not be used.
        """
        return self._request.handed is None and self._claims.front().ahead

    def release_late(self, now: bool = False) -> None:
        """Release what was claimed after all by an exchange whose connection broke.

        The server may have gone on with it, and have committed it after we gave its claims back.
        So look again every second, for as long as such a claim would hold.

        :param now: look even if a second has not passed.
        """
        time_now = time.monotonic()
        self._late = {token: end for token, end in self._late.items() if end > time_now}
        if self._late and (now or time_now >= self._late_at):
            self._late_at = time_now + LATE_EVERY
            for token in self._late:
                self._claims.release_token(token)

    def _recorded_late(self, outcomes: Sequence[Outcome], exchange: Exchange) -> Exchange:
        """Return which *outcomes* were recorded by an exchange whose connection had broken.

        The server may have gone on with it, and have committed it after `_confirm` looked.
        """
        if not self._unconfirmed_outcomes:
            return Exchange()
        unlocked = [outcome for outcome in outcomes if outcome.id not in exchange.locked]
        missing = [
            outcome
            for outcome in unlocked
            if outcome.id not in exchange.recorded
            and outcome.identity in self._unconfirmed_outcomes
        ]
        late = self._claims.already_recorded(missing) if missing else Exchange()
        self._unconfirmed_outcomes -= {outcome.identity for outcome in unlocked}
        return late

    def _exchange(self, outcomes: Sequence[Outcome], request: ClaimRequest | None) -> Exchange:
        if request is not None:
            self._unconfirmed_token = request.token
        written = frozenset(outcome.id for outcome in outcomes if outcome.finalized)
        unwritten = [outcome for outcome in outcomes if not outcome.finalized]
        self.rates.hold_back(unwritten)
        exchange = self._claims.exchange(unwritten, request, repeat=False)
        too_early = self.rates.spend(exchange.claims)
        if too_early:
            self._claims.exchange([released(claim) for claim in too_early], None)
        self._unconfirmed_token = None
        # Outcomes may have freed a concurrency key, and a claim may have started in the middle of
        # the keys: only a claim without either that finds nothing is final.
        self.exhausted = not (request is None or outcomes or exchange.claims or self._after)
        if request is not None:
            self._got_less = len(exchange.claims) < request.limit
            keys = [claim.concurrency_key for claim in exchange.claims if claim.concurrency_key]
            self._after = keys[-1] if keys else ""
        if too_early:
            kept = tuple(claim for claim in exchange.claims if claim not in too_early)
            exchange = exchange._replace(claims=kept)
        return exchange._replace(recorded=exchange.recorded | written)

    def _confirm(self, outcomes: Sequence[Outcome]) -> Exchange:
        """Give back what was claimed unheard; find which of *outcomes* are recorded."""
        if self._unconfirmed_token is not None:
            self._claims.release_token(self._unconfirmed_token)
            self._late[self._unconfirmed_token] = time.monotonic() + self._request.lease
            self._late_at = time.monotonic() + LATE_EVERY
            self._unconfirmed_token = None
        return self._claims.already_recorded(outcomes) if outcomes else Exchange()

    def _front_is_empty(self) -> bool:
        """Return whether a claim would find nothing; note whether turns are to be given."""
        front = self._claims.front()
        self.turns.pend |= front.turns_pend
        return not front.may_find
