"""Hand runs of chosen queues over to Celery, in a thread beside the runs of this worker.

A run that is handed over is ``running``. Its token shows that it was handed over (see
`types.handed_to`), until a Celery worker replaces the token. If none does within the run's lease,
the run is reclaimed like one whose worker was lost, but the attempt does not count, since no
handler has begun.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence

from ...core.app_state import State
from ...core.look import look_at_queue
from ...core.worker.claims import WorkerClaims
from ...core.worker.outcomes import released
from ...core.worker.process_signals import StopFlag
from ...core.worker.work_options import WorkOptions
from ...db import failpoints
from ...db.connection import Bookkeeping
from ...errors import CronJobsError, DatabaseTrouble
from ...log import Outage, logger, worker_name
from ...text import one_line
from ...types import HANDED_LEASES, HANDED_PREFIX, Claim
from .executor import Executor, executor_of
from .tokens import database_fingerprint, give_tokens, in_brokers

#: The largest number of runs that are sent at a time.
MAX_SENT_RUNS = 100
#: Seconds between two checks of a resident worker for runs to hand over.
CHECK_SECONDS = 0.25
#: Seconds until the next check if more runs may be found soon.
SOON_SECONDS = 0.05
#: Seconds until an unreachable broker or database is tried again.
RETRY_SECONDS = 5.0
#: Seconds that a worker waits at its end for a broker that does not answer.
ANSWER_SECONDS = 10.0
#: Seconds for which a statement is retried.
STATEMENT_RETRY_SECONDS = 5.0


class HandOver(threading.Thread):
    """Hands runs over until no more are due, or for as long as a resident worker works.

    :param flag: the stop flag of the worker beside it.
    """

    def __init__(self, state: State, options: WorkOptions, flag: StopFlag) -> None:
        super().__init__(name="cronjobs-hand-over", daemon=True)
        self._state = state
        self._options = options
        self._flag = flag
        self._ended = threading.Event()
        self._left = float("inf") if options.max_runs is None else options.max_runs
        self._trouble = Outage()

    def end(self) -> None:
        """End the thread; in a tick, first wait until no more runs are due or the budget is over.

        After an error of the worker, it ends at once.
        """
        if self._options.resident or self._flag.error is not None:
            self._ended.set()
        while self.is_alive() and not self._over():
            self.join(0.2)
        self._ended.set()
        self.join(ANSWER_SECONDS)
        if self.is_alive():
            logger.warning(
                "The broker does not answer, so the worker stopped handing runs over. Runs that "
                "were claimed but not handed over return to their queue when their leases end."
            )

    def _over(self) -> bool:
        used_up = time.monotonic() >= self._options.until or self._left <= 0
        return used_up or self._flag.at is not None or self._ended.is_set()

    def run(self) -> None:
        """Hand runs over until the thread is ended."""
        try:
            with Bookkeeping(self._state.engine, patience=STATEMENT_RETRY_SECONDS) as books:
                self._hand_on(self._queues(executor_of(self._state.app), books))
        except CronJobsError as error:
            logger.error("Runs cannot be handed over. %s", error)
        except BaseException:
            logger.exception("Runs cannot be handed over")

    def _queues(self, executor: Executor, books: Bookkeeping) -> list[_Queue]:
        """Return the queues of this worker that have an executor."""
        served = self._options.queues
        return [
            _Queue(self._state, self._options, name, executor, books)
            for name in self._state.settings.executors
            if not served or name in served
        ]

    def _hand_on(self, queues: Sequence[_Queue]) -> None:
        # Check once even if the tick's budget was used up before this thread began.
        while queues and self._flag.at is None:
            pause = self._pause_after_round(queues)
            if self._over() or (pause >= CHECK_SECONDS and not self._options.resident):
                break
            self._ended.wait(pause)
        for queue in queues:
            queue.give_back(now=True)

    def _pause_after_round(self, queues: Sequence[_Queue]) -> float:
        """Hand over runs of all *queues*; return the seconds until the next check."""
        total = 0
        for queue in queues:
            if time.monotonic() < queue.retry_at:
                continue
            try:
                number = queue.hand_on(int(min(self._left, MAX_SENT_RUNS)))
            except DatabaseTrouble as trouble:
                if not trouble.transient:
                    raise
                self._trouble.say("Runs cannot be handed over yet. %s", trouble)
                return RETRY_SECONDS  # The other queues are in the same database.
            except _BrokerAway as away:
                queue.rest(away)
                continue
            self._trouble.over("The database")
            if number:
                queue.away.over("Celery")
            self._left -= number
            total += number
        soon = SOON_SECONDS if any(queue.waits for queue in queues) else CHECK_SECONDS
        return 0.0 if total else soon


class _BrokerAway(Exception):
    """Raised with the reason if the runs of a queue could not be sent."""


class _Queue:
    """A queue whose runs Celery executes.

    :ivar waits: whether more runs may be found soon.
    :ivar away: logs that its runs could not be sent.
    :ivar retry_at: when to try again after that, by `time.monotonic`.
    """

    def __init__(
        self,
        state: State,
        options: WorkOptions,
        name: str,
        executor: Executor,
        books: Bookkeeping,
    ) -> None:
        self.waits = False
        self.away = Outage()
        self.retry_at = float("-inf")
        self._name = name
        self._executor = executor
        self._until = options.until
        self._limit = state.settings.handed_limit
        self._books = books
        own_options = options._replace(
            worker=f"{HANDED_PREFIX}celery:{database_fingerprint(books)}:{worker_name()}",
            queues=(name,),
            elsewhere=frozenset(),
            lease=HANDED_LEASES * state.settings.lease,
        )
        self._claims = WorkerClaims(books, state, own_options)

    def hand_on(self, most: int) -> int:
        """Hand over up to *most* runs; return how many were handed over.

        :raises DatabaseTrouble: the database could not be used. Claimed runs are given back by a
            later call, or come back when their leases end.
        """
        self.give_back()
        self._claims.open_starts(promptly=True)
        self.waits = self._claims.next_start < self._until
        if not look_at_queue(self._books):
            return 0
        room = self._limit - in_brokers(self._books, self._name)
        if room <= 0:
            self.waits = True
            return 0
        # Several retries may be claimed at once, since each is executed in its own process.
        answer = self._claims.claim([], min(most, room), idle=True, side_by_side=True)
        self.waits |= not answer.exhausted
        if answer.claims:
            self._send(self._with_own_tokens(answer.claims))
        return len(answer.claims)

    def give_back(self, now: bool = False) -> None:
        """Give back the runs of claims and releases whose answers were lost.

        Without a message, nothing else would return such a run before its lease ends.

        :param now: see `UnansweredClaims.give_back`.
        :raises DatabaseTrouble: it is not known which runs were claimed.
        """
        self._claims.unanswered.give_back(now)

    def rest(self, error: _BrokerAway) -> None:
        """Log *error*, and note when to try this queue again. Other queues continue."""
        self.away.say("Celery cannot be reached, so the queue %s waits. %s", self._name, error)
        self.retry_at = time.monotonic() + RETRY_SECONDS
        self.waits = False

    def _with_own_tokens(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Return *claims* with a separate token for each, so that a message begins only its run.

        :raises DatabaseTrouble: their tokens are unknown, so the runs are given back later.
        """
        if len(claims) == 1:
            return claims
        shared = claims[0].token
        prefix = shared.rpartition(":")[0]
        tokens = [f"{prefix}:{secrets.token_hex(6)}" for _ in claims]
        try:
            own_claims = give_tokens(self._books, claims, tokens)
        except DatabaseTrouble:
            self._claims.unanswered.add(shared, *tokens)
            raise
        if len(own_claims) < len(claims):  # The runs whose rows were locked are released later.
            self._claims.unanswered.add(shared)
        return own_claims

    def _send(self, claims: Sequence[Claim]) -> None:
        """Send *claims*; if that fails, release them.

        :raises _BrokerAway: sending failed.
        :raises DatabaseTrouble: sending failed, and the runs are released later.
        """
        failpoints.reach("before-send")
        try:
            self._executor.send(self._name, claims)
        except Exception as error:
            try:
                self._claims.record([released(claim) for claim in claims])
            except DatabaseTrouble:
                self._claims.unanswered.add(*(claim.token for claim in claims))
                raise
            back = f"Runs returned to the queue, with no attempt counted: {len(claims)}."
            why = one_line(f"{type(error).__name__}: {error}")
            raise _BrokerAway(f"{back} {why}") from error
        failpoints.reach("after-send")
        logger.info("%d runs of the queue %s were sent to Celery", len(claims), self._name)
