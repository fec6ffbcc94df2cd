"""The keeper goes before the worker's other threads.

Only one thread of a process runs Python code at a time, and a busy one is asked to give way only
every 5 ms. The keeper waits for the server in each exchange, and would go on 5 ms late, several
times. Meanwhile the runner comes to the end of its short runs, and then waits for the keeper. So
between two runs it gives way at once.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from ...db.connection import Bookkeeping
from ...jobs.state import State

#: How long to give way at most, in seconds. The keeper may be waiting for something else.
PATIENCE = 0.02


class Precedence:
    """Says whether the keeper is at work. `taken` and `lent` are for the keeper's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False

    @contextmanager
    def taken(self) -> Generator[None]:
        """Go first in this block."""
        self._lock.acquire()
        self._taken = True
        try:
            yield
        finally:
            self._taken = False
            self._lock.release()

    @contextmanager
    def lent(self) -> Generator[None]:
        """Let the others go on in this block, in which the keeper waits."""
        self._taken = False
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._taken = True

    def give_way(self) -> None:
        """Wait while the keeper is at work. For the other threads, between two runs."""
        if not self._taken:
            return
        if self._lock.acquire(timeout=PATIENCE):
            self._lock.release()
        else:
            self._taken = False  # Until the keeper has waited once more.


#: How many of the keeper's statements, each as slow as it may be, fit into a lease.
STATEMENTS_IN_LEASE = 8
#: How long the keeper's connection retries a statement before the keeper looks after its runs.
RETRY_FOR = 0.5


class KeeperConnection(Bookkeeping):
    """A connection for a keeper, which goes before the runs of its worker.

    :ivar precedence: says whether the keeper is at work.
    """

    def __init__(self, state: State, precedence: Precedence | None = None) -> None:
        self.precedence: Precedence = precedence or Precedence()
        limit = max(1.0, state.settings.lease / STATEMENTS_IN_LEASE)
        super().__init__(
            state.engine, patience=RETRY_FOR, limit=limit, waiting=self.precedence.lent
        )
