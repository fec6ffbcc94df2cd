"""The features, and what the core asks of them: no module of the core imports one by name.

A feature is a module below `features`, with those functions of this module's names that it needs:
what a feature does not have is not called. It is imported only if the app uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from ..db.connection import Bookkeeping
from ..types import Claim, Outcome, TickReport
from .app_state import State
from .ticks import TickRow


def _tells(state: State) -> bool:
    return bool(state.settings.ping_url or state.settings.alert_url)


def _keeps_output(state: State) -> bool:
    tasks = state.registry.tasks.values()
    return any(task.options.keeps_output(state.settings) for task in tasks)


def _has_orders(state: State) -> bool:
    return bool(state.registry.ordered)


def _has_rates(state: State) -> bool:
    return bool(state.registry.rates)


def _has_batches(row: TickRow) -> bool:
    return row.open_batches


class Feature(NamedTuple):
    """One feature.

    :ivar name: its module's.
    :ivar is_used: returns whether the app uses it, by its code and settings, if these say it.
    :ivar is_due: returns whether a tick has something to do for it, by its row, if that says it.
    :ivar watches: whether it hears of runs, and of those that were lost.
    """

    name: str
    is_used: Callable[[State], bool] | None = None
    is_due: Callable[[TickRow], bool] | None = None
    watches: bool = False


FEATURES: tuple[Feature, ...] = (
    Feature("batches", is_due=_has_batches),
    Feature("orders", is_used=_has_orders),
    Feature("output", is_used=_keeps_output),
    Feature("pings", is_used=_tells, watches=True),
    Feature("rates", is_used=_has_rates),
)


class Watcher(Protocol):
    """What a feature hears of the runs of a worker. Any thread may call it."""

    def started(self, claim: Claim) -> None:
        """Hear that an attempt begins."""

    def ended(self, outcome: Outcome) -> None:
        """Hear how an attempt has ended, once that is recorded."""

    def close(self, patience: float) -> None:
        """Bring to an end what is under way, within *patience* seconds."""


def prepare(state: State) -> None:
    """Prepare this process for the runs of a worker that begins."""
    for do in _of("prepare", _used(state)):
        do(state)


def watch(state: State) -> tuple[Watcher, ...]:
    """Return what hears of the runs of a worker that begins."""
    return tuple(begin(state) for begin in _of("watch", _watching()))


def minute(books: Bookkeeping, row: TickRow) -> int:
    """Do what a tick does for features; return how many runs that made ready."""
    due = [each for each in FEATURES if each.is_due is not None and each.is_due(row)]
    return sum(do(books) for do in _of("minute", due))


def next_start(state: State, books: Bookkeeping, queues: Sequence[str]) -> float | None:
    """Let runs begin that features hold back; return the seconds until the next may, if any."""
    waits = [each(state, books, queues) for each in _of("next_start", _used(state))]
    return min((wait for wait in waits if wait is not None), default=None)


def mend(state: State, books: Bookkeeping) -> None:
    """Put right what was left behind, such as by rows that somebody has deleted by hand.

    Of all features: what the app does not use any more may be left behind, too.
    """
    for do in _of("mend", FEATURES):
        do(state, books)


def told(state: State, report: TickReport) -> None:
    """Tell others that a tick has ended. Never raises."""
    for tell in _of("told", _used(state)):
        tell(state, report)


def lost(state: State, outcomes: Sequence[Outcome]) -> None:
    """Tell others of attempts that ended with their worker. Never raises."""
    if any(outcome.definition_id is not None for outcome in outcomes):
        for tell in _of("lost", _watching()):
            tell(state, outcomes)


def _used(state: State) -> list[Feature]:
    return [each for each in FEATURES if each.is_used is not None and each.is_used(state)]


def _watching() -> list[Feature]:
    return [each for each in FEATURES if each.watches]


def _of(name: str, features: Sequence[Feature]) -> Iterator[Callable[..., Any]]:
    """Yield the functions *name* of those of *features* that have one."""
    for each in features:
        function = getattr(import_module(f"...features.{each.name}", __name__), name, None)
        if function is not None:
            yield function
