"""The runs that a worker holds, their leases, and the queues between its threads.

The inbox carries claims to the runner. The mailbox carries outcomes and progress to the keeper.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ...errors import Interruption, LeaseLost
from ...types import Claim, Outcome
from ..current import CurrentRun
from ..leases import renewal_window
from .outcomes import released

_LONG_AGO = float("-inf")


class Leases:
    """The end of each held claim's lease, by `time.monotonic`.

    A lease is counted from the time at which its statement was sent, so it never ends later here
    than in the database. So even a worker that was frozen, or whose connection hangs, knows when
    another worker may hold the run: no handler begins after the end of its lease, and one that runs
    is interrupted then, if handlers can be interrupted in its thread.

    The keeper writes the ends when it claims and renews. The runner's thread reads them before a
    handler begins, and when it sets the timer that interrupts the handler.

    :ivar length: how long a lease is, in seconds.
    """

    def __init__(self, length: float) -> None:
        self.length: float = length
        self._ends: dict[tuple[int, str], float] = {}

    def extend(self, claims: Iterable[Claim], sent: float) -> None:
        """Note that *claims* were made or renewed by a statement sent at *sent*."""
        end = sent + self.length
        for claim in claims:
            self._ends[claim.identity] = end

    def prolong(self, claims: Iterable[Claim], since: float) -> None:
        """Let leases that had not ended at *since* last for at least a `renewal_window` from now.

        This is for SQLite while its write lock is held: no other worker can take a run meanwhile,
        and `reclaim` leaves living workers a moment to renew once the lock is free.
        """
        end = time.monotonic() + renewal_window(self.length)
        for claim in claims:
            if since < self.end(claim) < end:
                self._ends[claim.identity] = end

    def forget(self, claim: Claim) -> None:
        """Drop a claim that is held no more."""
        self._ends.pop(claim.identity, None)

    def end(self, claim: Claim) -> float:
        """Return when *claim*'s lease ends; minus infinity if it is not held."""
        return self._ends.get(claim.identity, _LONG_AGO)

    def holds(self, claim: Claim) -> bool:
        """Return whether *claim*'s lease has not ended."""
        return time.monotonic() < self.end(claim)


#: The (deadline by `time.monotonic`, timeout in seconds) of a handler without a limit.
NO_LIMIT = float("inf"), 0.0


@dataclass(eq=False)
class Working:
    """A run whose handler is running. The runner's thread writes it, the keeper reads it.

    :ivar since: when it began, by `time.monotonic`.
    :ivar timeout: how long it may take, in seconds.
    :ivar limit: the deadline and timeout of the run or of its current step; `NO_LIMIT` after a
        `TimedOut` has been raised for it.
    :ivar error: the last interruption of its handler.
    :ivar interrupted_at: when it was first interrupted.
    :ivar is_lost: whether it was interrupted because its lease is lost.
    :ivar asked: the keeper's first interruption and its time; only the keeper writes it.
    :ivar warned: whether the keeper has logged that the handler does not end.
    :ivar could_end: the time since which an interruption could have ended it.
    """

    claim: Claim
    run: CurrentRun
    timeout: float
    since: float = field(default_factory=time.monotonic)
    error: BaseException | None = None
    interrupted_at: float | None = None
    is_lost: bool = False
    asked: tuple[Interruption, float] | None = None
    warned: bool = False
    could_end: float = _LONG_AGO

    def __post_init__(self) -> None:
        self.limit: tuple[float, float] = self.since + self.timeout, self.timeout

    def note(self, error: BaseException) -> None:
        """Note that *error* interrupts it now."""
        self.error = self.run.interrupted_by = error
        self.interrupted_at = self.interrupted_at or time.monotonic()
        self.is_lost = self.is_lost or isinstance(error, LeaseLost)

    @contextmanager
    def limited(self, seconds: float) -> Generator[None]:
        """Limit this block to *seconds*, unless the timeout comes earlier."""
        before, limit = self.limit, (time.monotonic() + seconds, seconds)
        if before < limit:
            yield  # Do not restore the limit: it is `NO_LIMIT` if a `TimedOut` was raised.
            return
        self.limit = limit
        try:
            yield
        finally:
            self.limit = before


class ProgressRequest(NamedTuple):
    """A handler's report of its progress, or its request for a heartbeat.

    :ivar answered: receives None once the progress is written.
    """

    run: CurrentRun
    heartbeat: bool
    answered: SimpleQueue[None]


#: Seconds after which an outcome whose row was blocked is sent again.
BLOCKED_RETRY_SECONDS = 0.5


