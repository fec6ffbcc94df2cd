"""When a worker looks whose turn it is in strict orders."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from ... import failpoints
from ...db.connection import Bookkeeping
from ...jobs import orders
from ...types import Outcome

#: How often a busy worker looks, in seconds.
TURNS_EVERY = 0.05


class Turns:
    """Gives the turns of strict orders. It belongs to the keeper's thread.

    :param ordered: the tasks with a strict order that the code has.
    :param pend: whether turns are to be given: runs of a strict order came or ended.
    """

    def __init__(self, books: Bookkeeping, ordered: Collection[str], pend: bool) -> None:
        self.ordered: Collection[str] = ordered
        self.pend: bool = pend
        self._books = books
        self._due_at = 0.0

    def give(self) -> None:
        """Give the turn to the next run of each strict order.

        :raises DatabaseTrouble: it is not known for which.
        """
        failpoints.reach("before-turns")
        orders.give(self._books)
        self.pend = False
        self._due_at = time.monotonic() + TURNS_EVERY

    def give_before_claim(self, idle: bool) -> None:
        """Give the turns before a claim, if it is time.

        An app without strict orders never looks, and a busy worker looks seldom. One that is idle
        looks each time, so that it finds what has just come.

        :raises DatabaseTrouble: as of `give`.
        """
        if self.pend or (self.ordered and (idle or time.monotonic() >= self._due_at)):
            self.give()

    def note_ended(self, outcomes: Iterable[Outcome]) -> None:
        """Note that *outcomes* are recorded: behind one in a strict order another may come."""
        self.pend |= any(outcome.job_type in self.ordered for outcome in outcomes)
