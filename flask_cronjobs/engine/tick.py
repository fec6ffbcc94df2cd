"""One tick, top to bottom.

What a tick does is the story of the whole: take back the dead, enqueue due slots, sync the
definitions with the code, claim and run, prune, report.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from .. import signals
from ..log import logger, worker_name
from ..state import State
from ..store import Bookkeeping, Claims, Definitions, TickRow, Ticks
from ..types import Outcome, RecordedSlot, TickReport
from .ping import ping
from .processes import run_workers
from .reclaim import reclaim
from .scheduler import enqueue_slots
from .worker.options import WorkOptions

#: A host whose clock is further off than this, in seconds, is warned of.
CLOCK_TOLERANCE = 5.0
#: Every so many ticks, of all hosts together, one prunes.
PRUNE_EVERY = 20


@dataclass(frozen=True)
class TickOptions:
    """How one tick is run. None: as the app's settings say.

    :ivar workers: how many processes; more than one are forked.
    :ivar budget: seconds after which nothing more is claimed.
    :ivar own_process: whether this process is the tick's own: then it handles SIGTERM and SIGINT,
        and may be ended for a handler that will not end.
    """

    workers: int | None = None
    budget: float | None = None
    max_runs: int | None = None
    queues: tuple[str, ...] = ()
    own_process: bool = False
    on_outcome: Callable[[Outcome], None] | None = None
    on_slot: Callable[[RecordedSlot], None] | None = None


def tick(state: State, options: TickOptions) -> TickReport:
    """Run one tick.

    :returns: what it did.
    :raises TablesMissing: the job tables do not exist.
    :raises DatabaseTrouble: the database could not be used; what it held comes back by lease.
    """
    started = time.monotonic()
    with Bookkeeping(state.engine) as books:
        row, offset = begin(Ticks(books))
        counts = upkeep(state, books, options)
        books.close()  # No connection of ours is open while workers fork.
        number = state.settings.workers if options.workers is None else options.workers
        work_options = _work_options(state, options, row, started)
        # Only a process of the tick's own may fork: elsewhere there may be threads.
        counts += run_workers(state, number if options.own_process else 1, work_options)
        counts["pruned"] = prune(state, Ticks(books), row)
        report = TickReport(worker_name(), **counts, seconds=round(time.monotonic() - started, 3))
        Ticks(books).finish(row.id, report, offset)
    signals.send(signals.tick_finished, state.app, report=report)
    if state.settings.ping_url is not None:
        ping(state.settings.ping_url)
    return report


def begin(ticks: Ticks, listening: bool = False) -> tuple[TickRow, float]:
    """Begin a tick's row; the row, and by how many seconds this host's clock is ahead.

    :param listening: whether it is a resident worker's that a NOTIFY wakes.
    """
    before = time.time()
    row = ticks.begin(worker_name(), socket.gethostname(), os.getpid(), listening)
    offset = (before + time.time()) / 2 - row.now.timestamp()
    if abs(offset) > CLOCK_TOLERANCE + (time.time() - before):
        logger.warning(
            "This host's clock is %.0f s %s the database's. Nothing runs early or late for it, "
            "since the database's counts; but set it right, or its logs mislead.",
            abs(offset),
            "ahead of" if offset > 0 else "behind",
        )
    return row, round(offset, 3)


def upkeep(state: State, books: Bookkeeping, options: TickOptions) -> Counter[str]:
    """Take back the dead, enqueue due slots, sync the definitions; how many of which."""
    counts: Counter[str] = Counter()
    counts["reclaimed"] = reclaim(state, Claims(books), options.on_outcome)
    return counts + enqueue_slots(state, Definitions(books), options.on_slot)


def prune(state: State, ticks: Ticks, row: TickRow) -> int:
    """Delete what is past its retention, at one tick of `PRUNE_EVERY`; how many runs went."""
    if row.id % PRUNE_EVERY:
        return 0
    return ticks.prune(state.settings.retention, state.settings.retention_dead)


def _work_options(state: State, options: TickOptions, row: TickRow, started: float) -> WorkOptions:
    budget = state.settings.tick_budget if options.budget is None else options.budget
    return WorkOptions(
        worker=worker_name(),
        until=started + budget,
        max_runs=options.max_runs,
        queues=options.queues,
        may_kill=options.own_process,
        on_outcome=options.on_outcome,
        on_beat=lambda books: Ticks(books).seen(row.id),
    )
