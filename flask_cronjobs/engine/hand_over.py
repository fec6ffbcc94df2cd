"""Hand runs of chosen queues on to their executors, in a thread beside the runs here.

A run that is handed on is ``running``, with a token that says so (`types.handed_to`), until a
worker of the executor trades that. If none does within its lease, it is taken back like a run whose
worker was lost, but its attempt is not counted, since no handler has begun.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..db import failpoints
from ..db.connection import Bookkeeping
from ..errors import CronJobsError, DatabaseTrouble
from ..jobs.runs.leases import database_fingerprint, ended_since, in_brokers, refused
from ..jobs.runs.look import look_at_queue
from ..jobs.state import State, Throttle
from ..log import Outage, logger, worker_name
from ..registry.executor import Executor, executor_of
from ..text import one_line
from ..types import HANDED, HANDED_LEASES, NO_SUCH_TASK, Claim, HandedRun
from .worker.claims import WorkerClaims
from .worker.keeper import Keeper
from .worker.options import WorkOptions
from .worker.outcomes import released

#: In a broker may wait as many runs as ended within so many leases, and a few: each of them is to
#: begin before its own lease ends, or its message is stale when its turn comes.
PACE_LEASES = 2
FEW = 10
#: How often that is counted, in seconds.
COUNT_EVERY = 1.0
#: How many runs are sent at a time at most.
SENT_AT_ONCE = 100
#: How often a resident worker looks for runs to hand on, in seconds.
LOOK_EVERY = 0.25
#: The same where a look may soon find more.
LOOK_SOON = 0.05
#: How often a queue is looked at where runs are due and none can be claimed, in an app with strict
#: orders: another worker may be giving one its turn at that moment.
LOOKS = 3
#: How soon an executor is tried again that could not be reached, in seconds.
RETRY = 5.0
#: How long a worker that ends waits for an executor that does not answer, in seconds.
ANSWER_WITHIN = 10.0
#: How often it is said that nothing is handed on, in seconds. A tick says it at its end.
SAY_EVERY = 60.0
#: For how many seconds a statement is retried.
RETRY_FOR = 5.0

#: How a look at a queue ended: no run is due; soon one can be handed on, since the broker holds
#: enough or a turn is being given; the executor is away; some were handed on, and there may be
#: more.
Found: TypeAlias = Literal["nothing", "soon", "away", "more"]


class HandOver(threading.Thread):
    """Hands runs on until no more are due, or for as long as a resident worker works.

    :param keeper: of the worker beside which it does so.
    """

    def __init__(self, state: State, options: WorkOptions, keeper: Keeper) -> None:
        super().__init__(name="cronjobs-hand-over", daemon=True)
        self._state = state
        self._options = options
        self._keeper = keeper
        self._ended = threading.Event()
        self._has_looked = False
        self._left = float("inf") if options.max_runs is None else options.max_runs
        self._trouble = Outage()
        self._asked_at = time.monotonic()

    def end(self) -> None:
        """End the thread: of a tick when no more runs are due, or its budget is used up.

        At once if the worker did not do its work.
        """
        if self._options.resident or self._keeper.error is not None:
            self._ended.set()
        while self.is_alive() and not self._over() and self._patience() > 0:
            self.join(0.2)
        self._ended.set()
        self.join(self._patience())
        if self.is_alive():
            logger.warning(
                "A broker does not answer, so handing runs on was left. Those that were claimed "
                "for it come back by their leases."
            )

    def _over(self) -> bool:
        # Also if a tick's budget was used up before it came to its runs, it looks once.
        used_up = self._has_looked and time.monotonic() >= self._options.until
        return self._keeper.stopping or self._ended.is_set() or used_up

    def _patience(self) -> float:
        """Return for how many more seconds an executor may keep the thread waiting."""
        return max(0.0, self._asked_at + ANSWER_WITHIN - time.monotonic())

    def run(self) -> None:
        """Hand runs on until the end."""
        try:
            with Bookkeeping(self._state.engine, patience=RETRY_FOR) as books:
                self._hand_on_all(books)
        except CronJobsError as error:
            logger.error("Runs cannot be handed on. %s", error)
        except BaseException:
            logger.exception("Runs cannot be handed on")

    def _hand_on_all(self, books: Bookkeeping) -> None:
        queues = self._queues(books)
        while queues and not self._over():
            found = {self._try(queue) for queue in queues}
            self._has_looked = True
            if not self._options.resident and found <= {"nothing", "away"}:
                break
            if "more" not in found:
                self._ended.wait(LOOK_SOON if "soon" in found else LOOK_EVERY)
        for queue in queues:
            queue.say_full()

    def _queues(self, books: Bookkeeping) -> list[_Queue]:
        """Return the queues to hand on: those with an executor, among those of this worker."""
        names = self._state.settings.executors
        queues: list[_Queue] = []
        for name in names:
            if self._options.queues and name not in self._options.queues:
                continue
            try:
                executor = executor_of(self._state.app, names[name])
            except CronJobsError as error:
                logger.error("Runs of the queue %s wait. %s", name, error)
                continue
            queues.append(_Queue(self._state, self._options, name, executor, books, self._over))
        return queues

    def _try(self, queue: _Queue) -> Found:
        """Hand on runs of *queue*, unless its executor could not be reached a moment ago."""
        if not queue.retry.ready():
            return "away"
        self._asked_at = time.monotonic()
        try:
            found = queue.hand_on(int(min(self._left, SENT_AT_ONCE)))
            self._trouble.over("The database")
        except DatabaseTrouble as trouble:
            if not trouble.transient:
                raise
            self._trouble.say("Runs are handed on later. %s", trouble)
            found = "away"
        if found == "away":
            queue.retry.block_for(RETRY)
        self._left -= queue.last
        return found


class _Queue:
    """One queue, and the executor that executes its runs.

    :param over: returns whether nothing more is to be handed on.
    :ivar last: how many runs the last `hand_on` handed on.
    :ivar retry: ready when its executor, if it could not be reached, is tried again.
    """

    def __init__(
        self,
        state: State,
        options: WorkOptions,
        name: str,
        executor: Executor,
        books: Bookkeeping,
        over: Callable[[], bool],
    ) -> None:
        self.name = name
        self._over = over
        self.last = 0
        self.retry: Throttle = Throttle()
        self._executor = executor
        self._until = options.until
        self._settings = state.settings
        self._fitting = 0
        self._counted = Throttle()
        self._books = books
        own = options._replace(
            worker=f"{HANDED}{executor.name}:{database_fingerprint(books)}:{worker_name()}",
            queues=(name,),
            elsewhere=frozenset(),
            lease=HANDED_LEASES * state.settings.lease,
        )
        self._claims = WorkerClaims(books, state, own)
        self._tasks = frozenset(state.registry.tasks)
        self._refused_tasks = _RefusedTasks(self._books, name)
        self._empty_looks = 0
        self._away = Outage()
        self._full: tuple[int, int] | None = None
        self._quiet_since = time.monotonic()
        self._handed_on = False

    def say_full(self) -> None:
        """Say so if nothing was handed on since this was called last: enough waits already."""
        if self._full is not None and not self._handed_on:
            handed, in_broker = self._full
            # More messages than runs: they are of runs that were taken back, or of another app.
            logger.log(
                logging.INFO if handed >= self._fitting else logging.WARNING,
                "No run of the queue %s was handed on for %.0f s: %d wait in %s by the table, and "
                "its broker holds %d messages; %d fit (CRONJOBS_HANDED_LIMIT is %d). If that stays "
                "so, its workers do not work, or are too few: ask flask jobs admin doctor.",
                *(self.name, time.monotonic() - self._quiet_since, handed),
                *(self._executor.name, in_broker, self._fitting, self._settings.handed_limit),
            )
        self._full, self._handed_on, self._quiet_since = None, False, time.monotonic()

    def hand_on(self, most: int) -> Found:
        """Hand on up to *most* runs, and note how many in `last`.

        :raises DatabaseTrouble: the database could not be used. What was claimed comes back.
        """
        self.last = 0
        if time.monotonic() - self._quiet_since > SAY_EVERY:
            self.say_full()
        if most <= 0:
            return "nothing"
        self._claims.starts.open(idle=True)
        comes = self._claims.starts.next_at < self._until
        if not look_at_queue(self._books).may_find:
            return "soon" if comes else "nothing"
        try:
            in_broker = self._executor.waiting(self.name)
        except Exception as error:
            self._say_away(error)
            return "away"
        if self._over():  # The answer came when the worker had ended, perhaps long ago.
            return "nothing"
        handed = in_brokers(self._books, self.name)
        room = self._fits() - max(in_broker, handed)
        if room <= 0:
            self._full = handed, in_broker
            return "soon"
        # Several retries at once, too: each is executed in a process of its own.
        tasks = tuple(self._tasks - self._refused_tasks.held())
        claims = self._claims.claim(
            [], min(most, room), idle=True, tasks=tasks, side_by_side=True
        ).claims
        if claims:
            self._empty_looks = 0
            send, back = self._refused_tasks.sift(claims)
            if back:
                self._claims.record([released(each) for each in back])
            return "more" if self._send(send) else "away"
        self._empty_looks += 1
        waits = bool(self._claims.turns.ordered) and self._empty_looks < LOOKS
        return "soon" if waits or comes or self._refused_tasks.pending else "nothing"

    def _fits(self) -> int:
        """Return how many runs may wait in the broker."""
        if self._counted.ready():
            self._counted.block_for(COUNT_EVERY)
            ended = ended_since(self._books, self.name, PACE_LEASES * self._settings.lease)
            self._fitting = min(self._settings.handed_limit, FEW + ended)
        return self._fitting

    def _send(self, claims: Sequence[Claim]) -> bool:
        """Send *claims* to the executor; if that fails, give them back and return False."""
        runs = [HandedRun(each.id, each.token, each.job_type, self.name) for each in claims]
        failpoints.reach("before-send")
        try:
            self._executor.send(runs)
        except Exception as error:
            self._claims.record([released(each) for each in claims])
            self._say_away(error, len(claims))
            return False
        failpoints.reach("after-send")
        self.last = len(runs)
        self._away.over(self._executor.name)
        self._handed_on = True
        logger.info("%s: %d runs of the queue %s", self._executor.name, self.last, self.name)
        return True

    def _say_away(self, error: Exception, given_back: int = 0) -> None:
        back = f"Runs that went back, no attempt counted: {given_back}. " if given_back else ""
        what = one_line(f"{type(error).__name__}: {error}")
        self._away.say(
            "%s cannot be reached, so the queue %s waits. %s%s",
            *(self._executor.name, self.name, back, what),
        )


#: For how long the runs of a task are held back after a worker has refused one, in seconds. Each
#: refusal doubles it, up to the longest.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
#: For how long a task is trusted of which a run has begun, in seconds.
TRUST = 5.0


@dataclass
class _Probe:
    """The one run of a task that was sent to find out whether the workers have it by now.

    :ivar state: what is known of it, as of `refused` in `jobs.runs.leases`.
    :ivar until: the end of the pause, or of the trust, by `time.monotonic`.
    """

    run_id: int
    pause: float
    state: str = "waits"
    until: float = 0.0


class _RefusedTasks:
    """What the sender of one queue knows of tasks that workers have refused.

    The row of a refused run says so. If such a run is claimed again, it alone is sent, and the
    others of its task are held back: until it has begun, or for a pause if it is refused again.
    """

    def __init__(self, books: Bookkeeping, queue: str) -> None:
        self._books = books
        self._queue = queue
        self._probes: dict[str, _Probe] = {}

    @property
    def pending(self) -> bool:
        """Whether it is not known yet what becomes of a run that was sent."""
        return any(each.state == "waits" for each in self._probes.values())

    def held(self) -> set[str]:
        """Find out what became of the runs that were sent; return which tasks to hold back."""
        now = time.monotonic()
        for task, probe in self._probes.items():
            if probe.state == "waits":
                probe.state, error = refused(self._books, probe.run_id)
                self._note(task, probe, error)
        return {
            task
            for task, probe in self._probes.items()
            if probe.state == "waits" or (probe.state == "refused" and now < probe.until)
        }

    def sift(self, claims: Sequence[Claim]) -> tuple[list[Claim], list[Claim]]:
        """Return which of *claims* to send, and which to give back."""
        tried = {
            claim.job_type: claim.id
            for claim in reversed(claims)
            if claim.error_type == NO_SUCH_TASK and not self._is_trusted(claim.job_type)
        }
        for task, run_id in tried.items():
            before = self._probes.get(task)
            self._probes[task] = _Probe(run_id, before.pause if before else FIRST_PAUSE)
        send = [claim for claim in claims if tried.get(claim.job_type, claim.id) == claim.id]
        return send, [claim for claim in claims if claim not in send]

    def _is_trusted(self, task: str) -> bool:
        probe = self._probes.get(task)
        return probe is not None and probe.state == "begun" and time.monotonic() < probe.until

    def _note(self, task: str, probe: _Probe, error: str | None) -> None:
        if probe.state == "begun":
            probe.pause, probe.until = FIRST_PAUSE, time.monotonic() + TRUST
        elif probe.state == "refused":
            probe.until = time.monotonic() + probe.pause
            logger.warning(
                "The queue %s holds runs of the task %s back for %g s. %s",
                *(self._queue, task, probe.pause, error),
            )
            probe.pause = min(2 * probe.pause, LONGEST_PAUSE)
