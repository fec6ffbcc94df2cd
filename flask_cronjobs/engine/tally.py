"""Count the attempts of all workers of a process pool, for the one row a minute that it writes."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Mapping

KINDS = ("succeeded", "failed", "dead", "cancelled", "released", "snoozed", "lost")


class Tally:
    """How many attempts came to which outcome, and how many of them are in a row of ``job_ticks``.

    In memory that a process shares with those that it forks: the parent of a pool hears of all
    outcomes, its first worker writes the rows, and neither loses count when a worker is killed.
    Each number has one writer at a time.
    """

    def __init__(self) -> None:
        numbers = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._counted = numbers[: len(KINDS)]
        self._recorded = numbers[len(KINDS) : 2 * len(KINDS)]
        self._tick_id = numbers[2 * len(KINDS) :]

    @property
    def tick_id(self) -> int | None:
        """The id of the row begun last; None if there is none."""
        return self._tick_id[0] or None

    @tick_id.setter
    def tick_id(self, id_: int) -> None:
        self._tick_id[0] = id_

    def count(self, kind: str) -> None:
        """Count an attempt."""
        self._counted[KINDS.index(kind)] += 1

    def unrecorded(self) -> Counter[str]:
        """Return the counts that no row has yet."""
        numbers = zip(KINDS, self._counted, self._recorded, strict=True)
        return Counter({kind: counted - recorded for kind, counted, recorded in numbers})

    def note_recorded(self, counts: Mapping[str, int]) -> None:
        """Note that a row has *counts*."""
        for number, kind in enumerate(KINDS):
            self._recorded[number] += counts[kind]
