"""Runs that are enqueued as one, and what follows when all of them have ended."""

from __future__ import annotations

from ...db.connection import Bookkeeping


def minute(books: Bookkeeping) -> int:
    """End the batches that can be ended; return how many runs of ``then`` were enqueued."""
    from .ending import end_batches

    return end_batches(books)
