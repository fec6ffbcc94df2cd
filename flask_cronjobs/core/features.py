"""The features, and the hooks that the core calls. The core imports no feature by name.

A feature is a module or a folder of `features`. It defines those of this module's hooks that it
needs, and the others are skipped. Only the features whose hooks are called are imported:

==================================== ========================================================
hook                                 is called for the features
==================================== ========================================================
prepare, beside, loop, starts,       that the tasks and settings of the app use
open_starts, report_tick
watch, report_outcomes               that watch runs: `Feature.watches`
minute                               for which the tick's row shows work: `Feature.is_due`
ended                                that group runs: `Feature.groups`
old_rows                             whose rows are pruned: `Feature.prunes`
fact                                 that provide the fact: `Feature.facts`
clean_up                             all
==================================== ========================================================

``steps`` and ``typed`` have no hooks: only faces and insights import them.
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
    from .tasks.rate import Rate
    from .worker.admission import Kinds
    from .worker.context import RunnerContext
    from .worker.held_runs import Working
    from .worker.keeper import Keeper
    from .worker.work_options import WorkOptions


class Feature(NamedTuple):
    """One feature.

    :ivar name: the name of its module.
    :ivar task: returns a true value if the task uses the feature.
    :ivar settings: the settings that turn it on; one of them is enough.
    :ivar is_due: returns whether the row of a tick says that there is work for it; None: never.
    :ivar watches: the condition of the definitions whose runs it watches, if it watches runs.
    :ivar groups: whether it groups runs, and follows the end of every group.
    :ivar prunes: whether it has rows that are deleted after some time.
    :ivar facts: the attributes of ``current_run`` that it provides.
    """

    name: str
    task: Callable[[Any], object] | None = None
    settings: tuple[str, ...] = ()
    is_due: Callable[[TickRow], bool] | None = None
    watches: str = ""
    groups: bool = False
    prunes: bool = False
    facts: tuple[str, ...] = ()


FEATURES: tuple[Feature, ...] = (
    Feature(
        "batches",
        is_due=attrgetter("open_batches"),
        groups=True,
        prunes=True,
        facts=("batch",),
    ),
    Feature("executors", settings=("executors",)),
    Feature("once", prunes=True),
    Feature("output", task=attrgetter("options.keep_output"), settings=("keep_output",)),
    Feature("pings", settings=("ping_url", "alert_url"), watches=PINGED),
    Feature("rates", task=attrgetter("rate")),
    Feature("side_by_side", task=attrgetter("is_async")),
)


class Watcher(Protocol):
    """The interface of a feature that watches the runs of a worker. Any thread may call it."""

    def started(self, claim: Claim) -> None:
        """Note that an attempt begins."""

    def ended(self, outcome: Outcome) -> None:
        """Note how an attempt has ended, once its outcome is recorded."""

    def close(self, patience: float) -> None:
        """Finish the work in progress, within *patience* seconds."""


class Starts(Protocol):
    """The interface of a feature that limits starts. It belongs to the keeper's thread."""

    @property
    def next_at(self) -> float:
        """The time at which the next waiting run may begin, by `time.monotonic`."""
        ...

    def open(self, promptly: bool, tasks: tuple[str, ...] | None = None) -> None:
        """Let the due runs that may begin now be claimed.

        :param promptly: check even if the last check was a moment ago.
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

    It may take as long as it needs, since the keeper renews the leases of the runs.
    """

    def start(self) -> None:
        """Start the thread."""

    def end(self) -> None:
        """End the thread soon. The keeper may have ended already."""


class Loop(Protocol):
    """Performs the runs of some tasks side by side, for a runner and in its thread.

    The keeper's thread calls `at_work`, `admit`, `deliver` and `look`.
    """

    @property
    def tasks(self) -> Mapping[str, int]:
        """How many runs of each task may run at once, by the name of the task."""
        ...

    @property
    def kinds(self) -> Kinds:
        """The `Kinds` that decides how many runs such a worker claims, and of which kind."""
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
        """Update `could_end` of the runs (see `Working`), and log which handler blocks the loop.

        :param now: the current time, by `time.monotonic`.
        """


