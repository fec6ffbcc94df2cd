"""One tick, from the first statement to the last."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from .. import signals
from ..db.connection import Bookkeeping
from ..db.errors import is_about_the_rows
from ..errors import DatabaseTrouble
from ..log import __version__, logger, worker_name
from ..signals import News, unheard
from ..types import Outcome, TickReport
from . import features, gate, ticks
from .app_state import State
from .look import look_at_queue
from .scheduler import enqueue_slots, sync_definitions
from .worker.process_signals import keyboard_deferred

if TYPE_CHECKING:
    from .worker.work_options import WorkOptions

#: One tick in this many, counted over all hosts, prunes. The number is a prime, so that each of
#: several apps on one database gets its turn even if their ticks alternate.
PRUNE_EVERY = 19
#: Approximate seconds for which a tick prunes.
PRUNE_SECONDS = 9.0


class TickOptions(NamedTuple):
    """How to run one tick. If *workers* or *budget* is None, the app's setting applies.

    :ivar workers: how many worker processes; if there are several, they are forked.
    :ivar budget: seconds after which no more runs are claimed.
    :ivar started_by: the server, such as Gunicorn, that started this resident command, if one did.
    :ivar own_process: whether this process is the tick's own. If so, it handles SIGTERM and SIGINT,
        and is ended if a handler does not end.
    """

    workers: int | None = None
    budget: float | None = None
    max_runs: int | None = None
    queues: tuple[str, ...] = ()
    own_process: bool = False
    started_by: str = ""
    news: News = unheard


class OpenTick(NamedTuple):
    """A tick that has begun.

    :ivar clock_offset: by how many seconds this host's clock is ahead of the database's.
    :ivar started: when it began, by `time.monotonic`.
    """

    row: ticks.TickRow
    clock_offset: float
    started: float


def tick(state: State, options: TickOptions) -> TickReport:
    """Run one tick and return what it did.

    :raises SetupError: ``db.session`` has the only connection, as in some tests.
    :raises TablesMissing: the job tables do not exist.
    :raises DatabaseTrouble: the database could not be used. Held runs are reclaimed when their
        leases end.
    """
    outcomes = list[Outcome]()
    try:
        with state.bookkeeping(keyboard_deferred, apart=True) as books:
            opened = begin_tick(state, books, options.queues)
            counts = Counter[str]()
            for _ in housekeeping(state, books, opened.row, options.news, counts, outcomes.extend):
                pass
            budget = state.settings.tick_budget if options.budget is None else options.budget
            until = opened.started + budget
            # A tick also waits for runs whose rate lets them begin within its budget.
            start_comes = features.open_starts(state, books, options.queues) < until
            if look_at_queue(books) or start_comes:
                # This is imported late for the same reason as in `worker_options`.
                from .processes import run_workers

                work_options = worker_options(state, options)._replace(
                    books=books,
                    until=until,
                    tick_id=opened.row.id,
                    is_watched=features.is_watched(books),
                )
                counts += run_workers(state, number_of_workers(state, options), work_options)
                # Workers have ended the batches whose runs they held. Other batches that were open
                # when the tick began may be ready to end, for example since a handler closed them.
                features.minute(books, opened.row)
            counts["pruned"] = prune_sometimes(state, books, opened.row)
            report = finish_tick(books, opened, counts)
        signals.send(signals.tick_finished, state.app, report=report)
    finally:
        # This is late, so that no monitor holds up the runs. It is done even if the tick has failed
        # after it recorded these outcomes, since no other tick reports them.
        if outcomes:
            features.report_outcomes(state, outcomes)
    features.report_tick(state, report)
    return report


def housekeeping(
    state: State,
    books: Bookkeeping,
    row: ticks.TickRow,
    news: News,
    counts: Counter[str],
    take_outcomes: Callable[[list[Outcome]], object],
) -> Iterator[bool]:
    """Do what a tick does before its runs; yield, after each step, whether it made runs ready.

    So a resident worker can wake others for such runs at once, and can stop after any step.

    :param counts: the counts of the tick's row, to which this adds.
    :param take_outcomes: called with the outcomes of attempts that were reclaimed, and of runs
        without an attempt left.
    """
    if row.expired or row.spent:
        # Most ticks find nothing to reclaim, and need none of a worker's modules.
        from .reclaim import end_spent, reclaim

        for reclaimed in reclaim(state, books, news) if row.expired else ():
            counts["reclaimed"] += len(reclaimed)
            take_outcomes(reclaimed)
        for spent in end_spent(state, books, news) if row.spent else ():
            take_outcomes(spent)
        yield True  # Retried and released runs, and the runs that were parked behind ended ones.
    if row.parked:
        yield gate.open_all_left_parked(books) > 0
    slots, rows = enqueue_slots(state, books, news)
    counts.update(slots)
    yield slots["recorded"] > 0
    sync_definitions(state, books, rows, row.undeclared)
    yield features.minute(books, row) > 0


def begin_tick(
    state: State,
    books: Bookkeeping,
    queues: tuple[str, ...] = (),
    resident: bool = False,
    listening: bool = False,
    started_by: str = "",
) -> OpenTick:
    """Insert the row of a tick that begins, and warn if this host's clock is wrong.

    :param queues: the queues that it serves; empty means all.
    :param resident: whether the row stands for one minute of a resident worker.
    :param listening: whether a NOTIFY wakes that worker.
    :param started_by: see `TickOptions`.
    """
    started, before = time.monotonic(), time.time()
    row = ticks.begin(
        *(books, worker_name(), socket.gethostname(), os.getpid()),
        listening=listening,
        resident=resident,
        queues=queues,
        version=f"{__version__} {started_by}".rstrip(),
        declared=tuple(state.registry.declarations),
        app=state.app.name,
    )
    offset = (before + time.time()) / 2 - row.now.timestamp() + books.dialect.shift
    if abs(offset) > ticks.CLOCK_TOLERANCE_SECONDS + (time.time() - before):
        logger.warning(
            "This host's clock is %.0f s %s the database's. Runs are on time, since they follow "
            "the database's clock, but the times in this host's logs are wrong. Set up NTP on it.",
            abs(offset),
            "ahead of" if offset > 0 else "behind",
        )
    return OpenTick(row, round(offset, 3), started)


def prune_sometimes(
    state: State,
    books: Bookkeeping,
    row: ticks.TickRow,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Delete rows past their retention, unless another tick will; return the number of runs.

    One tick in `PRUNE_EVERY` prunes. So does the first tick of each hour, since ticks may be rare,
    and any tick if the latest ones have pruned so many runs that more may be left.
    A tick that prunes also cleans up what features have left behind; see `features.clean_up`.

    :param stopped: returns whether to stop after the current round.
    """
    if not (row.id % PRUNE_EVERY == 0 or row.begins_hour or row.pruned >= ticks.DELETED_AT_ONCE):
        return 0
    # This is imported late, since most ticks do not prune.
    from . import prune as pruning

    features.clean_up(state, books)
    until, pruned = time.monotonic() + PRUNE_SECONDS, 0
    try:
        for deleted in pruning.prune(books, state.settings):
            pruned += deleted
            if stopped() or time.monotonic() > until:
                break
    except DatabaseTrouble as trouble:
        if not is_about_the_rows(trouble):
            raise
        logger.error(
            "Rows past their retention could not be deleted: the app's own foreign key to job_runs "
            "needs ON DELETE CASCADE or SET NULL. %s",
            trouble,
        )
    return pruned


def finish_tick(books: Bookkeeping, opened: OpenTick, counts: Mapping[str, int]) -> TickReport:
    """Finish the tick's row, and return what the tick did."""
    seconds = round(time.monotonic() - opened.started, 3)
    report = TickReport(worker_name(), **counts, seconds=seconds)
    ticks.finish(books, opened.row.id, report, opened.clock_offset)
    return report


def number_of_workers(state: State, options: TickOptions) -> int:
    """Return the number of processes that run workers."""
    # Fork only in the tick's own process, since another process may have threads.
    if not options.own_process:
        return 1
    return state.settings.workers if options.workers is None else options.workers


def worker_options(state: State, options: TickOptions) -> WorkOptions:
    """Return the options of each worker of a tick, or of a resident command."""
    # This is imported late, since most ticks find nothing to do and need no modules of workers.
    from .worker.work_options import WorkOptions

    return WorkOptions(
        worker=worker_name(),
        max_runs=options.max_runs,
        queues=options.queues,
        own_process=options.own_process,
        news=options.news,
        started_by=options.started_by,
        elsewhere=frozenset(state.settings.executors),
        beside=features.beside(state),
    )
