"""Which runs a worker claims next, how many, and how soon.

Async handlers are at work side by side, all others one after the other. So a worker does only one
kind at a time: nothing waits behind handlers of the other kind, and what is claimed can begin.

How soon it looks for more depends on what its last claims found, and on what woke it. Where the
database can notify, a thread listens for runs that are enqueued. Everything works without it: the
keeper looks for runs by itself, only not at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flask import Flask
from sqlalchemy import Engine

from ...db.notify import WAKE_EVERY, Notifications
from ...log import logger
from ...types import Claim, Outcome
from ..app_state import State
from .held_runs import HeldRuns

#: How much work a worker claims ahead, in seconds.
AHEAD = 0.05
#: How many runs one claim takes at most.
CLAIMED_AT_ONCE = 1000
#: When the run at work takes longer than this, in seconds, what waits behind it is given back.
LONG = 4 * AHEAD
#: Of how many of the last runs the mean is, about.
RECENT = 3


class Prefetch:
    """How many runs to claim, by the recent mean duration of a run.

    :ivar mean: in seconds; None until a run has ended.
    """

    def __init__(self) -> None:
        self.mean: float | None = None

    def note(self, seconds: Sequence[float]) -> None:
        """Take the durations of several attempts into the mean."""
        if not seconds:
            return
        latest = sum(seconds) / len(seconds)
        weight = 1.0 if self.mean is None else len(seconds) / (len(seconds) + RECENT)
        self.mean = latest * weight + (self.mean or 0.0) * (1 - weight)

    def wanted(self, waiting: int, idle: bool, recording: bool = False) -> int:
        """Return how many runs to claim when *waiting* runs are claimed and not begun.

        None until half of the target is used up, so that each claim is worth its statement, unless
        there is a statement anyway. None behind a long run, or a first one, whose length nobody
        knows: another worker can have them.

        :param idle: whether the worker has nothing to do.
        :param recording: whether there are outcomes to record in the same statement.
        """
        if self.mean is None or self.mean > LONG:
            return 1 if idle else 0
        target = max(1, min(CLAIMED_AT_ONCE, int(AHEAD / max(self.mean, 1e-6))))
        return target - waiting if recording or waiting <= target // 2 else 0


#: How long a worker keeps to one kind of task, in seconds. Then it looks which kind is first.
KIND_PERIOD = 1.0


class Wanted(NamedTuple):
    """What to claim now.

    :ivar limit: how many runs; 0 for none.
    :ivar tasks: the tasks; None for all.
    :ivar side_by_side: whether the runs are to run at the same time.
    """

    limit: int = 0
    tasks: tuple[str, ...] | None = None
    side_by_side: bool = False


NOTHING = Wanted()


def side_by_side_tasks(state: State) -> dict[str, int]:
    """Return the tasks whose handlers run side by side, each with how many of its runs at once.

    ``atomic=True`` is left out: the end of one handler must be the end of all its work. So are all
    tasks if the app has its own way to call async handlers, this thread an event loop at work, or
    the app a session that contexts on one event loop cannot use side by side.
    """
    app, most = state.app, state.settings.async_at_once
    own_way = getattr(app.async_to_sync, "__func__", None) is not Flask.async_to_sync
    if most == 1 or own_way or not state.db.side_by_side:
        return {}
    tasks = state.registry.tasks.values()
    found = {
        task.name: min(most, task.options.async_at_once or most)
        for task in tasks
        if task.is_async and not task.options.atomic
    }
    return {} if found and _in_loop() else found


def _in_loop() -> bool:
    """Return whether this thread has an event loop at work, as a notebook has."""
    from asyncio import get_running_loop

    try:
        get_running_loop()
    except RuntimeError:
        return False
    return True


class Admission:
    """What one worker may claim. Its methods belong to the keeper's thread.

    :param side_by_side: the tasks with async handlers, each with how many runs at once.
    """

    def __init__(self, state: State, side_by_side: Mapping[str, int]) -> None:
        self._limits = side_by_side
        self._most = state.settings.async_at_once
        self._async = tuple(side_by_side)
        self._others = tuple(name for name in state.registry.tasks if name not in side_by_side)
        self._limited = {name for name, most in side_by_side.items() if most < self._most}
        # A run at a rate is claimed only when it can begin at once.
        self._rated = not state.registry.rates.keys().isdisjoint(side_by_side)
        self._prefetch = Prefetch()
        self._async_prefetch = Prefetch()
        # Whether the kind at work is async; None if the next claim decides.
        self._is_async: bool | None = None
        self._period = KIND_PERIOD
        self._period_ends = 0.0
        self._drain_ends: float | None = None

    def wanted(self, held_runs: HeldRuns, busy: bool) -> Wanted:
        """Return what to claim now.

        :param busy: whether a handler has been at work for so long that nothing may wait behind it.
        """
        idle = held_runs.idle
        self._end_drain_if_over(idle)
        if not self._limits:
            return NOTHING if busy else self._one_by_one(held_runs, idle)
        over = time.monotonic() >= self._period_ends
        if idle and (self._is_async is None or over):
            # Any task: what is first decides about the kind.
            return Wanted(1) if self._others else Wanted(min(self._limits.values()), None, True)
        if not self._is_async:
            wait = busy or over  # Until the worker is idle, and may claim anything.
            return NOTHING if wait else self._one_by_one(held_runs, idle, self._others)
        return NOTHING if self._drain_ends is not None else self._side_by_side(held_runs)

    def look(self, idle: bool, first: Callable[[], tuple[str, bool] | None]) -> None:
        """Look, if it is time, which run is first in the queue while async handlers are at work.

        If only an idle worker can run it, let the runs at work come to their end, and claim nothing
        meanwhile. If they take too long, go on, and try for longer next time.

        :param first: as `WorkerClaims.next_run`.
        """
        now = time.monotonic()
        if not self._is_async or idle or self._drain_ends is not None or now < self._period_ends:
            return
        found = first()
        if found is not None and (found[1] or found[0] not in self._limits):
            self._drain_ends = now + self._period
        else:
            self._period_ends = now + KIND_PERIOD

    def received(self, wanted: Wanted, claims: Sequence[Claim]) -> None:
        """Take note of what a claim of *wanted* returned."""
        if claims and self._limits and wanted.tasks is None:
            self._is_async = claims[0].job_type in self._limits
            self._period_ends = time.monotonic() + KIND_PERIOD
        elif not claims and wanted.tasks is not None:
            self._is_async = self._is_async or None
            self._period_ends = min(self._period_ends, time.monotonic())

    def note(self, outcomes: Sequence[Outcome]) -> None:
        """Take the durations of attempts into the means."""
        ended = [each for each in outcomes if each.kind != "released"]
        if not self._limits:
            self._prefetch.note([each.seconds for each in ended])
            return
        for prefetch, is_async in ((self._prefetch, False), (self._async_prefetch, True)):
            prefetch.note([e.seconds for e in ended if (e.job_type in self._limits) is is_async])

    def _one_by_one(
        self, held_runs: HeldRuns, idle: bool, tasks: tuple[str, ...] | None = None
    ) -> Wanted:
        recording = bool(held_runs.outcomes)
        return Wanted(self._prefetch.wanted(held_runs.waiting, idle, recording), tasks)

    def _side_by_side(self, held_runs: HeldRuns) -> Wanted:
        """Return a claim of as many async runs as can begin soon."""
        unfinished = held_runs.unfinished
        if any(claim.alone for claim in unfinished):
            return NOTHING
        counts = Counter(claim.job_type for claim in unfinished)
        full = {name for name in self._limited if counts[name] >= self._limits[name]}
        tasks = tuple(name for name in self._async if name not in full)
        if not tasks:
            return NOTHING
        ahead = 0 if self._limited or self._rated else self._ahead()
        room = self._most + ahead - len(unfinished)
        # A claim takes runs of any of the tasks.
        of_limited = [self._limits[name] - counts[name] for name in tasks if name in self._limited]
        return Wanted(max(0, min([room, *of_limited])), tasks, True)

    def _ahead(self) -> int:
        """Return how many runs to claim that begin when others end."""
        mean = self._async_prefetch.mean
        if mean is None or mean > LONG:
            return 0
        return min(CLAIMED_AT_ONCE, int(AHEAD * self._most / max(mean, 1e-6)))

    def _end_drain_if_over(self, idle: bool) -> None:
        """Go on claiming if a drain is over: the worker is idle, or it took too long.

        One that was too short is longer next time, and so is the turn before it.
        """
        now = time.monotonic()
        if self._drain_ends is None or not (idle or now >= self._drain_ends):
            return
        self._drain_ends = None
        if idle:
            self._period = KIND_PERIOD
        else:
            self._period *= 2
            self._period_ends = now + self._period


#: How often the thread looks whether it is to stop, in seconds.
SLICE = 0.5
#: How often it looks whether its connection is alive, in seconds.
CHECK_EVERY = 30.0
#: How soon it connects again after trouble, in seconds.
RECONNECT_AFTER = 5.0
#: How long entering the listener waits until it is known whether it can listen, in seconds.
READY_WITHIN = 1.0


class Listener:
    """Calls *wake*, in a thread of its own, when runs were enqueued. A context manager.

    :param enabled: whether to start the thread at all.
    :ivar listening: whether it listens at the moment. Written by its thread alone.
    """

    def __init__(self, engine: Engine, wake: Callable[[], None], enabled: bool) -> None:
        self.listening: bool = False
        self._engine = engine
        self._wake = wake
        self._enabled = enabled
        self._ready = threading.Event()
        self._stopped = threading.Event()

    def __enter__(self) -> Listener:
        if self._enabled:
            threading.Thread(target=self._run, name="cronjobs-listener", daemon=True).start()
            self._ready.wait(READY_WITHIN)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()

    def _run(self) -> None:
        """Listen; after trouble, listen again."""
        while not self._stopped.is_set():
            notifications = Notifications(self._engine)
            try:
                if not notifications.listen():
                    return
                self._listen(notifications)
            except Exception as error:
                logger.debug("Not listening for new runs: %s", error)
            finally:
                self.listening = False
                self._ready.set()
                notifications.close()
            self._stopped.wait(RECONNECT_AFTER)

    def _listen(self, notifications: Notifications) -> None:
        self.listening = True
        self._ready.set()
        checked = time.monotonic()
        while not self._stopped.is_set():
            if notifications.wait(SLICE):
                self._wake()
            if time.monotonic() - checked > CHECK_EVERY:
                notifications.check()
                checked = time.monotonic()


#: How often a worker that waits for work looks for it, in seconds.
POLL = 0.25
#: The same for one that a NOTIFY wakes. It finds retries that come due, and what it did not hear.
POLL_LISTENING = 2.0
#: Where a pooler lets no NOTIFY come, a worker waits longer the longer it has had no run: this part
#: of that time, `POLL` at least and `POLL_LISTENING` at most. So it does not keep the server busy.
QUIET = 8
#: How long the keeper waits for outcomes before it looks for more runs, if its last claim got less
#: than it asked for, in seconds. So the first handler is not held up, and one statement does both.
SETTLE = 0.005


class Pace:
    """When to look for runs. It belongs to the keeper's thread.

    :param asks_server: whether each look is the work of a server.
    :ivar next_start: when the next start of a rate comes, by `time.monotonic`: then it looks again.
    """

    def __init__(self, listener: Listener, asks_server: bool) -> None:
        self._listener = listener
        self._asks_server = asks_server
        self._nothing_since: float | None = None
        self._woken_at = float("-inf")
        self._got_runs_at = time.monotonic()
        self._settled_at = 0.0
        self.next_start: float = float("inf")

    @property
    def exhausted(self) -> bool:
        """Whether the last claim found nothing, and nothing has changed since."""
        return self._nothing_since is not None

    @property
    def rests(self) -> bool:
        """Whether it is too soon to look again after such a claim."""
        since = self._nothing_since
        return since is not None and time.monotonic() < min(
            since + self._between_looks, self.next_start
        )

    @property
    def settles_for(self) -> float:
        """For how many seconds to wait for outcomes before the next claim."""
        return max(0.0, self._settled_at - time.monotonic())

    @property
    def next_look(self) -> float:
        """For how many seconds to wait while there is no work."""
        return min(self._between_looks, max(0.0, self.next_start - time.monotonic()))

    @property
    def _between_looks(self) -> float:
        if not self._listener.listening:
            if not self._asks_server:
                return POLL
            quiet = (time.monotonic() - self._got_runs_at) / QUIET
            return min(max(POLL, quiet), POLL_LISTENING)
        # Twice at least after a NOTIFY: runs that came with it may be committed later.
        woken = time.monotonic() - self._woken_at < 3 * WAKE_EVERY
        return WAKE_EVERY if woken else POLL_LISTENING

    def look_again(self) -> None:
        """Look at once: something has changed, and a claim may find what the last one did not."""
        self._nothing_since = None

    def note_wake(self) -> None:
        """Note that a NOTIFY, or somebody else, has woken the worker."""
        self._woken_at = time.monotonic()
        self.look_again()

    def note_answer(self, number: int, wanted: int, exhausted: bool) -> None:
        """Note that an answer brought *number* runs, and whether nothing more can be claimed.

        :param wanted: how many were asked for; 0 for none.
        """
        now = time.monotonic()
        if number:
            self._got_runs_at = now
        if wanted > 0:
            self._settled_at = now + SETTLE if 0 < number < wanted else 0.0
        self._nothing_since = now if exhausted else None
