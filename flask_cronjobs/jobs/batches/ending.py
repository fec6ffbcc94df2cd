"""End batches whose last member has ended, and stop those in which a member died.

Every tick looks at all batches that have not ended, so none is forgotten, whatever was killed. A
worker looks at those of its runs, so that their ``then`` is soon enqueued; see `Keeper`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ... import failpoints
from ...db.connection import Bookkeeping
from ...db.errors import is_about_the_rows
from ...db.notify import wake_all
from ...errors import CronJobsError
from ...log import logger
from ...signals import announce
from ...text import one_line
from ...types import TERMINAL, Outcome
from ..state import State
from . import members
from . import rows as batches
from .rows import CHUNK, Ended, Unended

#: How long to wait for somebody else who is about to end the same batch, in seconds, how often.
MOMENTS = (0.01, 0.04)


class EndedBatches(NamedTuple):
    """What `end_batches` did.

    :ivar enqueued: how many runs of ``then`` were enqueued.
    :ivar left: the batches in which runs still wait that are to be cancelled.
    """

    enqueued: int
    left: frozenset[int] = frozenset()


def end_batches(
    books: Bookkeeping,
    tell: Callable[[Outcome], object],
    ids: Iterable[int] | None = None,
    seconds: float = float("inf"),
) -> EndedBatches:
    """End those batches that can be ended, and stop those that are to be stopped.

    One whose row is corrupt is logged, and stops no other.

    :param tell: called for each run that is cancelled.
    :param ids: look at these, and then at those around them; None for all.
    :param seconds: after which no more runs are cancelled in a batch.
    """
    wanted = None if ids is None else set(ids)
    enqueued, left = 0, set[int]()
    while wanted is None or wanted:
        touched: set[int] = set()
        for each in _unended(books, wanted):
            stop = each.stopped and each.id not in left
            with _logging_broken(each.key):
                if stop and (stopped := _stop(books, each.id, tell, seconds)):
                    touched |= stopped.cancelled_in
                    left |= stopped.left
                elif each.ready and (ended := _end(books, each.id)):
                    failpoints.reach("after-batch")
                    enqueued += ended.then_run_id is not None
                    touched |= set() if ended.parent_id is None else {ended.parent_id}
                    log_end(ended)
        wanted = touched
    if enqueued:
        wake_all(books)
    return EndedBatches(enqueued, frozenset(left))


def telling(state: State) -> Callable[[Outcome], None]:
    """Return what logs a run that is cancelled, and sends its signal, in the caller's thread."""
    return lambda outcome: announce(state.app, outcome, recorded=True)


@contextmanager
def _logging_broken(key: str) -> Generator[None]:
    """Log an error that the row of the batch *key* is the cause of, and go on."""
    try:
        yield
    except Exception as error:
        if isinstance(error, CronJobsError) and not is_about_the_rows(error):
            raise
        logger.error(
            "The batch %s is broken, and waits: %s. Mend its row in job_batches.",
            one_line(str(key)),
            one_line(str(error)).rstrip("."),
        )


def _unended(books: Bookkeeping, ids: Iterable[int] | None) -> Iterator[Unended]:
    after = 0
    while found := batches.unended(books, ids, after):
        yield from found
        after = found[-1].id
        if len(found) < CHUNK:
            return


def log_end(ended: Ended) -> None:
    """Log that a batch has ended, and how."""
    counts = ended.counts
    told = ", ".join(
        f"{number:,} {status}" for status in TERMINAL if (number := getattr(counts, status))
    )
    then = f"; then {ended.then_task}, run {ended.then_run_id}" if ended.then_run_id else ""
    logger.info("batch %s has ended: %s%s", one_line(str(counts.key)), told or "no members", then)


def _end(books: Bookkeeping, batch_id: int) -> Ended | None:
    """End a batch. If somebody else is at it, see that they do not miss our own last run."""
    for pause in (*MOMENTS, 0.0):
        ended = batches.end(books, batch_id)
        if ended is not None or not any(each.ready for each in batches.unended(books, [batch_id])):
            return ended
        time.sleep(pause)
    return None


class _Stopped(NamedTuple):
    cancelled_in: set[int]
    left: set[int]


def _stop(
    books: Bookkeeping, batch_id: int, tell: Callable[[Outcome], object], seconds: float
) -> _Stopped | None:
    """Cancel what waits in a batch and in those inside it; return None if nothing did."""
    until = time.monotonic() + seconds
    family = members.family(books, batch_id)
    number = 0
    for each in family:
        for outcomes in members.cancel_waiting(books, each, batch_id):
            for outcome in outcomes:
                tell(outcome)
            number += len(outcomes)
            if time.monotonic() > until:
                return _Stopped(set(), {batch_id})
    if not number:
        return None
    logger.warning("batch %d was stopped: a member died. %d runs cancelled", batch_id, number)
    return _Stopped(set(family), set())
