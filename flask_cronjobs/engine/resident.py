"""``flask jobs work``: the work of ticks from crontab, done by a process that stays.

What a tick does before and after its runs, each resident worker does every minute beside them.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, replace
from queue import SimpleQueue

from .. import signals
from ..log import worker_name
from ..state import State
from ..store import Bookkeeping, Claims, Definitions, Ticks
from ..types import TickReport
from .ping import TIMEOUT, ping
from .processes import run_workers
from .reclaim import reclaim
from .scheduler import enqueue_slots, sync_definitions
from .tick import OpenTick, TickOptions, begin, finish, prune
from .worker.options import WorkOptions


def serve(state: State, options: TickOptions) -> Counter[str]:
    """Work until SIGTERM or SIGINT; count the attempts by outcome.

    :raises TablesMissing: the job tables do not exist.
    :raises DatabaseTrouble: the database stayed away for longer than a lease.
    """
    number = state.settings.workers if options.workers is None else options.workers
    work_options = WorkOptions(
        worker=worker_name(),
        queues=options.queues,
        may_kill=options.own_process,
        observer=options.observer,
        minute_work=ResidentMinutes(state, options),
    )
    return run_workers(state, number, work_options)


@dataclass
class ResidentMinutes:
    """The `MinuteWork` of a resident worker: a row of ``job_ticks`` for each minute."""

    state: State
    options: TickOptions
    opened: OpenTick | None = None
    sender: ReportSender | None = None
    pings: bool = True

    def each_minute(self, books: Bookkeeping, counts: Counter[str], listening: bool) -> None:
        """End the last minute, and begin the next.

        The row of a minute whose slots could not be recorded is never finished, so that health does
        not count it. What was done since counts in the next one.
        """
        if self.opened is not None:
            self.end(books, counts)
            counts.clear()
        ticks, definitions = Ticks(books), Definitions(books)
        opened = begin(ticks, listening)
        counts["reclaimed"] += reclaim(self.state, Claims(books), self.options.observer)
        slots, rows = enqueue_slots(self.state, definitions, self.options.observer)
        counts.update(slots)
        sync_definitions(self.state, definitions, rows)
        self.opened = opened
        counts["pruned"] = prune(self.state, ticks, opened)

    def end(self, books: Bookkeeping, counts: Counter[str]) -> None:
        """End the last minute, if one has begun."""
        if self.opened is None:
            return
        report = finish(Ticks(books), self.opened, counts)
        self.opened = None
        if self.sender is None:
            self.sender = ReportSender(self.state, self.pings)
            self.sender.start()
        self.sender.send(report)

    def close(self) -> None:
        """Let the sender's thread end."""
        if self.sender is not None:
            self.sender.close()

    def of_worker(self, number: int) -> ResidentMinutes:
        """Return the minute work of one worker of a pool. One ping a minute is enough."""
        return replace(self, pings=number == 0)


class ReportSender(threading.Thread):
    """Sends ``tick_finished`` and pings for each minute, in a thread of its own.

    So neither a monitor that hangs nor a slow receiver holds up the keeper.

    :param pings: whether to fetch ``CRONJOBS_PING_URL`` too.
    """

    def __init__(self, state: State, pings: bool) -> None:
        super().__init__(name="cronjobs-report-sender", daemon=True)
        self._state = state
        self._url = state.settings.ping_url if pings else None
        self._reports: SimpleQueue[TickReport | None] = SimpleQueue()

    def run(self) -> None:
        """Send reports until None comes."""
        while (report := self._reports.get()) is not None:
            signals.send(signals.tick_finished, self._state.app, report=report)
            ping(self._url)

    def send(self, report: TickReport) -> None:
        """Send *report* soon, without waiting for it."""
        self._reports.put(report)

    def close(self) -> None:
        """Wait until all is sent, but no longer than a ping may take."""
        self._reports.put(None)
        self.join(TIMEOUT)
