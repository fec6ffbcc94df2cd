"""``flask jobs work``: a process that keeps running, in place of ticks from crontab.

Every minute, one worker of each process pool also does the work that a tick does before and after
performing runs. It does this in a separate thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from .. import signals
from ..db.connection import Bookkeeping
from ..db.notify import wake_all
from ..errors import DatabaseTrouble
from ..log import Outage, logger
from ..types import Outcome, TickReport
from . import features, ticks
from .app_state import State
from .background import BackgroundThread
from .processes import run_workers
from .tick import (
    OpenTick,
    TickOptions,
    begin_tick,
    finish_tick,
    housekeeping,
    number_of_workers,
    prune_sometimes,
    worker_options,
)
from .worker.keeper import Keeper
from .worker.work_options import Limits, WorkOptions

#: How often minute work is done, in seconds: once in each minute of the database's clock.
MINUTE = 60.0
#: Seconds after the full minute at which minute work begins: the estimate of the database's clock
#: is not exact, and before the full minute, the minute's slots are not due.
AFTER_MINUTE_SECONDS = 0.25
#: How soon minute work that failed is tried again, in seconds.
RETRY_SECONDS = 2.0
#: Seconds between two checks whether the worker listens for NOTIFY.
CHECK_SECONDS = 0.5
#: Seconds for which a statement of minute work is retried before the work begins again.
STATEMENT_RETRY_SECONDS = 2.0
#: How long a worker that stops waits for its minute work, in seconds.
END_SECONDS = 3.0
#: Seconds that it then waits for receivers of the signals about its last minute.
RECEIVER_SECONDS = 5.0


def serve(
    state: State, options: TickOptions, limits: Limits | None = None, parent: int | None = None
) -> None:
    """Work until SIGTERM or SIGINT.

    :param limits: the limits after which each worker is replaced by a fresh one.
    :param parent: the id of the parent process, if this process must stop when that one has ended.
    :raises TablesMissing: the job tables do not exist.
    :raises DatabaseTrouble: the database was unavailable for longer than a lease.
    """
    single = worker_options(state, options)
    beside = (ResidentMinutes, *single.beside)
    resident = single._replace(resident=True, beside=beside, limits=limits, parent=parent)
    run_workers(state, number_of_workers(state, options), resident)


class ResidentMinutes(threading.Thread):
    """The minute work of a process pool, or of a single worker: one row a minute in ``job_ticks``.

    It has its own connection and its own thread, `cronjobs-minutes`: neither a slow receiver of a
    signal nor a lock on a row holds up the keeper, which renews leases.

    :ivar _opened: the row of the current minute, until that is finished.
    :ivar _done: whether the work of that minute is done. Until then it is retried with the same
        row.
    :ivar _listening: whether the row says that the worker listens for NOTIFY.
    :ivar _seen: whether the row already shows that the minute's work is done. It is finished only
        when the next minute begins.
    """

    def __init__(self, state: State, options: WorkOptions, keeper: Keeper) -> None:
        super().__init__(name="cronjobs-minutes", daemon=True)
        self._state = state
        self._options = options
        self._keeper = keeper
        self._books = Bookkeeping(state.engine, patience=STATEMENT_RETRY_SECONDS)
        self._sender = _sender(state)
        self._stopped = threading.Event()
        self._opened: OpenTick | None = None
        self._done = False
        self._listening = False
        self._seen = False
        self._counts: Counter[str] = Counter()
        self._recorded: Counter[str] = Counter()
        self._trouble = Outage()

    def end(self) -> None:
        """Finish the last minute and end the thread. The keeper has already ended."""
        self._stopped.set()
        self.join(END_SECONDS)
        if self.is_alive():
            logger.warning("The work of the last minute did not end in time, and was abandoned")
        self._sender.close(RECEIVER_SECONDS)

    def run(self) -> None:
        """Do the work of each minute until the end, and finish the last one."""
        try:
            with self._books:
                while not self._stopped.is_set():
                    began = time.time()
                    self._rest(self._left(began) if self._tries(self._work) else RETRY_SECONDS)
                if self._keeper.flag.error is None:
                    self._tries(self._finish)
        except BaseException as error:
            self._keeper.flag.fail(error)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (seconds_left := until - time.monotonic()) > 0:
            if self._stopped.wait(min(seconds_left, CHECK_SECONDS)):
                return
            self._tries(self._update_row)

    def _tries(self, step: Callable[[], None]) -> bool:
        """Call *step*; return False if the database had trouble that may pass.

        :raises DatabaseTrouble: the trouble will not pass.
        """
        try:
            step()
        except DatabaseTrouble as trouble:
            if not trouble.transient:
                raise
            self._trouble.say("This minute's work is being retried. %s", trouble)
            return False
        return True

    def _work(self) -> None:
        """Finish the last minute, begin the next one, and do its work, unless asked to stop."""
        self._finish()
        tick = self._opened = self._opened or self._begin()
        news, stopped = self._options.news, self._stopped.is_set
        steps = housekeeping(
            self._state, self._books, tick.row, news, self._counts, self._sender.put
        )
        while not stopped() and (ready := next(steps, None)) is not None:
            if ready:
                self._wake()
        if not stopped():
            pruned = prune_sometimes(self._state, self._books, tick.row, stopped)
            self._counts["pruned"] += pruned
        self._done = True
        self._trouble.over("The database")

    def _left(self, began: float) -> float:
        """Return the seconds until the first full minute after *began*.

        Slots are due at full minutes, by the database's clock.
        """
        offset = 0.0 if self._opened is None else self._opened.clock_offset
        elapsed = time.time() - began
        seconds_left = MINUTE - (began - offset) % MINUTE + AFTER_MINUTE_SECONDS - elapsed
        # The host's clock may have been set back in the meantime.
        return min(seconds_left, MINUTE + AFTER_MINUTE_SECONDS)

    def _update_row(self) -> None:
        """Record in the row that its work is done, and whether the worker listens for NOTIFY.

        Otherwise, health checks would see the work only when the minute has passed, and no enqueue
        would send a NOTIFY.
        """
        tick, listening = self._opened, self._keeper.listens
        if tick is None:
            return
        age = time.monotonic() - tick.started
        if self._done and not self._seen and age > 2 * ticks.SEEN_AFTER_SECONDS:
            ticks.seen(self._books, tick.row.id)
            self._seen = True
        if listening != self._listening:
            ticks.listen(self._books, tick.row.id, listening)
            self._listening = listening

    def _finish(self) -> None:
        """Finish the row, if its work is done."""
        if self._opened is None or not self._done:
            return
        # A copy is made in one step. Otherwise, the keeper might add a kind during the subtraction.
        attempts = self._keeper.counts.copy() - self._recorded
        report = finish_tick(self._books, self._opened, self._counts + attempts)
        self._recorded += attempts
        self._opened, self._done, self._seen = None, False, False
        self._sender.put(report)

    def _begin(self) -> OpenTick:
        self._listening = self._keeper.listens
        self._counts.clear()
        return begin_tick(
            *(self._state, self._books, self._options.queues, True, self._listening),
            started_by=self._options.started_by,
        )

    def _wake(self) -> None:
        """Let workers look for runs now: listening workers seldom poll."""
        self._keeper.wake()
        if self._keeper.listens:
            wake_all(self._books)


def _sender(state: State) -> BackgroundThread[TickReport | list[Outcome]]:
    """Return the thread that sends ``tick_finished`` and pings, for each minute and its outcomes.

    It is a separate thread, so that a monitor that hangs or a slow receiver delays no minute.
    """

    def send(report: TickReport | list[Outcome]) -> None:
        if isinstance(report, list):
            features.report_outcomes(state, report)
            return
        signals.send(signals.tick_finished, state.app, report=report)
        features.report_tick(state, report)

    return BackgroundThread("cronjobs-report-sender", send)
