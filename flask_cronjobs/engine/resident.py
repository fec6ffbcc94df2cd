"""``flask jobs work``: the same as ticks from crontab, by a process that stays.

What a tick does before and after its runs, each resident worker does every minute beside them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue

from .. import signals
from ..log import worker_name
from ..state import State
from ..store import Bookkeeping, TickRow, Ticks
from ..types import TickReport
from .listener import Listener
from .ping import TIMEOUT, ping
from .processes import run_workers
from .tick import TickOptions, begin, prune, upkeep
from .worker.options import WorkOptions

#: How long a worker that begins waits for its listener to know whether it can hear, in seconds.
SETTLE = 1.0


def serve(state: State, options: TickOptions) -> Counter[str]:
    """Work until SIGTERM or SIGINT; how many attempts came to which outcome.

    :raises TablesMissing: the job tables do not exist.
    :raises DatabaseTrouble: the database stayed away for longer than a lease.
    """
    number = state.settings.workers if options.workers is None else options.workers
    minutes = _Minutes(state, options)
    work_options = WorkOptions(
        worker=worker_name(),
        queues=options.queues,
        may_kill=options.own_process,
        on_outcome=options.on_outcome,
        upkeep=minutes,
    )
    return run_workers(state, number, work_options)


@dataclass
class _Minutes:
    """The upkeep of one resident worker, which leaves a row of ``job_ticks`` for each minute."""

    state: State
    options: TickOptions
    row: TickRow | None = None
    offset: float = 0.0
    since: float = 0.0
    listener: Listener | None = None
    herald: Herald | None = None
    pings: bool = True

    def each_minute(
        self, books: Bookkeeping, counts: Counter[str], wake: Callable[[], None]
    ) -> None:
        """End the minute that was, and begin the next."""
        if self.listener is None:
            self.listener = Listener(self.state.engine, wake)
            self.listener.start()
            self.listener.settled.wait(SETTLE)
        self.end(books, counts)
        ticks = Ticks(books)
        self.since = time.monotonic()
        self.row, self.offset = begin(ticks, self.listener.listening)
        counts.clear()
        counts.update(upkeep(self.state, books, self.options))
        counts["pruned"] = prune(self.state, ticks, self.row)

    def end(self, books: Bookkeeping, counts: Counter[str]) -> None:
        """End the minute that was, if one was."""
        if self.row is None:
            return
        seconds = round(time.monotonic() - self.since, 3)
        report = TickReport(worker_name(), **counts, seconds=seconds)
        Ticks(books).finish(self.row.id, report, self.offset)
        self.row = None
        if self.herald is None:
            self.herald = Herald(self.state, self.pings)
            self.herald.start()
        self.herald.tell(report)

    def leave(self) -> None:
        """Let the threads beside the worker end."""
        if self.listener is not None:
            self.listener.stop()
        if self.herald is not None:
            self.herald.leave()

    def of_worker(self, number: int) -> _Minutes:
        """The upkeep of that worker of a crew: one ping a minute is enough, the first one's."""
        return replace(self, pings=number == 0)


class Herald(threading.Thread):
    """Sends ``tick_finished`` for each report that it is told of.

    :param pings: whether it also fetches ``CRONJOBS_PING_URL``.
    """

    def __init__(self, state: State, pings: bool) -> None:
        super().__init__(name="cronjobs-herald", daemon=True)
        self._state = state
        self._url = state.settings.ping_url if pings else None
        self._reports: SimpleQueue[TickReport | None] = SimpleQueue()

    def run(self) -> None:
        """The thread's life."""
        while (report := self._reports.get()) is not None:
            signals.send(signals.tick_finished, self._state.app, report=report)
            ping(self._url)

    def tell(self, report: TickReport) -> None:
        """Tell of a minute that has ended, without waiting for it."""
        self._reports.put(report)

    def leave(self) -> None:
        """Wait until all is told, but no longer than a ping may take."""
        self._reports.put(None)
        self.join(TIMEOUT)
