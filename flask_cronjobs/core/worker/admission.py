"""Decide which runs a worker claims next, how many, and how soon.

How soon the worker looks for more depends on what its last claims found, and on what woke it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ...db.notify import WAKE_SECONDS
from ...types import Claim, Outcome
from ..claim import Answer
from .held_runs import HeldRuns
from .listener import Listener

#: Seconds of work that a worker claims ahead.
AHEAD_SECONDS = 0.05
#: The largest number of runs that one claim takes.
MAX_CLAIMED_RUNS = 1000
#: Seconds after which a run is long, and the claims that wait behind it are released.
LONG_SECONDS = 4 * AHEAD_SECONDS
#: The approximate number of recent runs in the mean of their durations.
RECENT_RUNS = 3


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
    """Decides what a worker claims. Its methods belong to the keeper's thread."""

    def wanted(self, held_runs: HeldRuns, idle: bool, busy: bool) -> Wanted:
        """Return what to claim now.

        :param idle: whether each held run has an outcome; see `HeldRuns.idle`.
        :param busy: whether a handler has been running so long that no run may wait behind it.
        """
        ...

    def note(self, outcomes: Sequence[Outcome]) -> None:
        """Note the durations of attempts."""


class Kinds(Admission, Protocol):
    """The `Admission` of a worker with two kinds of runs, of which it runs one kind at a time."""

    def look(self, idle: bool, first: Callable[[], tuple[str, bool] | None]) -> None:
        """Check, if it is time, whether the first run in the queue is of the other kind.

        :param first: see `WorkerClaims.next_run`.
        """

    def received(self, wanted: Wanted, claims: Sequence[Claim]) -> None:
        """Note that a claim of *wanted* returned *claims*."""


class Prefetch:
    """Claims runs that run one after the other, as many as take about `AHEAD_SECONDS`.

    :ivar mean: the recent mean duration of a run, in seconds; None until one has ended.
    """

    mean: float | None = None

    def note(self, outcomes: Sequence[Outcome]) -> None:
        """Add the durations of attempts to the mean."""
        seconds = [outcome.seconds for outcome in outcomes if outcome.kind != "released"]
        if not seconds:
            return
        latest = sum(seconds) / len(seconds)
        weight = 1.0 if self.mean is None else len(seconds) / (len(seconds) + RECENT_RUNS)
        self.mean = latest * weight + (self.mean or 0.0) * (1 - weight)

    def wanted(self, held_runs: HeldRuns, idle: bool, busy: bool) -> Wanted:
        """Return what to claim now.

        Unless the same statement records outcomes, nothing is claimed until half of the runs that
        were claimed ahead have begun, so that each claim is worth its statement. Nothing is claimed
        behind a long run, or behind a first run of unknown length: another worker can take the
        next runs.
        """
        if busy:
            return NOTHING
        if self.mean is None or self.mean > LONG_SECONDS:
            return Wanted(1) if idle else NOTHING
        target = max(1, min(MAX_CLAIMED_RUNS, int(AHEAD_SECONDS / max(self.mean, 1e-6))))
        waiting = held_runs.waiting
        return Wanted(target - waiting) if held_runs.outcomes or waiting <= target // 2 else NOTHING


#: Seconds between two polls of a worker that waits for runs.
POLL_SECONDS = 0.25
#: Seconds between two polls of a worker that NOTIFY wakes. They find due retries and missed
#: notifications.
LISTENING_POLL_SECONDS = 2.0
#: If no NOTIFY can wake a worker, for example behind a pooler, its pause between two polls grows
#: while it finds no run: it is the time since its last run divided by this, but at least
#: `POLL_SECONDS` and at most `LISTENING_POLL_SECONDS`. So a quiet worker does not keep the server
#: busy.
QUIET_DIVISOR = 8
#: Seconds that the keeper waits for outcomes before it looks for more runs, if its last claim got
#: fewer than its limit. So the first handler is not delayed, and one statement records and claims.
SETTLE_SECONDS = 0.005


class Pace:
    """Decides when to look for runs. It belongs to the keeper's thread.

    :param asks_server: whether a look for runs sends a query to a database server.
    :ivar exhausted: whether the last claim found nothing, and nothing has changed since.
    :ivar look_at: the time of the next look after such a claim, by `time.monotonic`.
    :ivar settled_at: the time until which the next claim waits for outcomes.
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

    def note_answer(self, answer: Answer, limit: int, next_start: float) -> None:
        """Note how many runs *answer* brought, and whether it says that more can be claimed.

        :param limit: the limit of the claim; 0 if nothing was claimed.
        :param next_start: the time of the next start that a due run waits for.
        """
        now, number = time.monotonic(), len(answer.claims)
        if number:
            self._got_runs_at = now
        if limit > 0:
            self.settled_at = now + SETTLE_SECONDS if 0 < number < limit else 0.0
        self.exhausted = answer.exhausted
        if answer.exhausted:
            self.look_at = min(now + self._between_looks(now), next_start)

    def _between_looks(self, now: float) -> float:
        if self._listener is None or not self._listener.listening:
            if not self._asks_server:
                return POLL_SECONDS
            return min(
                max(POLL_SECONDS, (now - self._got_runs_at) / QUIET_DIVISOR), LISTENING_POLL_SECONDS
            )
        # A worker looks again soon after a NOTIFY: an enqueue that follows another closely sends no
        # NOTIFY of its own.
        return WAKE_SECONDS if now - self._woken_at < 3 * WAKE_SECONDS else LISTENING_POLL_SECONDS
