"""Decide which kind of runs a worker claims next, and how many.

Async handlers run side by side, and all others one after the other. So a worker runs only one kind
at a time: no run waits behind handlers of the other kind, and claimed runs can begin.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ...core.app_state import State
from ...core.worker.admission import (
    AHEAD_SECONDS,
    LONG_SECONDS,
    MAX_CLAIMED_RUNS,
    NOTHING,
    Prefetch,
    Wanted,
)
from ...core.worker.held_runs import HeldRuns
from ...types import Claim, Outcome
from .async_run import LoopWatch

#: Seconds for which a worker keeps to one kind of task. Then it checks which kind is first.
KIND_SECONDS = 1.0


class AsyncKinds:
    """Decides what a worker may claim. Its methods belong to the keeper's thread.

    :param side_by_side: the tasks with async handlers, each with the number of runs at once.
    :param watch: the keeper's watch over their event loop.
    """

    def __init__(self, state: State, side_by_side: Mapping[str, int], watch: LoopWatch) -> None:
        self._watch = watch
        self._limits = side_by_side
        self._at_once = state.settings.async_at_once
        self._async = tuple(side_by_side)
        self._others = tuple(name for name in state.registry.tasks if name not in side_by_side)
        self._limited = {name for name, limit in side_by_side.items() if limit < self._at_once}
        # A run with a rate is claimed only when it can begin at once.
        self._rated = not state.registry.rates.keys().isdisjoint(side_by_side)
        self._prefetch = Prefetch()
        self._async_prefetch = Prefetch()
        # Whether the running kind is async; None if the next claim decides.
        self._is_async: bool | None = None
        self._period = KIND_SECONDS
        self._period_ends = 0.0
        self._drain_ends: float | None = None

    def wanted(self, held_runs: HeldRuns, idle: bool, busy: bool) -> Wanted:
        """Return what to claim now; see `Admission`."""
        self._end_drain_if_over(idle)
        over = time.monotonic() >= self._period_ends
        if idle and (self._is_async is None or over):
            # Claim any task: the first run decides about the kind.
            return Wanted(1) if self._others else Wanted(min(self._limits.values()), None, True)
        if not self._is_async:
            wait = busy or over  # After the period, wait until the worker is idle.
            wanted = self._prefetch.wanted(held_runs, idle, wait)
            return wanted._replace(tasks=self._others) if wanted.limit > 0 else NOTHING
        return NOTHING if self._drain_ends is not None else self._side_by_side(held_runs, busy)

    def look(self, idle: bool, first: Callable[[], tuple[str, bool] | None]) -> None:
        """While async handlers are running, check now and then which run is first in the queue.

        If only an idle worker can run it, let the current runs end, and claim nothing meanwhile. If
        they take too long, continue claiming, and wait longer next time.

        :param first: see `WorkerClaims.next_run`.
        """
        now = time.monotonic()
        if not self._is_async or idle or self._drain_ends is not None or now < self._period_ends:
            return
        next_run = first()
        if next_run is not None and (next_run[1] or next_run[0] not in self._limits):
            self._drain_ends = now + self._period
        else:
            self._period_ends = now + KIND_SECONDS

    def received(self, wanted: Wanted, claims: Sequence[Claim]) -> None:
        """Take note of what a claim of *wanted* returned."""
        if claims and wanted.tasks is None:
            self._is_async = claims[0].job_type in self._limits
            self._period_ends = time.monotonic() + KIND_SECONDS
        elif not claims and wanted.tasks is not None:
            self._is_async = self._is_async or None
            self._period_ends = min(self._period_ends, time.monotonic())

    def note(self, outcomes: Sequence[Outcome]) -> None:
        """Add the durations of attempts to the means."""
        for prefetch, is_async in ((self._prefetch, False), (self._async_prefetch, True)):
            prefetch.note([o for o in outcomes if (o.job_type in self._limits) is is_async])

    def _side_by_side(self, held_runs: HeldRuns, busy: bool) -> Wanted:
        """Return a claim of as many async runs as can begin soon, or at once if *busy*."""
        unfinished = held_runs.unfinished
        if any(claim.must_run_alone for claim in unfinished):
            return NOTHING
        if busy and self._watch.is_late(time.monotonic()):
            return NOTHING  # A handler blocks the loop, so no other run can begin.
        counts = Counter(claim.job_type for claim in unfinished)
        full = {name for name in self._limited if counts[name] >= self._limits[name]}
        tasks = tuple(name for name in self._async if name not in full)
        if not tasks:
            return NOTHING
        ahead = 0 if self._limited or self._rated or busy else self._ahead()
        room = self._at_once + ahead - len(unfinished)
        # All runs of a claim may be of the same task.
        places = [self._limits[name] - counts[name] for name in tasks if name in self._limited]
        return Wanted(max(0, min([room, *places])), tasks, True)

    def _ahead(self) -> int:
        """Return how many runs to claim in advance, which begin when others end."""
        mean = self._async_prefetch.mean
        if mean is None or mean > LONG_SECONDS:
            return 0
        return min(MAX_CLAIMED_RUNS, int(AHEAD_SECONDS * self._at_once / max(mean, 1e-6)))

    def _end_drain_if_over(self, idle: bool) -> None:
        """Continue claiming if a drain is over: the worker is idle, or the drain took too long.

        If it took too long, the next one may take twice as long, and begins later.
        """
        now = time.monotonic()
        if self._drain_ends is None or not (idle or now >= self._drain_ends):
            return
        self._drain_ends = None
        if idle:
            self._period = KIND_SECONDS
        else:
            self._period *= 2
            self._period_ends = now + self._period
