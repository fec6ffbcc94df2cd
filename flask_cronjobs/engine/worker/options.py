"""What one worker does, and until when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...store import Bookkeeping
from ...types import Outcome


class Upkeep(Protocol):
    """What a resident worker does beside its runs."""

    def each_minute(
        self, books: Bookkeeping, counts: Counter[str], wake: Callable[[], None]
    ) -> None:
        """Do what is due each minute; the first is when work begins.

        :param counts: how many attempts came to which outcome, to be reset at will.
        :param wake: lets the worker look for runs at once. May be called from any thread.
        """

    def end(self, books: Bookkeeping, counts: Counter[str]) -> None:
        """Close the last minute, when the worker has stopped."""

    def leave(self) -> None:
        """Let go of all else, when the worker has ended, however it did."""

    def of_worker(self, number: int) -> Upkeep:
        """The upkeep of that worker of a crew of several, from 0."""
        ...


@dataclass(frozen=True)
class WorkOptions:
    """What one worker does, and until when.

    :ivar worker: its name, ``host:pid``, at the head of its tokens.
    :ivar until: `time.monotonic` after which nothing is claimed.
    :ivar upkeep: what a resident worker does beside its runs. A worker that has it waits for more
        work when nothing is claimable.
    :ivar may_kill: whether the process is ours to end when a handler will not.
    """

    worker: str
    until: float = float("inf")
    max_runs: int | None = None
    queues: tuple[str, ...] = ()
    upkeep: Upkeep | None = None
    may_kill: bool = False
    on_outcome: Callable[[Outcome], None] | None = None
    on_beat: Callable[[Bookkeeping], None] | None = None
