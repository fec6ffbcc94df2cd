"""Until when this worker may work on each run that it holds."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ...types import Claim

#: On SQLite, for how many seconds the write lock is free before runs are taken back, so that living
#: workers renew their leases: longer than a keeper needs from one try to the end of the next.
RENEWAL_WINDOW = 3.0


def renewal_window(lease: float) -> float:
    """Return `RENEWAL_WINDOW`, or less if the *lease* is short, in seconds.

    It is also for how long a worker that has just found the lock held knows that it still has its
    runs, although it could not renew their leases.
    """
    return min(RENEWAL_WINDOW, lease / 2)


_NEVER = float("-inf")


class Leases:
    """The end of each held claim's lease, by `time.monotonic`.

    A lease is counted from before its statement was sent, so it never ends later here than in the
    database. A worker whose connection hangs, or that was frozen, knows by it that another worker
    may have the run by now: no handler begins or goes on past the end.

    The keeper writes, when it claims and renews. The runner's thread reads, before a handler begins
    and in the timer that interrupts it.

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

    def prolong(self, claims: Iterable[Claim], since: float, seconds: float) -> None:
        """Let leases that had not ended at *since* last for *seconds* from now at least.

        For SQLite, while somebody holds its one write lock: nobody can take a run meanwhile, and
        `reclaim` leaves living workers a moment to renew once the lock is free.
        """
        end = time.monotonic() + seconds
        for claim in claims:
            if since < self.end(claim) < end:
                self._ends[claim.identity] = end

    def forget(self, claim: Claim) -> None:
        """Drop a claim that is held no more."""
        self._ends.pop(claim.identity, None)

    def end(self, claim: Claim) -> float:
        """Return when *claim*'s lease ends; minus infinity if it is not held."""
        return self._ends.get(claim.identity, _NEVER)

    def holds(self, claim: Claim) -> bool:
        """Return whether *claim*'s lease has not ended."""
        return time.monotonic() < self.end(claim)
