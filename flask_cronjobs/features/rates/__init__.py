"""Runs of a task, or of each key of it, that begin at most so often."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.app_state import State
from ...core.claim import ClaimRequest
from ...db.connection import Bookkeeping
from . import rates


def next_start(state: State, books: Bookkeeping, queues: Sequence[str]) -> float | None:
    """Let runs begin whose rates allow it; return the seconds until the next, if any."""
    request = ClaimRequest(1, "", tuple(state.registry.tasks), tuple(queues))
    return rates.open_starts(books, state.registry.rates, request).wait


def mend(state: State, books: Bookkeeping) -> None:
    """Let runs begin whose task has no rate any more, and forget keys that nothing uses."""
    rates.mend(books, state.registry.tasks, state.registry.rates)
