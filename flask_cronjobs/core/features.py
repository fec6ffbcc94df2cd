"""The features, and what the core asks of them: no module of the core imports one by name.

A feature is a module below `features`, which defines those of this module's hooks that it needs.
Hooks that it does not define are skipped. It is imported only if the app uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sqlalchemy import text

from ..db.connection import Bookkeeping
from ..models.conditions import PINGED
from ..types import Claim, Outcome, TickReport
from .app_state import State
from .ticks import TickRow

if TYPE_CHECKING:
    from .claim import Answer, ClaimRequest
    from .current import CurrentRun
    from .prune import Kind
    from .tasks.options import Rate
    from .worker.admission import Kinds
    from .worker.context import RunnerContext
    from .worker.held_runs import Working
    from .worker.keeper import Keeper
    from .worker.work_options import WorkOptions


class Feature(NamedTuple):
    """One feature.

    :ivar name: the name of its module.
    :ivar task: returns the option of a task that uses it; false if the task does not.
    :ivar settings: the settings that use it.
    :ivar is_due: returns whether the row of a tick says that there is work for it; None: never.
    :ivar watches: the condition of the definitions of whose runs it hears, if it hears of runs.
    :ivar column: the column of a run that says that the run uses it, if one does.
    :ivar facts: the attributes of ``current_run`` that it provides.
    """

    name: str
    task: Callable[[Any], object] | None = None
    settings: tuple[str, ...] = ()
    is_due: Callable[[TickRow], bool] | None = None
    watches: str = ""
    column: str = ""
    facts: tuple[str, ...] = ()


FEATURES: tuple[Feature, ...] = (
    Feature("batches", is_due=attrgetter("open_batches"), column="batch_id", facts=("batch",)),
    Feature("executors", settings=("executors",)),
    Feature("output", task=attrgetter("options.keep_output"), settings=("keep_output",)),
    Feature("pings", settings=("ping_url", "alert_url"), watches=PINGED),
    Feature("rates", task=attrgetter("rate")),
    Feature("side_by_side", task=attrgetter("is_async")),
)


class Watcher(Protocol):
    """The interface of a feature that watches the runs of a worker. Any thread may call it."""

    def started(self, claim: Claim) -> None:
        """Hear that an attempt begins."""

    def ended(self, outcome: Outcome) -> None:
        """Hear how an attempt has ended, once that is recorded."""

    def close(self, patience: float) -> None:
        """Finish the work under way, within *patience* seconds."""


class Starts(Protocol):
    """The interface of a feature that limits starts. It belongs to the keeper's thread."""

    @property
    def next_at(self) -> float:
        """The time at which the next waiting run may begin, by `time.monotonic`."""
        ...

    def open(self, promptly: bool, tasks: tuple[str, ...] | None = None) -> None:
        """Make due runs claimable that may begin now.

        :param promptly: look even if the last look was a moment ago.
        :param tasks: the tasks that the claim is for; None for all.
        """

    def spend(self, claims: Sequence[Claim]) -> Collection[Claim]:
        """Use up one start for each of *claims*; return the claims without one, to be released."""
        ...

    def record_holding(self, outcomes: Sequence[Outcome]) -> Answer:
        """Record those of *outcomes* that hold back other runs of their rate key."""
        ...


class Beside(Protocol):
    """Work that a worker does beside its runs, in a separate thread.

    It may take any time, since the keeper renews the leases of the runs.
    """

    def start(self) -> None:
        """Begin."""

    def end(self) -> None:
        """End soon; the keeper may have ended already."""


class Loop(Protocol):
    """Performs the runs of some tasks side by side, for a runner and in its thread.

    The keeper's thread calls `at_work`, `admit`, `deliver` and `look`.
    """

    @property
    def tasks(self) -> Mapping[str, int]:
        """The number of runs at once, by task."""
        ...

    @property
    def kinds(self) -> Kinds:
        """The admission of a worker with such tasks."""
        ...

    def run(self, claim: Claim) -> Claim | None:
        """Perform *claim* and the claims that follow; return a claim of another kind."""

    def interrupt_all(self, error: BaseException) -> None:
        """Interrupt all handlers with *error*. May be called from a signal handler."""

    def close(self) -> None:
        """End the loop, and the runs that are left."""

    @property
    def at_work(self) -> Sequence[Working]:
        """The runs that are running."""
        ...

    def admit(self) -> None:
        """Begin the runs that are in the inbox."""

    def deliver(self) -> None:
        """Interrupt the handlers whose interruption was requested."""

    def look(self, now: float) -> None:
        """Note for each running run the time since which it could have ended."""


