"""The keeper: a thread beside the runner's, which owns the worker's bookkeeping connection.

In one transaction it records the outcomes that have come in and claims the next runs; on
PostgreSQL, if one of these outcomes is of a run with a concurrency key, they are committed first.
It renews leases, and watches for cancels and deadlines. While one commit is under way, the next
outcomes come in, so short runs are recorded together, and an outcome waits for one commit at most.

Each iteration of its loop has four parts: collect messages; decide; take the steps that are due,
which send statements; interrupt handlers that should have ended.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ...db import failpoints
from ...db.connection import Bookkeeping, is_locked
from ...errors import DatabaseTrouble
from ...log import Outage, logger
from ...types import Outcome
from .. import features, leases, ticks
from ..app_state import Throttle
from ..claim import Answer
from ..outcome import write_output
from .admission import LONG_SECONDS, NOTHING, POLL_SECONDS, Admission, Kinds, Pace, Prefetch, Wanted
from .announcer import Announcer
from .claims import LATE_SECONDS, WorkerClaims
from .held_runs import HeldRuns
from .listener import Listener
from .monitor import REARM_SECONDS, RunMonitor
from .process_signals import StopFlag
from .runner import Runner
from .work_options import WorkOptions

#: Seconds for which SQLite's lock may be held before that is logged. The lock is not fair, so a
#: writer may wait for seconds on a busy machine.
LOGGED_LOCK_SECONDS = 5.0
#: Seconds after which the keeper tries again after trouble with the database.
TROUBLE_SECONDS = 0.2
#: Seconds between two looks at the runs once the worker must stop.
STOPPING_SECONDS = 0.05
#: Heartbeats per lease, or per `CRONJOBS_HEALTH_TICK_AGE` if that is shorter.
BEATS_PER_LEASE = 4
#: Seconds after which a handler is watched for cancels and a lost lease, and between two checks.
WATCH_SECONDS = 1.0
#: Seconds between two checks of batches while their runs are running.
BATCHES_SECONDS = 1.0
#: Seconds after which each worker of a pool, except the first, adds its counts to the tick's row.
COUNT_SECONDS = 60.0
#: Seconds that the log and the receivers of signals may take for one outcome once all runs have
#: ended, unless a lease is longer. After that, the worker ends without them.
ANNOUNCE_SECONDS = 60.0
#: Seconds that the log and the receivers get if the process is ended with a stuck handler.
LAST_WORDS_SECONDS = 5.0
_NOW, _NEVER = float("-inf"), float("inf")


class Decision(NamedTuple):
    """What the keeper will do in one iteration.

    :ivar now: the time of the decision, by `time.monotonic`.
    :ivar outcomes: the outcomes to record.
    :ivar wanted: the runs to claim.
    :ivar idle: whether each held run has an outcome.
    :ivar is_long: whether the current run has run so long that waiting claims are released.
    :ivar closed: whether no more runs may be claimed.
    :ivar is_over: whether no run is held and no more will come.
    :ivar wait: seconds to wait for messages afterwards.
    """

    now: float
    outcomes: Sequence[Outcome]
    wanted: Wanted
    idle: bool
    is_long: bool
    closed: bool
    is_over: bool
    wait: float


@dataclass(eq=False)
class Duty:
    """A periodic duty of the keeper.

    :ivar do: fulfils the duty, and returns the time when it is due again.
    :ivar due: the time when it is due, by `time.monotonic`.
    """

    do: Callable[[], float]
    due: float

    def fulfil(self) -> None:
        """Fulfil the duty now, and note when it is due again."""
        self.due = self.do()


class Keeper(threading.Thread):
    """Claims, records and watches for one runner.

    Until it has ended, other threads may use only `flag`, `listens`, `gives_back` and `wake`, and
    copy `counts`.

    :param listener: tells whether NOTIFY wakes it.
    :ivar counts: the number of attempts by outcome.
    :ivar flag: tells whether it must stop.
    :ivar limit: the limit at which it ended without being stopped; see `Limits`.
    """

    def __init__(
        self,
        runner: Runner,
        options: WorkOptions,
        held_runs: HeldRuns,
        flag: StopFlag,
        listener: Listener | None,
        connection: Bookkeeping,
    ) -> None:
        super().__init__(name="cronjobs-keeper", daemon=True)
        self.counts: Counter[str] = Counter()
        self.flag: StopFlag = flag
        self.limit: str | None = None
        context = runner.context
        self._settings = settings = context.state.settings
        self._options = options
        self._listener = listener
        self._runner = runner
        self._held_runs = held_runs
        self._monitor = RunMonitor(runner, flag, options.own_process)
        self._announcer = Announcer(context.state.app, options.news, context.watchers)
        self._connection = connection
        self._pace = Pace(listener, asks_server=not connection.dialect.one_writer)
        self._claims = WorkerClaims(connection, context.state, options)
        self._kinds: Kinds | None = None if runner.loop is None else runner.loop.kinds
        self._admission: Admission = self._kinds or Prefetch()
        self._claimed = 0
        most = options.max_runs if options.limits is None else options.limits.runs
        self._max_runs = float("inf") if most is None else most
        self._has_asked = False
        self._trouble = Outage()
        self._batches = Throttle()
        self._added: Counter[str] = Counter()
        # Heartbeats renew the leases, and show that the tick is alive.
        self._heartbeat_seconds = min(settings.lease, settings.health_tick_age) / BEATS_PER_LEASE
        now = time.monotonic()
        self._renew_duty = Duty(self._renew, now + self._heartbeat_seconds)
        self._watch_duty = Duty(self._watch, now + WATCH_SECONDS)
        self._give_back_duty = Duty(self._give_back_late, _NEVER)
        self._watchdog_duty = Duty(self._keep_watchdog, _NEVER)
        self._duties = [self._renew_duty, self._watch_duty]
        self._duties += [self._give_back_duty, self._watchdog_duty]
        if options.adds_counts:
            self._duties.append(Duty(self._add_counts, now + COUNT_SECONDS))
        if options.parent is not None:
            self._duties.append(Duty(self._stop_with_parent, _NOW))

    @property
    def listens(self) -> bool:
        """Whether a NOTIFY wakes it. Any thread may read this."""
        return self._listener is not None and self._listener.listening

    def gives_back(self) -> bool:
        """Return whether runs must be given back after their current step.

        Any thread may call this.
        """
        over = not self._options.resident and time.monotonic() >= self._options.until
        return over or self.flag.at is not None or self._runner.context.keeper_died

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
            self._runner.context.keeper_died = True
            self._held_runs.take_back()
            self._monitor.end_without_keeper(error)
        finally:
            self._held_runs.close()
            self._announcer.close(max(ANNOUNCE_SECONDS, self._settings.lease))

    def _work(self) -> None:
        try:
            wait = 0.0
            while True:
                self._collect(wait)
                decision = self._decide()
                if decision.is_over:
                    break
                wait = self._act(decision)
            try:
                self._claims.unanswered.give_back(now=True)
                if self._held_runs.batches:
                    features.ended(self._connection, self._held_runs.batches)
            except DatabaseTrouble as trouble:
                if not trouble.transient:
                    raise
                logger.warning("The worker ends, and leaves the rest to the next tick: %s", trouble)
            if self._options.adds_counts:
                self._add_counts()
        finally:
            if self._options.books is None:
                self._connection.close()

    def _collect(self, wait: float) -> None:
        """Wait for a message, and take all that came."""
        has_left = self._runner.left
        outcomes = self._held_runs.collect(wait)
        if outcomes:  # Their durations decide how many runs the next claim takes.
            self._admission.note(outcomes)
        if self._held_runs.outdated:
            self._drop_outdated()
        if has_left:
            self._held_runs.release_all()
        if self._held_runs.woken:
            self._pace.note_wake()
        elif outcomes:
            # If the worker is idle now, a claim may also take retries, so it may find more runs.
            self._pace.exhausted = False

    def _decide(self) -> Decision:
        """Return what to do now."""
        now, held_runs, pace = time.monotonic(), self._held_runs, self._pace
        outcomes, idle, closed = held_runs.recordable(now), held_runs.idle, self._is_closed(now)
        at_work, behind = self._runner.at_work, self._announcer.behind
        is_long = bool(at_work) and now - at_work[-1].since > LONG_SECONDS
        wanted = NOTHING
        if not (closed or behind or (pace.exhausted and now < pace.look_at)):
            wanted = self._admission.wanted(held_runs, idle, is_long)
            if wanted.limit > (remaining := self._max_runs - self._claimed):
                wanted = wanted._replace(limit=int(remaining))
        holds = bool(held_runs.claims or held_runs.outcomes)
        if outcomes:
            wait = 0.0
        elif wanted.limit > 0:
            wait = max(0.0, pace.settled_at - now)
            wanted = NOTHING if wait else wanted
        elif self.flag.at is not None:
            wait = STOPPING_SECONDS
        elif holds or behind or closed:
            wait = POLL_SECONDS
        else:
            wait = max(0.0, pace.look_at - now)
        stays = self._options.resident or self._claims.next_start < self._options.until
        in_vain = pace.exhausted and not stays
        is_over = not holds and (closed or in_vain) and not self._claims.unanswered.must_check
        return Decision(now, outcomes, wanted, idle, is_long, closed, is_over, wait)

    def _is_closed(self, now: float) -> bool:
        """Return whether no more runs may be claimed."""
        return (
            self.flag.at is not None
            or self._runner.left
            # On a busy host, a tick may use up its budget before its first claim. Then it still
            # claims once.
            or (self._has_asked and now >= self._options.until)
            or self._claimed >= self._max_runs
            or self._reached_limit() is not None
        )

    def _reached_limit(self) -> str | None:
        limits = self._options.limits
        return None if limits is None else limits.reached(self._claimed)

    def _act(self, decision: Decision) -> float:
        """Take the steps that are due; return the seconds to wait for messages afterwards."""
        for step in self._steps(decision):
            try:
                step()
            except DatabaseTrouble as trouble:
                self._endure(trouble, decision.now)
        if self.flag.at is not None or self._runner.context.interrupter.requested:
            self._monitor.interrupt_due()
        if self._runner.at_work and (stuck := self._monitor.stuck()) is not None:
            self._end_process(stuck)
        return decision.wait if self._trouble.since is None else TROUBLE_SECONDS

    def _steps(self, decision: Decision) -> Iterator[Callable[[], object]]:
        """Yield the steps that are due, each after the one before has been taken."""
        held_runs = self._held_runs
        if (decision.is_long or self.flag.at is not None) and held_runs.waiting:
            self._claimed -= held_runs.release_waiting()  # These were not attempted.
        if held_runs.postponed and (decision.closed or not self._options.resident):
            yield self._drop_blocked
        if self._kinds is not None and not decision.closed:
            yield partial(self._kinds.look, decision.idle, self._claims.next_run)
        if held_runs.requests or decision.is_long:
            yield self._write_reports
        # Reports come first, since nothing is written about a run after its outcome.
        sends = decision.outcomes or decision.wanted.limit > 0 or self._claims.unanswered.must_check
        if sends and not held_runs.requests:
            yield partial(self._refill, decision)
        if held_runs.batches:
            yield partial(self._end_batches, decision)
        if self._claims.openings.unopened:
            yield self._claims.openings.open
        for duty in self._duties:
            if duty.due <= decision.now:
                yield duty.fulfil

    def _refill(self, decision: Decision) -> None:
        """Record the outcomes that came, and claim the wanted runs."""
        outcomes, wanted = decision.outcomes, decision.wanted
        if outcomes:
            self._write_outputs(outcomes)
            failpoints.reach("before-finalize")
        sent = time.monotonic()
        answer = self._claims.claim(
            outcomes,
            wanted.limit,
            idle=decision.idle,
            tasks=wanted.tasks,
            side_by_side=wanted.side_by_side,
            look_first=not self._held_runs.woken,
        )
        if self._trouble.since is not None:
            self._trouble.over("The database")
        if wanted.limit > 0:
            self._has_asked = True
            if self._kinds is not None:
                self._kinds.received(wanted, answer.claims)
        self._receive(outcomes, answer, sent)
        self._pace.note_answer(answer, wanted.limit, self._claims.next_start)
        # If a claim of some tasks finds nothing, other tasks may still have runs.
        if wanted.tasks is not None and self._held_runs.idle:
            self._pace.exhausted = False

    def _write_reports(self) -> None:
        """Write the last progress that handlers reported."""
        at_work, requests, now = self._runner.at_work, self._held_runs.requests, time.monotonic()
        long_runs = [working.run for working in at_work if now - working.since > LONG_SECONDS]
        for run in (*long_runs, *(request.run for request in requests)):
            run.write_progress(partial(leases.progress, self._connection))
        if any(request.heartbeat for request in requests):
            self._renew_duty.due = _NOW
        while requests:
            requests.pop().answered.put(None)

    def _write_outputs(self, outcomes: Sequence[Outcome]) -> None:
        """Write the output of handlers before their outcomes; if this fails, both are retried."""
        for outcome in outcomes:
            if outcome.output is not None:
                write_output(self._connection, outcome)

    def _receive(self, outcomes: Sequence[Outcome], answer: Answer, sent: float) -> None:
        if outcomes:
            failpoints.reach("after-finalize")
        for outcome in outcomes:
            if outcome.id in answer.unrecorded:
                self._held_runs.postpone(outcome)
                continue
            self._held_runs.remove(outcome)
            self._report(answer.stored(outcome), outcome.id in answer.recorded)
        self._announcer.send()
        if answer.claims:
            failpoints.reach("after-claim")
            self._monitor.arm_watchdog()
            self._watchdog_duty.due = min(self._watchdog_duty.due, time.monotonic() + REARM_SECONDS)
        self._held_runs.add(answer.claims, sent)
        if answer.claims and self._runner.loop is not None:
            self._runner.loop.admit()
        self._claimed += len(answer.claims)

    def _end_batches(self, decision: Decision) -> None:
        """End those batches of held runs that can end: once a second, and when no run is left."""
        held_runs = self._held_runs
        holds = held_runs.claims or held_runs.outcomes
        done = not holds and (self._pace.exhausted or decision.closed)
        if not (done or self._batches.ready()):
            return
        self._batches.block_for(BATCHES_SECONDS)
        enqueued = features.ended(self._connection, held_runs.batches)
        held_runs.keep_batches()
        if enqueued:
            self._pace.exhausted = False

    def _drop_blocked(self) -> None:
        """Drop outcomes whose rows stay blocked beyond their leases, since the worker ends soon."""
        for outcome in self._held_runs.overdue:
            self._held_runs.remove(outcome)
            self._report(outcome, recorded=False)

    def _drop_outdated(self) -> None:
        """Drop outcomes of claims whose leases were lost, and whose runs are held anew.

        The later steps identify outcomes by the ids of their runs alone.
        """
        for outcome in list(self._held_runs.outcomes):
            if outcome.identity in self._held_runs.outdated:
                self._held_runs.remove(outcome)
                self._report(outcome, recorded=False)

    def _report(self, outcome: Outcome, recorded: bool) -> None:
        # An interruption may have come too late to be raised.
        self._runner.context.interrupter.requested.pop(outcome.identity, None)
        if not outcome.unbegun:
            self.counts[outcome.kind if recorded else "lost"] += 1
        self._announcer.report(outcome, recorded)

    def _endure(self, trouble: DatabaseTrouble, began: float) -> None:
        """Continue in spite of *trouble* until the leases would end, then raise it.

        On SQLite, continue while a handler runs. While the handler or another process holds the
        single lock, no worker can reclaim the run. Once the lock is free, other workers leave us a
        moment to renew the leases.

        :param began: when the keeper decided to take the step that failed.
        """
        self._give_back_duty.due = _NOW
        too_long = self._trouble.seconds > self._settings.lease
        is_protected = self._connection.dialect.one_writer and bool(self._runner.at_work)
        if not trouble.transient or (too_long and not is_protected):
            raise trouble
        locked = is_locked(trouble)
        if is_protected and locked:
            self._held_runs.prolong(began)
        self._trouble.say("Trying again. %s", trouble, after=LOGGED_LOCK_SECONDS if locked else 0.0)

    def _renew(self) -> float:
        """Renew the leases of the held runs; return when to do so again."""
        now, claims = time.monotonic(), self._held_runs.claims
        if not claims:
            return now + self._heartbeat_seconds
        renewal = leases.renew(self._connection, claims.values(), self._settings.lease)
        self._held_runs.renewed(renewal.held - renewal.blocked, now)
        if self._options.tick_id is not None:
            ticks.seen(self._connection, self._options.tick_id)
        self._heed(renewal)
        self._watch_duty.due = now + WATCH_SECONDS
        # If rows were blocked, try again soon.
        return now + (
            min(WATCH_SECONDS, self._heartbeat_seconds)
            if renewal.blocked
            else self._heartbeat_seconds
        )

    def _watch(self) -> float:
        """Check cancels and leases if a handler has run for long; return when to repeat."""
        now, claims = time.monotonic(), self._held_runs.claims
        earliest = min((working.since for working in self._runner.at_work), default=now)
        if not claims or now - earliest < WATCH_SECONDS:
            return earliest + WATCH_SECONDS
        self._heed(leases.watch(self._connection, claims.values()))
        return now + WATCH_SECONDS

    def _heed(self, renewal: leases.Renewal) -> None:
        """Interrupt the handlers of runs whose lease was lost or that were cancelled.

        If such a handler has not begun, it is interrupted when it begins.
        """
        for claim in self._held_runs.unfinished:
            if claim.id not in renewal.held:
                self._monitor.lose(claim)
            elif claim.id in renewal.cancelled:
                self._monitor.cancel(claim)
        if not self._held_runs.outcomes and not self._claims.unanswered.must_check:
            self._trouble.over("The database")

    def _give_back_late(self) -> float:
        """Give back what was claimed by statements whose answers were lost."""
        unanswered = self._claims.unanswered
        unanswered.give_back()
        return time.monotonic() + LATE_SECONDS if unanswered.has_tokens else _NEVER

    def _keep_watchdog(self) -> float:
        holds = bool(self._held_runs.claims)
        self._monitor.keep_watchdog(holding=holds)
        return time.monotonic() + REARM_SECONDS if holds or self._runner.at_work else _NEVER

    def _add_counts(self) -> float:
        """Add this worker's counts to the tick's row, which the pool's first worker inserted."""
        counts = self.counts - self._added
        try:
            if counts and ticks.add(self._connection, socket.gethostname(), counts):
                self._added += counts
        except DatabaseTrouble as trouble:
            if trouble.unknown:  # Missing counts are better than counts that are added twice.
                self._added += counts
            logger.warning("The counts of this minute are incomplete. %s", trouble)
        return time.monotonic() + COUNT_SECONDS

    def _stop_with_parent(self) -> float:
        """Stop if the pool's parent process has ended, since it can no longer stop this worker.

        The parent's id was read before the fork, so a parent that died at once is noticed, too.
        """
        parent = self._options.parent
        if os.getppid() != parent and self.flag.at is None:
            logger.warning("The parent process %d has ended, so this worker stops", parent)
            self.flag.stop()
        return _NOW

    def _end_process(self, stuck: Outcome) -> None:
        """Record what can be recorded, release the rest, and end this process with its handler."""
        self._held_runs.release_waiting()
        self._monitor.end_others(stuck)
        self._held_runs.collect(0.0)
        if stuck.identity not in {outcome.identity for outcome in self._held_runs.outcomes}:
            self._held_runs.outcomes.append(stuck)
        self._drop_outdated()
        self._held_runs.release_all()
        try:
            outcomes = list(self._held_runs.outcomes)
            self._write_outputs(outcomes)
            self._receive(outcomes, self._claims.record(outcomes), 0.0)
        except Exception:
            logger.exception(
                "Could not record outcomes before ending the process; its runs are reclaimed when "
                "their leases end"
            )
        self._announcer.close(LAST_WORDS_SECONDS)
        self._monitor.end_process(stuck)
