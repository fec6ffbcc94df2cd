"""Send the claims and outcomes of one worker, and recover when an answer is lost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter

from ...db import failpoints
from ...db.connection import Bookkeeping
from ...errors import DatabaseTrouble
from ...types import Claim, Outcome
from .. import features, gate
from ..app_state import State, Throttle
from ..claim import Answer, ClaimRequest, already_recorded, record_and_claim, release_token
from ..leases import Held
from ..look import look_at_queue, next_run
from .outcomes import released
from .work_options import WorkOptions

_ID = attrgetter("id")
#: Seconds between two searches for claims that were committed late.
LATE_SECONDS = 1.0
#: Seconds between two searches of an idle worker for parked runs that were never opened.
SEARCH_SECONDS = 1.0
#: The number of runs that a claim reads beyond its limit, if the previous one got fewer runs than
#: its limit because some were parked or blocked.
BEYOND_RUNS = 500
#: Seconds for which claims skip runs that were blocked, if they find others.
SKIP_SECONDS = 0.5
#: The seconds added to `SKIP_SECONDS` for each blocked run if claims find no other runs. If all
#: blocked runs have one key, each claim finds only one of them. With the longer time, such claims
#: take only about a tenth of the worker's time.
SKIP_SECONDS_PER_RUN = 0.01
#: The largest number of blocked runs that claims skip.
MAX_BLOCKED_RUNS = 1000


class UnansweredClaims:
    """Gives back runs that were claimed by statements whose answers were lost.

    The server may continue with such a statement, and commit it after the worker has looked for its
    claims. So the worker looks again every second, for as long as such a claim would hold.

    :param lease: the length of a lease, in seconds.
    :ivar must_check: whether to look once more before the next claim or record. Until then, the
        worker does not end.
    """

    def __init__(self, books: Bookkeeping, lease: float) -> None:
        self.must_check: bool = False
        self._books = books
        self._lease = lease
        # When to stop looking for each token; infinity until the first look, which sets the time.
        self._tokens: dict[str, float] = {}
        self._looked = Throttle()

    @property
    def has_tokens(self) -> bool:
        """Whether claims whose answers were lost may still take runs."""
        return bool(self._tokens)

    def add(self, *tokens: str) -> None:
        """Note that the answers to the claims with *tokens* were lost."""
        self._tokens |= dict.fromkeys(tokens, float("inf"))
        self.must_check = True

    def give_back(self, now: bool = False) -> None:
        """Give back the runs that claims with lost answers have taken.

        :param now: look even if the last look was less than a second ago.
        :raises DatabaseTrouble: it is not known which runs were claimed.
        """
        moment = time.monotonic()
        self._tokens = {token: end for token, end in self._tokens.items() if end > moment}
        if not self._tokens:
            self.must_check = False
        elif now or self.must_check or self._looked.ready():
            self._looked.block_for(LATE_SECONDS)
            complete = [release_token(self._books, token) for token in self._tokens]
            until = moment + self._lease
            self._tokens = {token: min(end, until) for token, end in self._tokens.items()}
            # If a release is not complete, another transaction has locked a row with that token.
            self.must_check = not all(complete)


class Openings:
    """Opens the next runs of concurrency keys; see `gate`. It belongs to the keeper's thread.

    :ivar has_keys: whether tasks of the code have a concurrency key.
    :ivar keyed: the ids of the held runs with a key.
    :ivar unopened: the ids of runs that have freed a share or a turn, or are parked. The next runs
        of their keys have not been opened yet.
    """

    def __init__(self, books: Bookkeeping, has_keys: bool) -> None:
        self.unopened: set[int] = set()
        self._books = books
        self.has_keys: bool = has_keys
        self.keyed: set[int] = set()
        self._searched = Throttle()
        self._search_after = ""

    def note(self, outcomes: Iterable[Held], answer: Answer, opened: Collection[int] = ()) -> None:
        """Note what *answer* says about *outcomes* and about the claim.

        :param opened: the ids of runs; the next runs of their keys were opened before the claim.
        """
        self.unopened.difference_update(opened)
        if self.keyed:
            ids = {outcome.id for outcome in outcomes if outcome.id not in answer.unrecorded}
            self.unopened |= (ids & self.keyed).difference(opened)
            self.keyed -= ids
        if answer.parked:
            self.unopened |= answer.parked
        self.keyed |= {claim.id for claim in answer.claims if claim.concurrency_key is not None}

    def open(self) -> None:
        """Open the next runs in the keys of `unopened`.

        :raises DatabaseTrouble: it is not known which runs were opened. Call it again.
        """
        gate.open_behind(self._books, self.unopened)
        self.unopened.clear()

    def open_left_parked(self) -> bool:
        """Open some parked runs that were never opened; return whether any were opened.

        A worker calls this when it finds no run. It searches at most once a second.
        """
        if not self._searched.ready():
            return False
        self._searched.block_for(SEARCH_SECONDS)
        opened, self._search_after = gate.open_left_parked(self._books, self._search_after)
        return opened > 0


class BlockedRuns:
    """Runs that other transactions have locked, which the next claims skip.

    A claim chooses the first runs of a key or group, and then locks them. Without this, it would
    choose the same runs again while an open transaction holds them.

    :ivar ids: the ids of these runs.
    """

    ids: frozenset[int] = frozenset()
    _until = 0.0

    def forget_old(self) -> None:
        """Forget the runs after a while, since they may be free by now."""
        if self.ids and time.monotonic() >= self._until:
            self.ids = frozenset()

    def note(self, answer: Answer) -> bool:
        """Note the runs that a claim has skipped; return whether the next claim may find others.

        Until claims find other runs, no blocked run is forgotten, up to `MAX_BLOCKED_RUNS`, so that
        a claim gets past all blocked ones.
        """
        now = time.monotonic()
        may_find_others = bool(answer.blocked) and len(self.ids) < MAX_BLOCKED_RUNS
        if not self.ids:
            self._until = now + SKIP_SECONDS
        if may_find_others:
            self.ids |= answer.blocked
            if not answer.claims:
                self._until = now + SKIP_SECONDS + SKIP_SECONDS_PER_RUN * len(self.ids)
        return may_find_others


class WorkerClaims:
    """Sends the claims and outcomes of one worker. It belongs to the keeper's thread.

    :ivar unanswered: gives back the claims whose answers were lost.
    :ivar openings: opens the next runs of concurrency keys.
    :ivar starts: the limits on starts. Before a claim, each makes due runs claimable; after the
        claim, it uses up a start for each claimed run.
    :ivar next_start: the time of the next start that a due run waits for, by `time.monotonic`.
    """

    def __init__(self, books: Bookkeeping, state: State, options: WorkOptions) -> None:
        self._books = books
        self._request = request = ClaimRequest(
            limit=1,
            token="",
            tasks=tuple(state.registry.tasks),
            queues=options.queues,
            elsewhere=options.elsewhere,
            lease=options.lease or state.settings.lease,
            handed=options.handed,
        )
        self._worker = options.worker
        self._beyond = 0
        self._got_less = False
        self._blocked = BlockedRuns()
        self.unanswered: UnansweredClaims = UnansweredClaims(books, request.lease)
        self._unconfirmed: set[tuple[int, str]] = set()
        self.openings: Openings = Openings(books, bool(state.registry.keyed))
        limits = features.starts(state, books, request, options.rates)
        self.starts: tuple[features.Starts, ...] = limits
        self.next_start: float = float("inf")

    def record(self, outcomes: Sequence[Outcome]) -> Answer:
        """Record *outcomes*, and claim nothing.

        :raises DatabaseTrouble: it is unknown what was recorded.
        """
        answer = self.claim(outcomes, 0, idle=False)
        if self.openings.unopened:
            with suppress(DatabaseTrouble):  # Other workers find runs that were not opened.
                self.openings.open()
        return answer

    def claim(
        self,
        outcomes: Sequence[Outcome],
        limit: int,
        idle: bool,
        tasks: tuple[str, ...] | None = None,
        side_by_side: bool = False,
        look_first: bool = False,
    ) -> Answer:
        """Record *outcomes* and claim up to *limit* runs.

        Four things are retried, each for its own reason:

        1. `Bookkeeping.call` retries a statement that the database refuses for now.
        2. `record_and_claim`, and later the keeper, retries outcomes whose rows are blocked.
        3. Outcomes whose answer was lost are sent again. Those that match no row are looked up
           before the next claim, which could otherwise take a run that was recorded as failed.
        4. Runs of a claim whose answer was lost are released, again and again for one lease.

        :param idle: see `ClaimRequest`.
        :param tasks: the tasks to claim runs of; None for all.
        :param side_by_side: see `ClaimRequest`.
        :param look_first: if the last claim got fewer runs than its limit, first check whether a
            run is due. A claim takes more time than this check, and takes SQLite's lock.
        :raises DatabaseTrouble: it is unknown what was recorded and claimed. Call it again.
        """
        request: ClaimRequest | None = None
        openings, first_answer, unsent = self.openings, None, outcomes
        try:
            if self.unanswered.must_check:
                self.unanswered.give_back()
            sent_before = [outcome for outcome in outcomes if outcome.identity in self._unconfirmed]
            if limit <= 0 or sent_before:
                answer = self._send(outcomes, None)
                return self._confirm(sent_before, answer) if sent_before else answer
            if self.starts:
                self.open_starts(not outcomes, tasks)
            looks = look_first and self._got_less and not outcomes and not openings.unopened
            if looks and not look_at_queue(self._books):
                return Answer(exhausted=not (openings.has_keys and openings.open_left_parked()))
            d = self._books.dialect
            if not d.one_writer and openings.keyed.intersection(map(_ID, outcomes)):
                # Commit the outcomes first, so that the claim can take the runs that they open.
                first_answer, unsent = self._send(outcomes, None), ()
            request = self._request_for(limit, idle, tasks, side_by_side)
            answer = self._send(unsent, request)
            if first_answer is not None:
                answer = answer.plus(first_answer)
            if answer.exhausted and openings.has_keys and openings.open_left_parked():
                answer = answer._replace(exhausted=False)
        except DatabaseTrouble:
            self._unconfirmed |= {outcome.identity for outcome in outcomes}
            if request is not None:
                self.unanswered.add(request.token)
            raise
        if answer.parked:
            with suppress(DatabaseTrouble):  # The claims must not be lost. Opening is retried.
                openings.open()
        return answer

    def open_starts(self, promptly: bool, tasks: tuple[str, ...] | None = None) -> None:
        """Let due runs that may begin now be claimed; see `features.Starts.open`."""
        for rate_limit in self.starts:
            rate_limit.open(promptly, tasks)
        self.next_start = min(
            (rate_limit.next_at for rate_limit in self.starts), default=float("inf")
        )

    def next_run(self) -> tuple[str, bool] | None:
        """Return the next claimable run's task, and whether it must run alone."""
        return next_run(self._books, self._request)

    def _request_for(
        self, limit: int, idle: bool, tasks: tuple[str, ...] | None, side_by_side: bool
    ) -> ClaimRequest:
        if self._blocked.ids:
            self._blocked.forget_old()
        return self._request._replace(
            limit=limit,
            token=f"{self._worker}:{secrets.token_hex(6)}",
            idle=idle,
            beyond=self._beyond,
            side_by_side=side_by_side,
            blocked=self._blocked.ids,
            tasks=self._request.tasks if tasks is None else tasks,
        )

    def _send(self, outcomes: Sequence[Outcome], request: ClaimRequest | None) -> Answer:
        """Record *outcomes*, claim what *request* asks for, and note the answer.

        One transaction records, opens the next runs of keys, and claims. Before it, outcomes that
        hold back a rate key are recorded one by one. After it, each claimed run takes its start.

        :raises DatabaseTrouble: it is unknown what was recorded and claimed.
        """
        finalized_ids = frozenset(outcome.id for outcome in outcomes if outcome.finalized)
        others, hold_answer = [outcome for outcome in outcomes if not outcome.finalized], Answer()
        if self.starts:
            others, hold_answer = self._record_holding(others)
        opens = set(self.openings.unopened) if request is not None else set[int]()
        if request is not None and self._books.dialect.one_writer:
            # Open in the same transaction, since there is only one writer.
            opens |= self.openings.keyed.intersection(map(_ID, outcomes))
        if opens:
            failpoints.reach("before-open")
        answer = record_and_claim(self._books, others, request, repeat=False, opens=opens)
        if self.starts:
            answer = answer.plus(hold_answer)
        self.openings.note(outcomes, answer, opens)
        startable = self._spend(answer.claims) if self.starts else answer.claims
        # Outcomes may have freed a concurrency key. So the queue is exhausted only if a claim
        # whose transaction records no outcomes finds nothing.
        changed = outcomes or answer.claims or answer.parked
        may_find_others = bool(answer.blocked) and self._blocked.note(answer)
        exhausted = not (request is None or changed or may_find_others)
        if request is not None:
            self._got_less = len(answer.claims) < request.limit
            in_vain = answer.parked or answer.blocked
            self._beyond = BEYOND_RUNS if in_vain and self._got_less else 0
        recorded = answer.recorded | finalized_ids
        return answer._replace(recorded=recorded, claims=startable, exhausted=exhausted)

    def _record_holding(self, outcomes: list[Outcome]) -> tuple[list[Outcome], Answer]:
        """Record the *outcomes* that hold back a rate key; return the others, and the answer."""
        answer = Answer()
        for rate_limit in self.starts:
            answer = answer.plus(rate_limit.record_holding(outcomes))
            sent_ids = answer.recorded | answer.unrecorded
            outcomes = [outcome for outcome in outcomes if outcome.id not in sent_ids]
        return outcomes, answer

    def _spend(self, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
        """Take a start for each of *claims*; return those that may begin, and release the others.

        :raises DatabaseTrouble: a run cannot be released; treat it like a lost answer.
        """
        too_early: list[Claim] = []
        for rate_limit in self.starts:
            too_early += rate_limit.spend([claim for claim in claims if claim not in too_early])
        answer = record_and_claim(self._books, [released(claim) for claim in too_early], None)
        self.openings.note(too_early, answer)
        if answer.unrecorded:
            raise DatabaseTrouble("A claimed run cannot be released", transient=True)
        return tuple(claim for claim in claims if claim not in too_early)

    def _confirm(self, sent_before: Sequence[Outcome], answer: Answer) -> Answer:
        """Return *answer* with those of *sent_before* that were recorded the first time."""
        settled = [outcome for outcome in sent_before if outcome.id not in answer.unrecorded]
        missing = [outcome for outcome in settled if outcome.id not in answer.recorded]
        if missing:
            answer = answer.plus(already_recorded(self._books, missing))
        self._unconfirmed -= {outcome.identity for outcome in settled}
        return answer
