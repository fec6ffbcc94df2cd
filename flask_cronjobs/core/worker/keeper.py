"""The keeper: a thread beside the runner that owns the worker's bookkeeping connection.

In one statement it records the outcomes that have come in and claims what comes next. It renews
leases, and watches for cancels and deadlines. While one commit is under way the next outcomes come
in, so short runs travel together by themselves, and an outcome waits for one commit at most.

Each iteration of its loop has five steps: collect messages; record outcomes and claim; end batches
whose last run has ended; look after the held runs; interrupt handlers that should have ended.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from ...db import failpoints
from ...db.connection import is_locked
from ...errors import DatabaseTrouble
from ...log import Outage, logger
from ...types import Outcome
from .. import features, ticks
from ..app_state import Throttle
from ..claim import Answer
from ..leases import progress as write_progress
from ..outcome import write_output
from .admission import LONG, NOTHING, POLL, Admission, Kinds, Pace, Prefetch, Wanted
from .announcer import Announcer
from .claims import WorkerClaims
from .held_runs import HeldRuns
from .listener import Listener
from .monitor import RunMonitor
from .runner import Runner
from .stop_flag import StopFlag
from .work_options import KeeperConnection, WorkOptions

#: For how long SQLite's lock may be held before the log says so, in seconds: it gives the lock to
#: whom it likes, so that on a busy machine a writer waits for seconds.
LOCKED_FOR = 5.0
#: How often batches are looked at while their runs are at work, in seconds.
BATCHES_EVERY = 1.0
#: How often a further worker of a pool adds its counts to the row of the minute, in seconds.
COUNT_EVERY = 60.0
#: How long receivers of signals and the log may take for one outcome once all work is done, in
#: seconds, or a lease if that is longer. Then they are left.
ANNOUNCE_WITHIN = 60.0
#: The same where a handler that does not end has its process ended, in seconds.
LAST_WORDS_WITHIN = 5.0


class Keeper(threading.Thread):
    """Claims, records and watches for one runner. All of its state but `stop` is its thread's.

    :ivar flag: whether it is to stop.
    :ivar limit: after what it has ended, though nobody stopped it; see `Limits`.
    :param listener: says whether a NOTIFY wakes it.
    """

    def __init__(
        self,
        runner: Runner,
        options: WorkOptions,
        held_runs: HeldRuns,
        flag: StopFlag,
        listener: Listener | None,
        connection: KeeperConnection,
    ) -> None:
        super().__init__(name="cronjobs-keeper", daemon=True)
        self.counts: Counter[str] = Counter()
        self.flag: StopFlag = flag
        self.limit: str | None = None
        context = runner.context
        self._state = state = context.state
        self._options = options
        self._listener = listener
        self._runner = runner
        self._held_runs = held_runs
        self._monitor = RunMonitor(runner, flag, options.may_kill)
        self._announcer = Announcer(state.app, options.news, context.watchers)
        self._connection = connection
        self._pace = Pace(listener, asks_server=not connection.dialect.one_writer)
        self._claims = WorkerClaims(connection, state, options)
        self._kinds: Kinds | None = None if runner.loop is None else runner.loop.kinds
        self._admission: Admission = self._kinds or Prefetch()
        self._claimed = 0
        self._most = float("inf") if options.max_runs is None else options.max_runs
        self._has_asked = False
        self._nothing_comes = False
        self._trouble = Outage()
        self._iteration_began = 0.0
        self._batches = Throttle()
        self._counted = Throttle()
        self._added: Counter[str] = Counter()

    @property
    def listens(self) -> bool:
        """Whether a NOTIFY wakes it. For any thread."""
        return self._listener is not None and self._listener.listening

    def gives_back(self) -> bool:
        """Return whether runs are to be given back at the end of their step. For any thread."""
        over = not self._options.resident and time.monotonic() >= self._options.until
        return over or self.flag.at is not None or self._runner.context.abandoned

    def wake(self) -> None:
        """Look for runs at once. May be called from any thread."""
        self._held_runs.wake()

    def run(self) -> None:
        """Work until there is nothing more to do."""
        try:
            self._work()
            self.limit = None if self.flag.at is not None else self._reached_limit()
        except BaseException as error:
            self.flag.error = error
            self._runner.context.abandoned = True
            self._held_runs.take_back()
            self._monitor.give_up(error)
        finally:
            self._held_runs.close()
            self._announcer.close(max(ANNOUNCE_WITHIN, self._state.settings.lease))

    def _work(self) -> None:
        try:
            while not self._finished():
                self._collect()
                self._iteration_began = time.monotonic()
                self._stop_with_parent()
                for step in (self._refill, self._end_batches, self._look_after):
                    try:
                        step()
                    except DatabaseTrouble as trouble:
                        self._endure(trouble)
                self._interrupt()
            self._claims.lost.give_back(now=True)
            self._add_counts()
        finally:
            if self._options.books is None:
                self._connection.close()

    def _finished(self) -> bool:
        if not self._held_runs.empty or self._claims.lost.unknown:
            return False
        return self._nothing_comes or self._closed()

    def _closed(self) -> bool:
        """Whether nothing more is to be claimed."""
        return (
            self.flag.at is not None
            or self._runner.left
            # A tick on a busy host may have used its budget up before: it claims once all the same.
            or (self._has_asked and time.monotonic() >= self._options.until)
            or self._claimed >= self._most
            or self._reached_limit() is not None
        )

    def _reached_limit(self) -> str | None:
        limits = self._options.limits
        if limits is None:
            return None
        return limits.reached(self._claimed)

    def _collect(self) -> None:
        """Wait for a message, and take all that came."""
        left = self._runner.left
        # Before the next claim: how many runs that takes depends on how long these were.
        self._admission.note(self._held_runs.collect(self._pause()))
        if self._held_runs.outdated:
            self._give_up_outdated()
        if left:
            self._held_runs.release_all()
        if self._held_runs.woken:
            self._pace.note_wake()
        elif self._held_runs.outcomes:
            self._pace.look_again()  # An idle worker may claim what another may not.

    def _pause(self) -> float:
        """Return how long to wait for a message, in seconds."""
        if self._trouble.since is not None:
            return 0.2
        if self._wanted().limit > 0:
            return self._pace.settles_for
        if self._held_runs.held or self._announcer.behind:
            return min(self._monitor.pause(), POLL)
        return self._pace.next_look

    def _wanted(self) -> Wanted:
        """Return what to claim now."""
        if self._closed() or self._pace.rests or self._announcer.behind:
            return NOTHING
        held_runs = self._held_runs
        wanted = self._admission.wanted(held_runs, held_runs.idle, self._runner_is_long())
        return wanted._replace(limit=int(min(wanted.limit, self._most - self._claimed)))

    def _runner_is_long(self) -> bool:
        """Whether nothing that waits could begin for long."""
        at_work = self._runner.at_work
        return bool(at_work) and time.monotonic() - at_work[-1].since > LONG

    def _refill(self) -> None:
        """Record what came, and claim what is wanted."""
        wanted = self._wanted()
        self._write_reports()  # First: nothing is written of a run after its outcome.
        self._give_up_locked()
        if self._kinds is not None and not self._closed():
            self._kinds.look(self._held_runs.idle, self._claims.next_run)
        outcomes = self._held_runs.recordable
        if not outcomes and not self._claims.lost.unknown and wanted.limit <= 0:
            return
        if outcomes:
            self._write_outputs(outcomes)
            failpoints.reach("before-finalize")
        sent = time.monotonic()
        answer = self._claims.claim(
            outcomes,
            wanted.limit,
            idle=self._held_runs.idle,
            tasks=wanted.tasks,
            side_by_side=wanted.side_by_side,
            look_first=not self._held_runs.woken,
        )
        self._trouble.over("The database")
        self._pace.next_start = self._claims.starts.next_at
        if wanted.limit > 0:
            self._has_asked = True
            if self._kinds is not None:
                self._kinds.received(wanted, answer.claims)
        self._receive(outcomes, answer, sent)
        self._pace.note_answer(len(answer.claims), wanted.limit, self._claims.exhausted)
        # A claim of some tasks that finds nothing does not say that there is nothing.
        if wanted.tasks is not None and self._held_runs.idle:
            self._pace.look_again()

    def _write_reports(self) -> None:
        """Write the last progress that handlers reported."""
        at_work, requests, now = self._runner.at_work, self._held_runs.requests, time.monotonic()
        long = [working.run for working in at_work if now - working.since > LONG]
        for run in (*long, *(request.run for request in requests)):
            run.write_progress(partial(write_progress, self._connection))
        for request in requests:
            if request.heartbeat:
                self._monitor.beat_now()
        while requests:
            requests.pop().answered.put(None)

    def _write_outputs(self, outcomes: Sequence[Outcome]) -> None:
        """Write what handlers have said, before their outcomes: what is tried again is both."""
        for outcome in outcomes:
            if outcome.output is not None:
                write_output(self._connection, outcome)

    def _receive(self, outcomes: Sequence[Outcome], answer: Answer, sent: float) -> None:
        if outcomes:
            failpoints.reach("after-finalize")
        for outcome in outcomes:
            if outcome.id in answer.locked:
                self._held_runs.postpone(outcome)
                continue
            self._held_runs.remove(outcome)
            self._report(answer.stored(outcome), outcome.id in answer.recorded)
        self._announcer.send()
        if answer.claims:
            failpoints.reach("after-claim")
            self._monitor.arm_watchdog()
        self._held_runs.add(answer.claims, sent)
        if answer.claims and self._runner.loop is not None:
            self._runner.loop.door.admit()
        self._claimed += len(answer.claims)

    def _end_batches(self) -> None:
        """End the batches of the runs held, if they can be: when all is done, or each second."""
        batches = self._held_runs.batches
        done = self._held_runs.empty and (self._pace.exhausted or self._closed())
        if not batches or not (done or self._batches.ready()):
            return
        self._batches.block_for(BATCHES_EVERY)
        enqueued = features.ended(self._connection, batches)
        self._held_runs.keep_batches()
        if enqueued:
            self._pace.look_again()

    def _give_up_locked(self) -> None:
        """Give up outcomes whose rows stay locked beyond their leases, if the worker is to end."""
        if not self._options.resident or self._closed():
            for outcome in self._held_runs.overdue:
                self._held_runs.remove(outcome)
                self._report(outcome, recorded=False)

    def _give_up_outdated(self) -> None:
        """Give up outcomes of claims whose leases were lost, and whose runs are held anew.

        All that comes behind knows outcomes by the ids of their runs.
        """
        for outcome in list(self._held_runs.outcomes):
            if outcome.identity in self._held_runs.outdated:
                self._held_runs.remove(outcome)
                self._report(outcome, recorded=False)

    def _report(self, outcome: Outcome, recorded: bool) -> None:
        if outcome.begun:
            self.counts[outcome.kind if recorded else "lost"] += 1
        self._announcer.tell(outcome, recorded)

    def _endure(self, trouble: DatabaseTrouble) -> None:
        """Go on in spite of *trouble*, until the leases would end; then raise it.

        On SQLite, go on for as long as a handler works: it may hold the one lock itself, and then
        nobody can take its run back. Nobody can while another holds it, either, nor for a moment
        afterwards, in which we renew the leases.
        """
        too_long = self._trouble.seconds > self._state.settings.lease
        alone = self._connection.dialect.one_writer and bool(self._runner.at_work)
        if not trouble.transient or (too_long and not alone):
            raise trouble
        locked = is_locked(trouble)
        if alone and locked:
            self._held_runs.prolong(self._iteration_began)
        self._trouble.say("Trying again. %s", trouble, after=LOCKED_FOR if locked else 0.0)

    def _look_after(self) -> None:
        """Renew the leases of the held runs; give back those that could not begin for long."""
        if self._held_runs.waiting and (self.flag.at is not None or self._runner_is_long()):
            self._claimed -= self._held_runs.release_waiting()  # Attempts not counted.
        answered = self._renew()
        self._claims.lost.give_back()
        if self._claims.orders.pend:
            self._claims.orders.open()
        self._nothing_comes = self._looked_in_vain()
        if self._counted.ready():
            self._counted.block_for(COUNT_EVERY)
            self._add_counts()
        if answered and not self._held_runs.outcomes and not self._claims.lost.unknown:
            self._trouble.over("The database")

    def _add_counts(self) -> None:
        """Add the counts of a pool's further workers to the row that the first one has begun."""
        counts = self.counts - self._added
        if not counts or not self._options.adds_counts:
            return
        try:
            if ticks.add(self._connection, socket.gethostname(), counts):
                self._added += counts
        except DatabaseTrouble as trouble:
            logger.warning("The counts of this minute are incomplete. %s", trouble)

    def _interrupt(self) -> None:
        """Interrupt handlers that should have ended; end the process with one that goes on."""
        self._monitor.keep_watchdog(holding=bool(self._held_runs.held))
        self._monitor.interrupt_due()
        stuck = self._monitor.stuck()
        if stuck is not None:
            self._end_process(stuck)

    def _looked_in_vain(self) -> bool:
        """Return whether a tick holds no run, and has found no more to claim."""
        waits = self._options.resident or self._claims.starts.next_at < self._options.until
        return self._held_runs.empty and self._pace.exhausted and not waits

    def _renew(self) -> bool:
        """Renew leases; learn which were lost, and which runs are to be cancelled.

        :returns: whether the database was asked, and answered.
        """
        sent = time.monotonic()
        renewal = self._monitor.renew_or_watch(self._connection, self._held_runs.held)
        if renewal is None:
            return False
        if renewal.is_heartbeat:
            self._held_runs.renewed(renewal.held - renewal.locked, sent)
            if self._options.tick_id is not None:
                ticks.seen(self._connection, self._options.tick_id)
        for claim in self._held_runs.unfinished:
            if claim.id not in renewal.held:
                self._monitor.lose(claim)
            elif claim.id in renewal.cancelled:
                self._monitor.cancel(claim)
        return True

    def _stop_with_parent(self) -> None:
        """Stop if the parent of the process pool was killed: nobody could stop this worker then.

        The parent's id is from before the fork, so one that died at once is noticed too.
        """
        parent = self._options.parent
        if parent is not None and os.getppid() != parent and self.flag.at is None:
            logger.warning("The parent process %d has ended, so this worker stops", parent)
            self.flag.stop()

    def _end_process(self, stuck: Outcome) -> None:
        """Record what can be recorded, release the rest, and end this process with its handler."""
        self._held_runs.release_waiting()
        self._monitor.end_others(stuck)
        self._held_runs.collect(0.0)
        if stuck.identity not in {outcome.identity for outcome in self._held_runs.outcomes}:
            self._held_runs.outcomes.append(stuck)
        self._give_up_outdated()
        self._held_runs.release_all()
        try:
            outcomes = list(self._held_runs.outcomes)
            self._write_outputs(outcomes)
            self._receive(outcomes, self._claims.record(outcomes), 0.0)
        except Exception:
            logger.exception(
                "Could not record before the process is ended; runs come back by lease"
            )
        self._announcer.close(LAST_WORDS_WITHIN)
        self._monitor.end_process(stuck)