def prepare(state: State) -> None:
    """Prepare this process for the runs of a worker that begins."""
    for do in _of("prepare", _used(state)):
        do(state)


def watch(state: State) -> tuple[Watcher, ...]:
    """Return the watchers of the runs of a worker that begins."""
    return tuple(make(state) for make in _of("watch", _watching()))


def is_watched(books: Bookkeeping) -> bool:
    """Return whether a feature watches the runs of a definition."""
    for feature in FEATURES:
        if feature.watches:
            heard = f"SELECT id FROM job_definitions WHERE {feature.watches} LIMIT 1"
            if books.rows(text(heard)):
                return True
    return False


def beside(state: State) -> tuple[Callable[[State, WorkOptions, Keeper], Beside], ...]:
    """Return the functions that make the threads beside the runs of this app's workers."""
    return tuple(_of("beside", _used(state)))


def loop(context: RunnerContext) -> Loop | None:
    """Return the loop that performs runs side by side in a worker; None if the app needs none."""
    loops = [make(context) for make in _of("loop", _used(context.state))]
    return loops[0] if loops else None


def starts(
    state: State, books: Bookkeeping, request: ClaimRequest, rates: Mapping[str, Rate] | None
) -> tuple[Starts, ...]:
    """Return the objects that limit the starts of a worker's claims.

    :param request: a request for the tasks and queues of the worker.
    :param rates: the same as in `WorkOptions`.
    """
    return tuple(make(state, books, request, rates) for make in _of("starts", _used(state)))


def fact(name: str, run: CurrentRun) -> Any:
    """Return the fact *name* about a running run."""
    (read,) = _of("fact", [feature for feature in FEATURES if name in feature.facts])
    return read(run)


def minute(books: Bookkeeping, row: TickRow) -> int:
    """Do what a tick does for features; return the number of runs made ready."""
    due_features = [
        feature for feature in FEATURES if feature.is_due is not None and feature.is_due(row)
    ]
    return sum(do(books) for do in _of("minute", due_features))


def ended(books: Bookkeeping, batches: Collection[int]) -> int:
    """Do what follows if all runs of *batches* have ended; return how many runs that made ready."""
    follow = [feature for feature in FEATURES if feature.column == "batch_id"]
    return sum(do(books, batches) for do in _of("ended", follow))


def next_start(state: State, books: Bookkeeping, queues: Sequence[str]) -> float:
    """Release runs that features hold back; return when the next is due, by `time.monotonic`."""
    waits = [next_of(state, books, queues) for next_of in _of("next_start", _used(state))]
    soonest = min((wait for wait in waits if wait is not None), default=float("inf"))
    return time.monotonic() + soonest


def mend(state: State, books: Bookkeeping) -> None:
    """Repair leftovers of all features, such as those of rows that were deleted by hand.

    Features that the app no longer uses may have leftovers, too.
    """
    for do in _of("mend", FEATURES):
        do(state, books)


def old_rows() -> tuple[Kind, ...]:
    """Return the kinds of old rows to delete of all features, also of those no longer used."""
    owners = [feature for feature in FEATURES if feature.column]
    return tuple(kind for kinds in _of("old_rows", owners) for kind in kinds())


def report_tick(state: State, report: TickReport) -> None:
    """Report the end of a tick, for example to monitors. Never raises."""
    for tell in _of("report_tick", _used(state)):
        tell(state, report)


def report_outcomes(state: State, outcomes: Sequence[Outcome]) -> None:
    """Report outcomes that a tick has recorded, of lost workers for example. Never raises."""
    for tell in _of("report_outcomes", _watching()):
        tell(state, outcomes)


def _used(state: State) -> list[Feature]:
    """Return the features that the app uses, by the options of its tasks and by its settings."""
    settings, tasks = state.settings, list(state.registry.tasks.values())
    return [
        feature
        for feature in FEATURES
        if any(getattr(settings, name) for name in feature.settings)
        or (feature.task is not None and any(map(feature.task, tasks)))
    ]


def _watching() -> list[Feature]:
    return [feature for feature in FEATURES if feature.watches]


def _of(name: str, features: Sequence[Feature]) -> Iterator[Callable[..., Any]]:
    """Yield the functions *name* of those of *features* that have one."""
    for feature in features:
        function = getattr(import_module(f"...features.{feature.name}", __name__), name, None)
        if function is not None:
            yield function
