"""The keeper: a thread beside the runner that owns the worker's bookkeeping connection.

It records the outcomes that have piled up and claims what comes next, in one statement; renews
leases; watches for cancels and deadlines. While one commit is under way the next outcomes pile up:
so short runs batch themselves, and an outcome waits for one commit at most.

Each turn of its loop: collect what came, trade outcomes for claims, tend what is held.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

from ... import failpoints
from ...errors import DatabaseTrouble
from ...log import logger
from ...signals import announce, pass_on
from ...state import State
from ...store import Bookkeeping, Claims
from ...types import Exchange, Outcome
from .exchange import Ledger
from .held_runs import Hand
from .monitor import Warden
from .options import WorkOptions
from .prefetch import LONG, Pace
from .runner import Runner

#: How often a worker that waits for work looks for it, in seconds.
POLL = 0.25
#: How often a resident worker does its upkeep, in seconds: what a tick does in crontab.
UPKEEP = 60.0
#: How soon it tries again after trouble in the midst of it, in seconds.
UPKEEP_AGAIN = 2.0
#: How long the keeper's connection tries again by itself before the keeper looks around.
PATIENCE = 0.5


class Keeper(threading.Thread):
    """Claims, records and watches for one runner."""

    def __init__(
        self,
        state: State,
        runner: Runner,
        options: WorkOptions,
        hand: Hand,
        warden: Warden,
    ) -> None:
        super().__init__(name="cronjobs-keeper", daemon=True)
        self.counts: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._state = state
        self._options = options
        self._runner = runner
        self._hand = hand
        self._warden = warden
        self._books = Bookkeeping(state.engine, patience=PATIENCE)
        self._claims = Claims(self._books)
        self._ledger = Ledger(self._claims, state, options)
        self._pace = Pace()
        self._claimed = 0
        self._dry_at: float | None = None
        self._trouble_since: float | None = None
        self._upkeep_at = 0.0
        self._stopping = False

    def stop(self) -> None:
        """Claim nothing more. May be called from a signal handler."""
        self._stopping = True
        self._warden.stop_at = self._warden.stop_at or time.monotonic()
        self._hand.wake()

    def run(self) -> None:
        """The thread's life: turn until there is nothing more to do."""
        try:
            with self._books:
                while not self._finished():
                    self._collect()
                    self._trade()
                    self._tend()
                if self._options.upkeep is not None:
                    self._options.upkeep.end(self._books, self.counts)
        except BaseException as error:
            self.error = error
            self._hand.take_back()
            self._warden.give_up(error)
        finally:
            self._hand.close()

    def _collect(self) -> None:
        """Wait for a word, and take all that came."""
        left = self._runner.left
        self._hand.collect(self._pause())
        if left:
            self._hand.give_all_back()
        if self._hand.woken:
            self._dry_at = None

    def _finished(self) -> bool:
        if self._hand.full or self._ledger.doubtful:
            return False
        if self._closed():
            return True
        return self._dry_at is not None and self._options.upkeep is None

    def _closed(self) -> bool:
        """Whether nothing more is to be claimed."""
        most = self._options.max_runs
        return (
            self._stopping
            or self._runner.left
            or time.monotonic() >= self._options.until
            or (most is not None and self._claimed >= most)
        )

    def _pause(self) -> float:
        """How long to wait for a word, in seconds."""
        if self._trouble_since is not None:
            return 0.2
        if self._wanted() > 0:
            return 0.0
        return min(self._warden.pause(), POLL)

    def _wanted(self) -> int:
        if self._closed() or self._runner_is_long() or self._resting():
            return 0
        wanted = self._pace.wanted(self._hand.waiting, self._hand.idle)
        most = self._options.max_runs
        return wanted if most is None else min(wanted, most - self._claimed)

    def _resting(self) -> bool:
        """Whether the last look found nothing, and nothing has changed since."""
        return self._dry_at is not None and time.monotonic() < self._dry_at + POLL

    def _runner_is_long(self) -> bool:
        working = self._runner.working
        return working is not None and time.monotonic() - working.since > LONG

    def _trade(self) -> None:
        """Record what came, and claim what is wanted, in one exchange."""
        wanted = self._wanted()
        try:
            self._hear()  # First: nothing is written of a run once its outcome is recorded.
            if not self._hand.outcomes and not self._ledger.doubtful and wanted <= 0:
                return
            self._settle_doubts()
            outcomes = list(self._hand.outcomes)
            if outcomes:
                failpoints.reach("before-finalize")
            exchange = self._ledger.exchange(outcomes, wanted, alone=self._hand.idle)
        except DatabaseTrouble as trouble:
            self._bear(trouble)
            return
        self._trouble_since = None
        self._receive(outcomes, exchange)

    def _hear(self) -> None:
        """Write what handlers said last of their progress."""
        working = self._runner.working
        if working is not None and self._runner_is_long():
            self._hand.note(working.run)
        for told in self._hand.told:
            self._hand.note(told.run)
            if told.beat:
                self._warden.beat_now()
        for claim, word in list(self._hand.words.values()):
            self._claims.progress(claim, *word)
            del self._hand.words[claim.id]
        while self._hand.told:
            self._hand.told.pop().heard.put(None)

    def _receive(self, outcomes: Sequence[Outcome], exchange: Exchange) -> None:
        if outcomes:
            failpoints.reach("after-finalize")
            self._pace.note([each.seconds for each in outcomes if each.kind != "released"])
        for outcome in outcomes:
            self._hand.let_go(outcome)
            self._report(exchange.stored(outcome), outcome.id in exchange.recorded)
        if exchange.claims:
            failpoints.reach("after-claim")
            self._warden.light_fuse()
        self._hand.give(exchange.claims)
        self._claimed += len(exchange.claims)
        self._dry_at = time.monotonic() if self._ledger.dry else None

    def _report(self, outcome: Outcome, recorded: bool) -> None:
        announce(self._state.app, outcome, recorded)
        if outcome.begun:
            self.counts[outcome.kind if recorded else "lost"] += 1
        if recorded and outcome.begun:
            pass_on(self._options.on_outcome, outcome)

    def _bear(self, trouble: DatabaseTrouble) -> None:
        """Go on in spite of *trouble*, until the leases would end.

        But on SQLite for as long as a handler works: it may hold the one lock itself, and then
        nobody can take its run back.
        """
        now = time.monotonic()
        self._trouble_since = self._trouble_since or now
        too_long = now - self._trouble_since > self._state.settings.lease
        alone = self._books.dialect.name == "sqlite" and self._runner.working is not None
        if not trouble.transient or (too_long and not alone):
            raise trouble
        logger.warning("Trying again. %s", trouble)

    def _settle_doubts(self) -> None:
        """After trouble: what was claimed or recorded without our hearing of it?"""
        if self._trouble_since is None:
            return
        settled = self._ledger.settle(self._hand.outcomes)
        for outcome in [each for each in self._hand.outcomes if each.id in settled.recorded]:
            self._hand.let_go(outcome)
            self._report(settled.stored(outcome), recorded=True)

    def _tend(self) -> None:
        """Do what is due about the runs that are held."""
        try:
            if self._hand.waiting and (self._stopping or self._runner_is_long()):
                self._hand_back()
            answered = self._look()
            self._keep_up()
            if answered and not self._hand.outcomes and not self._ledger.doubtful:
                self._trouble_since = None
        except DatabaseTrouble as trouble:
            self._bear(trouble)
        doomed = self._warden.doomed(holding=bool(self._hand.held))
        if doomed is not None:
            self._end_process(doomed)

    def _hand_back(self) -> None:
        """Give back what waits behind the run at work, attempts not counted."""
        self._claimed -= self._hand.give_back()

    def _look(self) -> bool:
        """Renew leases, and learn which were lost and which runs are cancelled.

        :returns: whether the database was asked, and answered.
        """
        beating = self._warden.beating
        news = self._warden.look(self._claims, self._hand.held)
        if beating and self._options.on_beat is not None and self._hand.held:
            self._options.on_beat(self._books)
        if news is None:
            return False
        finished = {outcome.id for outcome in self._hand.outcomes}
        for claim in list(self._hand.held.values()):
            if claim.id in finished:
                continue
            if claim.id not in news.held:
                self._warden.lose(claim)
            elif claim.id in news.cancelled:
                self._warden.cancel(claim)
        return True

    def _keep_up(self) -> None:
        upkeep = self._options.upkeep
        if upkeep is not None and time.monotonic() >= self._upkeep_at:
            self._upkeep_at = time.monotonic() + UPKEEP_AGAIN
            upkeep.each_minute(self._books, self.counts, self._hand.wake)
            self._upkeep_at = time.monotonic() + UPKEEP

    def _end_process(self, doomed: Outcome) -> None:
        """The last resort: record, hand back, and end this process with the handler in it."""
        self._hand.outcomes.append(doomed)
        self._hand_back()
        try:
            outcomes = list(self._hand.outcomes)
            self._receive(outcomes, self._ledger.exchange(outcomes, 0, alone=False))
        except Exception:
            logger.exception("Could not record before ending the process; the leases will tell")
        self._warden.end_process(doomed)
