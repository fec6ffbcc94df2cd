"""What one worker does, and until when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from ...store import Bookkeeping
from ..observer import Observer


class MinuteWork(Protocol):
    """What a resident worker does each minute beside its runs."""

    def each_minute(self, books: Bookkeeping, counts: Counter[str], listening: bool) -> None:
        """Do the work of one minute. The first call is when the worker starts.

        :param counts: how many attempts came to which outcome since the last call; to be reset.
        :param listening: whether a NOTIFY wakes this worker.
        """

    def end(self, books: Bookkeeping, counts: Counter[str]) -> None:
        """End the last minute: the worker has stopped."""

    def close(self) -> None:
        """Free everything else. Called last, however the worker ended."""

    def of_worker(self, number: int) -> MinuteWork:
        """Return the minute work of worker *number* of a process pool, from 0."""
        ...


@dataclass(frozen=True)
class WorkOptions:
    """What one worker does, and until when.

    :ivar worker: the worker's name, ``host:pid``; its tokens begin with it.
    :ivar until: no run is claimed after this time of `time.monotonic`.
    :ivar minute_work: what a resident worker does each minute. A worker that has it stays, and
        waits for more when nothing can be claimed.
    :ivar may_kill: whether the worker may end its process when a handler does not end.
    :ivar tick_id: the row of ``job_ticks`` that each heartbeat marks as seen.
    """

    worker: str
    until: float = float("inf")
    max_runs: int | None = None
    queues: tuple[str, ...] = ()
    minute_work: MinuteWork | None = None
    may_kill: bool = False
    tick_id: int | None = None
    observer: Observer = field(default_factory=Observer)
