"""``flask jobs work``: the same as ticks from crontab, by a process that stays.

What a tick does before and after its runs, each resident worker does every minute beside them.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from .options import WorkOptions
from .ping import ping
from .state import State
from .store import Bookkeeping, TickRow, Ticks
from .tick import TickOptions, begin, prune, upkeep
from .types import TickReport
from .worker import worker_name
from .workers import run_workers


def serve(state: State, options: TickOptions) -> Counter[str]:
    """Work until SIGTERM or SIGINT; how many attempts came to which outcome.

    :raises TablesMissing: the job tables do not exist.
    :raises DatabaseTrouble: the database stayed away for longer than a lease.
    """
    number = state.settings.workers if options.workers is None else options.workers
    work_options = WorkOptions(
        worker=worker_name(),
        queues=options.queues,
        may_kill=options.own_process,
        on_outcome=options.on_outcome,
        upkeep=_Minutes(state, options),
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

    def __call__(self, books: Bookkeeping, counts: Counter[str]) -> None:
        """End the minute that was, and begin the next."""
        ticks = Ticks(books)
        if self.row is not None:
            self._finish(ticks, self.row, counts)
        self.since = time.monotonic()
        self.row, self.offset = begin(ticks)
        counts.clear()
        counts.update(upkeep(self.state, books, self.options))
        counts["pruned"] = prune(self.state, ticks, self.row)

    def _finish(self, ticks: Ticks, row: TickRow, counts: Counter[str]) -> None:
        seconds = round(time.monotonic() - self.since, 3)
        ticks.finish(row.id, TickReport(worker_name(), **counts, seconds=seconds), self.offset)
        if self.state.settings.ping_url is not None:
            ping(self.state.settings.ping_url)
