"""Batches of runs, and the task that follows when all runs of a batch have ended."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ...core.current import CurrentRun
from ...db.connection import Bookkeeping
from ...types import BatchCounts

if TYPE_CHECKING:
    from ...core.prune import Kind


def minute(books: Bookkeeping) -> int:
    """End the batches that can be ended; return how many runs of ``then`` were enqueued."""
    return ended(books, None)


def ended(books: Bookkeeping, ids: Collection[int] | None) -> int:
    """End the batches that can be ended; return how many runs of ``then`` were enqueued.

    :param ids: the batches to check; None for all.
    """
    from .ending import end_batches

    return end_batches(books, ids)


def old_rows() -> tuple[Kind, ...]:
    """Return the kind of old rows to delete: batches, together with their runs."""
    from .expiry import BATCHES

    return (BATCHES,)


def fact(run: CurrentRun) -> BatchCounts | None:
    """Return the counts of the batch whose ``then`` the run is; None for every other run."""
    from .batch_rows import ended_for

    with run.books_here() as books:
        return ended_for(books, run.id)
