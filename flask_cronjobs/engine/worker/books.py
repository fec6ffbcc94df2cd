"""The keeper's bookkeeping connection."""

from __future__ import annotations

from ...state import State
from ...store.connection import Bookkeeping
from .precedence import Precedence

#: How many of the keeper's statements, each as slow as it may be, fit into a lease.
STATEMENTS_IN_LEASE = 8
#: How long the keeper's connection retries a statement before the keeper looks after its runs.
PATIENCE = 0.5


class KeeperBooks(Bookkeeping):
    """A connection for a keeper, which goes before the runs of its worker.

    :ivar precedence: says whether the keeper is at work.
    """

    def __init__(self, state: State, precedence: Precedence | None = None) -> None:
        self.precedence: Precedence = precedence or Precedence()
        limit = max(1.0, state.settings.lease / STATEMENTS_IN_LEASE)
        super().__init__(state.engine, patience=PATIENCE, limit=limit, waiting=self.precedence.lent)