class HeldRuns:
    """The runs that a worker holds, each from its claim until its outcome is recorded.

    Only the keeper's thread may use it, except for `wake`. The runner knows only the two queues.

    :ivar inbox: brings claims to the runner; None means that no more will come.
    :ivar mailbox: takes outcomes and requests to the keeper; None wakes it.
    :ivar claims: the claims of all held runs, by run id.
    :ivar outcomes: the outcomes that are not recorded yet.
    :ivar requests: the requests of handlers that reported progress and wait for an answer.
    :ivar woken: whether `wake` was called before the last `collect` returned.
    :ivar postponed: when to send an outcome again, if its row was blocked, by run id.
    :ivar batches: the batches of runs that are or were held, until the keeper takes them out.
    :ivar outdated: lost claims of runs that are held anew, until their outcomes are dropped.
    """

    def __init__(self, leases: Leases) -> None:
        self.inbox: SimpleQueue[Claim | None] = SimpleQueue()
        self.mailbox: SimpleQueue[Outcome | ProgressRequest | None] = SimpleQueue()
        self.claims: dict[int, Claim] = {}
        self.outcomes: list[Outcome] = []
        self.requests: list[ProgressRequest] = []
        self.woken: bool = False
        self.batches: set[int] = set()
        self.outdated: set[tuple[int, str]] = set()
        self.postponed: dict[int, float] = {}
        self._leases = leases

    @property
    def idle(self) -> bool:
        """Whether every held run has an outcome. One whose row is locked by others counts, too.

        Otherwise a transaction of the app that locks a row for minutes would stop the worker.
        """
        return self.claims.keys() <= {outcome.id for outcome in self.outcomes}

    def recordable(self, now: float) -> list[Outcome]:
        """Return the outcomes to record now: all but those that were blocked a moment ago."""
        if not self.postponed:
            return self.outcomes.copy()
        return [outcome for outcome in self.outcomes if self.postponed.get(outcome.id, now) <= now]

    @property
    def overdue(self) -> list[Outcome]:
        """The outcomes of blocked rows whose leases have ended."""
        postponed = [outcome for outcome in self.outcomes if outcome.id in self.postponed]
        return [outcome for outcome in postponed if not self._leases.holds(self.claims[outcome.id])]

    @property
    def waiting(self) -> int:
        """How many claims the runner has not begun."""
        return self.inbox.qsize()

    @property
    def unfinished(self) -> list[Claim]:
        """The claims of held runs that have no outcome yet."""
        finished = {outcome.id for outcome in self.outcomes}
        return [claim for id_, claim in self.claims.items() if id_ not in finished]

    def collect(self, pause: float) -> list[Outcome]:
        """Wait up to *pause* seconds for the first message, then take all that came.

        :returns: the outcomes that came.
        """
        self.woken = False
        start = len(self.outcomes)
        with suppress(Empty):
            # On Python 3.10, get(timeout=0.0) may wait forever: the remaining timeout is negative
            # by then, which means no timeout.
            message = self.mailbox.get(block=pause > 0, timeout=pause)
            while True:
                if isinstance(message, Outcome):
                    self.outcomes.append(message)
                elif message is None:
                    self.woken = True
                else:
                    self.requests.append(message)
                message = self.mailbox.get_nowait()
        return self.outcomes[start:]

    def add(self, claims: Sequence[Claim], sent: float) -> None:
        """Hold *claims*, made by a statement sent at *sent*, and pass them to the runner."""
        self._leases.extend(claims, sent)
        for claim in claims:
            old_claim = self.claims.get(claim.id)
            if old_claim is not None:  # Its handler may still run, though the lease was lost.
                self._leases.forget(old_claim)
                self.outdated.add(old_claim.identity)
            self.claims[claim.id] = claim
            if claim.batch_id is not None:
                self.batches.add(claim.batch_id)
            self.inbox.put(claim)

    def renewed(self, ids: Collection[int], sent: float) -> None:
        """Note that the leases of *ids* were renewed by a statement sent at *sent*."""
        self._leases.extend((self.claims[id_] for id_ in ids if id_ in self.claims), sent)

    def prolong(self, since: float) -> None:
        """Extend the leases that had not ended at *since*; see `Leases.prolong`."""
        self._leases.prolong(self.claims.values(), since)

    def take_back(self) -> list[Claim]:
        """Take from the inbox the claims that the runner has not begun."""
        waiting: list[Claim] = []
        with suppress(Empty):
            while (claim := self.inbox.get_nowait()) is not None:
                waiting.append(claim)
        return waiting

    def release_waiting(self) -> int:
        """Release the runs that the runner has not begun; return their number."""
        waiting = self.take_back()
        self.outcomes += map(released, waiting)
        return len(waiting)

    def release_all(self) -> None:
        """Release all held runs that have no outcome, even if their handlers have begun.

        The keeper calls this if the runner has left, since a KeyboardInterrupt may end it at any
        point, or if the process is about to end.
        """
        self.release_waiting()
        # If a claim has left the inbox, its handler may have begun.
        self.outcomes += [released(claim, unbegun=False) for claim in self.unfinished]

    def postpone(self, outcome: Outcome) -> None:
        """Keep an outcome for a while: another transaction has locked its row."""
        self.postponed[outcome.id] = time.monotonic() + BLOCKED_RETRY_SECONDS

    def remove(self, outcome: Outcome) -> None:
        """Stop holding a run: its outcome is recorded, or its lease is lost."""
        self.outcomes.remove(outcome)
        self.postponed.pop(outcome.id, None)
        if self.outdated:
            self.outdated.discard(outcome.identity)
        claim = self.claims.get(outcome.id)
        if claim is not None and claim.token == outcome.token:
            del self.claims[outcome.id]
            self._leases.forget(claim)

    def keep_batches(self) -> None:
        """Forget the batches without a held run."""
        batches = {claim.batch_id for claim in self.claims.values()}
        self.batches &= {batch for batch in batches if batch is not None}

    def wake(self) -> None:
        """Let `collect` return. May be called from any thread, and from a signal handler."""
        self.mailbox.put(None)

    def close(self) -> None:
        """Tell the runner that nothing more comes."""
        self.inbox.put(None)