def prepare(state: State) -> None:
    """Prepare this process for the runs of a worker, before the worker begins."""
    for hook in _of("prepare", _used(state)):
        hook(state)


def watch(state: State) -> tuple[Watcher, ...]:
    """Return the watchers of a new worker's runs."""
    return tuple(hook(state) for hook in _of("watch", _watching()))


def is_watched(books: Bookkeeping) -> bool:
    """Return whether a feature watches the runs of any definition."""
    for feature in FEATURES:
        if feature.watches:
            statement = f"SELECT id FROM job_definitions WHERE {feature.watches} LIMIT 1"
            if books.rows(text(statement)):
                return True
    return False


def beside(state: State) -> tuple[Callable[[State, WorkOptions, Keeper], Beside], ...]:
    """Return the functions that make the `Beside` objects of a worker."""
    return tuple(_of("beside", _used(state)))


def loop(context: RunnerContext) -> Loop | None:
    """Return the loop that performs runs side by side in a worker; None if the app needs none."""
    loops = [hook(context) for hook in _of("loop", _used(context.state))]
    return loops[0] if loops else None


def starts(
    state: State, books: Bookkeeping, request: ClaimRequest, rates: Mapping[str, Rate] | None
) -> tuple[Starts, ...]:
    """Return the objects that limit the starts of a worker's claims.

    :param request: a request for the tasks and queues of the worker.
    :param rates: see `WorkOptions`.
    """
    return tuple(hook(state, books, request, rates) for hook in _of("starts", _used(state)))


def fact(name: str, run: CurrentRun) -> Any:
    """Return the fact *name* about a running run."""
    (hook,) = _of("fact", [feature for feature in FEATURES if name in feature.facts])
    return hook(run)


def minute(books: Bookkeeping, row: TickRow) -> int:
    """Do what a tick does for features; return the number of runs made ready."""
    due_features = [
        feature for feature in FEATURES if feature.is_due is not None and feature.is_due(row)
    ]
    return sum(hook(books) for hook in _of("minute", due_features))


def ended(books: Bookkeeping, batches: Collection[int]) -> int:
    """End those of *batches* whose runs have all ended; return how many runs this made ready."""
    grouping = [feature for feature in FEATURES if feature.groups]
    return sum(hook(books, batches) for hook in _of("ended", grouping))


def open_starts(state: State, books: Bookkeeping, queues: Sequence[str]) -> float:
    """Let the runs that features have held back be claimed, if they may begin now.

    :returns: when the next of them may begin, by `time.monotonic`.
    """
    waits = [hook(state, books, queues) for hook in _of("open_starts", _used(state))]
    soonest = min((wait for wait in waits if wait is not None), default=float("inf"))
    return time.monotonic() + soonest


def clean_up(state: State, books: Bookkeeping) -> None:
    """Clean up what features have left behind, such as runs that wait for a rate that is gone.

    This includes features that the app no longer uses.
    """
    for hook in _of("clean_up", FEATURES):
        hook(state, books)


def old_rows() -> tuple[Kind, ...]:
    """Return the kinds of old rows of all features, including those that the app no longer uses."""
    pruned = [feature for feature in FEATURES if feature.prunes]
    return tuple(kind for hook in _of("old_rows", pruned) for kind in hook())


def report_tick(state: State, report: TickReport) -> None:
    """Report the end of a tick, for example to monitors. Never raises."""
    for hook in _of("report_tick", _used(state)):
        hook(state, report)


def report_outcomes(state: State, outcomes: Sequence[Outcome]) -> None:
    """Report outcomes that a tick has recorded, such as those of lost workers. Never raises."""
    for hook in _of("report_outcomes", _watching()):
        hook(state, outcomes)


def _used(state: State) -> list[Feature]:
    """Return the features that the app's settings or the options of its tasks turn on."""
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
    """Yield the function *name* of every one of *features* that defines it."""
    for feature in features:
        function = getattr(import_module(f"...features.{feature.name}", __name__), name, None)
        if function is not None:
            yield function
