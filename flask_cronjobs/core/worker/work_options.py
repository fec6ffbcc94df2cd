"""The options of one worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ...signals import News, unheard
from ...text.humanize import plural
from ..app_state import State
from ..tasks.rate import Rate

if TYPE_CHECKING:
    from ...db.connection import Bookkeeping
    from ..features import Beside
    from .keeper import Keeper

#: The divisor that converts the system's unit of memory to MB.
_OF_A_MB = 2**20 if sys.platform == "darwin" else 2**10


class Limits(NamedTuple):
    """The limits at which a resident worker ends and a fresh one replaces it; None: no limit.

    :ivar runs: the number of runs that the worker claims.
    :ivar memory: the resident memory that it may hold, in MB. It finishes at least one run.
    """

    runs: int | None = None
    memory: int | None = None

    def reached(self, runs: int) -> str | None:
        """Return which limit a worker with *runs* claimed runs has reached; None if none."""
        if self.runs is not None and runs >= self.runs:
            return f"after {plural(runs, 'run')}"
        if self.memory is not None and runs and (peak := peak_megabytes()) > self.memory:
            return f"after it held {peak:.0f} MB"
        return None


def peak_megabytes() -> float:
    """Return the peak resident memory of this process, in MB."""
    import resource  # Windows lacks it.

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _OF_A_MB


class WorkOptions(NamedTuple):
    """The options of one worker.

    :ivar worker: the worker's name, ``host:pid``; its tokens begin with it.
    :ivar until: the time, by `time.monotonic`, after which only a first claim is made.
    :ivar max_runs: the maximum number of runs that a worker without `limits` claims; None: no
        maximum. A thread beside it may claim the same number again to hand them over.
    :ivar resident: whether the worker stays and waits when no run can be claimed.
    :ivar limits: the limits at which it ends and its parent forks another.
    :ivar beside: functions that make the threads beside its runs; in a pool, only the first worker
        has any.
    :ivar adds_counts: whether it adds its counts to the tick's row, which another worker inserted.
    :ivar parent: the id of the process that forked the worker. The worker stops if it has ended.
    :ivar started_by: the server, such as Gunicorn, that started this resident worker, if one did.
    :ivar own_process: whether the process is the worker's own. If so, the worker ends it when a
        handler does not end.
    :ivar tick_id: the row of ``job_ticks`` that each heartbeat marks as seen.
    :ivar is_watched: whether features are notified of the runs.
    :ivar handed: the id and token of the only run to begin, which was handed to an executor. Then
        nothing is claimed from the queue.
    :ivar elsewhere: the queues whose runs executors execute instead of this worker.
    :ivar lease: how long its claims hold, in seconds; None for the setting.
    :ivar rates: the rates by task; None for those of the code.
    :ivar books: the connection that is lent to the keeper; None for a new one.
    """

    worker: str
    until: float = float("inf")
    max_runs: int | None = None
    queues: tuple[str, ...] = ()
    resident: bool = False
    limits: Limits | None = None
    beside: tuple[Callable[[State, WorkOptions, Keeper], Beside], ...] = ()
    adds_counts: bool = False
    parent: int | None = None
    started_by: str = ""
    own_process: bool = False
    tick_id: int | None = None
    is_watched: bool = True
    news: News = unheard
    handed: tuple[int, str] | None = None
    elsewhere: frozenset[str] = frozenset()
    lease: float | None = None
    rates: Mapping[str, Rate] | None = None
    books: Bookkeeping | None = None
