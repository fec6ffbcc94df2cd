"""Which runs a worker claims next, how many, and how soon.

How soon it looks for more depends on what its last claims found, and on what woke it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ...db.notify import WAKE_SECONDS
from ...types import Claim, Outcome
from .held_runs import HeldRuns
from .listener import Listener

#: How much work a worker claims ahead, in seconds.
AHEAD = 0.05
#: How many runs one claim takes at most.
CLAIMED_AT_ONCE = 1000
#: Seconds after which claims waiting behind the current run are released.
LONG = 4 * AHEAD
#: Approximate number of recent runs in the mean.
RECENT = 3


class Wanted(NamedTuple):
    """The runs to claim now.

    :ivar limit: the number of runs; 0 for none.
    :ivar tasks: the tasks; None for all.
    :ivar side_by_side: whether the runs will run at the same time.
    """

    limit: int = 0
    tasks: tuple[str, ...] | None = None
    side_by_side: bool = False


NOTHING = Wanted()


class Admission(Protocol):
    """Says what a worker is to claim. Its methods belong to the keeper's thread."""

    def wanted(self, held_runs: HeldRuns, idle: bool, busy: bool) -> Wanted:
        """Return what to claim now.

        :param idle: whether the worker has nothing to do.
        :param busy: whether a handler has been running so long that no run may wait behind it.
        """
        ...

    def note(self, outcomes: Sequence[Outcome]) -> None:
        """Take the durations of attempts into account."""


class Kinds(Admission, Protocol):
    """The `Admission` of a worker with two kinds of runs, of which it runs one kind at a time."""

    def look(self, idle: bool, first: Callable[[], tuple[str, bool] | None]) -> None:
        """Look, if it is time, whether the first run in the queue is of the other kind.

        :param first: as `WorkerClaims.next_run`.
        """

    def received(self, wanted: Wanted, claims: Sequence[Claim]) -> None:
        """Take note of what a claim of *wanted* returned."""


class Prefetch:
    """Claims runs that run one after the other, as many as take about `AHEAD` seconds.

    :ivar mean: the recent mean duration of a run, in seconds; None until one has ended.
    """

    mean: float | None = None

    def note(self, outcomes: Sequence[Outcome]) -> None:
        """Take the durations of several attempts into the mean."""
        seconds = [each.seconds for each in outcomes if each.kind != "released"]
        if not seconds:
            return
        latest = sum(seconds) / len(seconds)
        weight = 1.0 if self.mean is None else len(seconds) / (len(seconds) + RECENT)
        self.mean = latest * weight + (self.mean or 0.0) * (1 - weight)

    def wanted(self, held_runs: HeldRuns, idle: bool, busy: bool) -> Wanted:
        """Return what to claim now.

        Nothing is claimed until half of the target is used up, so that each claim is worth its
        statement, unless outcomes are recorded by the same one. Nothing is claimed behind a long
        run, or behind a first one of unknown length: another worker can take those runs.
        """
        if busy:
            return NOTHING
        if self.mean is None or self.mean > LONG:
            return Wanted(1) if idle else NOTHING
        target = max(1, min(CLAIMED_AT_ONCE, int(AHEAD / max(self.mean, 1e-6))))
        waiting = held_runs.waiting
        return Wanted(target - waiting) if held_runs.outcomes or waiting <= target // 2 else NOTHING


#: How often a worker that waits for work looks for it, in seconds.
POLL = 0.25
#: Seconds between polls of a worker that NOTIFY wakes; they find due retries and missed wake-ups.
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
    :ivar exhausted: whether the last claim found nothing, and nothing has changed since.
    :ivar look_at: when to look again after such a claim, by `time.monotonic`.
    :ivar settled_at: until when to wait for outcomes before the next claim.
    """

    def __init__(self, listener: Listener | None, asks_server: bool) -> None:
        self.exhausted: bool = False
        self.look_at: float = 0.0
        self.settled_at: float = 0.0
        self._listener = listener
        self._asks_server = asks_server
        self._woken_at = float("-inf")
        self._got_runs_at = time.monotonic()

    def note_wake(self) -> None:
        """Note that the worker was woken, for example by NOTIFY."""
        self._woken_at = time.monotonic()
        self.exhausted = False

    def note_answer(self, number: int, wanted: int, exhausted: bool, next_start: float) -> None:
        """Note that an answer brought *number* runs, and whether nothing more can be claimed.

        :param wanted: how many were asked for; 0 for none.
        :param next_start: when the next start of a rate comes, by `time.monotonic`.
        """
        now = time.monotonic()
        if number:
            self._got_runs_at = now
        if wanted > 0:
            self.settled_at = now + SETTLE if 0 < number < wanted else 0.0
        self.exhausted = exhausted
        if exhausted:
            self.look_at = min(now + self._between_looks(now), next_start)

    def _between_looks(self, now: float) -> float:
        if self._listener is None or not self._listener.listening:
            if not self._asks_server:
                return POLL
            return min(max(POLL, (now - self._got_runs_at) / QUIET), POLL_LISTENING)
        # Twice at least after a NOTIFY: runs that came with it may be committed later.
        return WAKE_SECONDS if now - self._woken_at < 3 * WAKE_SECONDS else POLL_LISTENING
