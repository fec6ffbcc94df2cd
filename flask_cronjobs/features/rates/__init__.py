"""Rate limits: how many runs of a task or a rate key may begin in a period."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...core.app_state import State
from ...core.claim import ClaimRequest
from ...db.connection import Bookkeeping
from . import rates

if TYPE_CHECKING:
    from ...core.tasks.rate import Rate
    from .worker_rates import RateLimits


def open_starts(state: State, books: Bookkeeping, queues: Sequence[str]) -> float | None:
    """Open the gates of due runs whose rates have a free start.

    :returns: the seconds until the next start for which a due run waits; None if none waits.
    """
    request = ClaimRequest(1, "", tuple(state.registry.tasks), tuple(queues))
    return rates.open_starts(books, state.registry.rates, request).wait


def starts(
    state: State, books: Bookkeeping, request: ClaimRequest, own: Mapping[str, Rate] | None
) -> RateLimits:
    """Return the rate limits of the runs that a worker claims."""
    from .worker_rates import RateLimits

    return RateLimits(books, state.registry.rates if own is None else own, request)


def clean_up(state: State, books: Bookkeeping) -> None:
    """Open the gates of runs whose task no longer has a rate; delete the rows of unused keys."""
    rates.open_unrated(books, state.registry.tasks, state.registry.rates)
    rates.delete_unused_keys(books)
