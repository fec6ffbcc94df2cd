"""What one worker does, and until when."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...jobs.runs.exchange import Front
from ...signals import News, unheard
from .limits import Limits
from .precedence import KeeperConnection


class MinuteWork(Protocol):
    """What the first worker of a process pool does each minute, in a thread of its own.

    So however long it takes, the leases of the runs are renewed.
    """

    def end(self, well: bool) -> None:
        """End the thread soon, and with it the last minute.

        :param well: whether the worker did its work. If not, the minute's row stays unfinished.
        """


class ResidentWorker(NamedTuple):
    """What minute work needs of the worker beside which it is done.

    :ivar listening: returns whether a NOTIFY wakes the worker.
    :ivar wake: lets the worker look for runs at once.
    :ivar fail: ends the worker, for an error that makes its work useless.
    """

    news: News
    listening: Callable[[], bool]
    wake: Callable[[], None]
    fail: Callable[[BaseException], None]


class WorkOptions(NamedTuple):
    """What one worker does, and until when.

    :ivar worker: the worker's name, ``host:pid``; its tokens begin with it.
    :ivar until: no run is claimed after this time of `time.monotonic`, but for a first claim.
    :ivar resident: whether the worker stays, and waits for more when nothing can be claimed.
    :ivar limits: after what it ends all the same, and its parent forks a fresh one.
    :ivar minute_work: starts what it does each minute. In a process pool, only the first worker
        has it.
    :ivar parent: the id of the process that forked the worker, without which it stops.
    :ivar may_kill: whether the worker may end its process when a handler does not end.
    :ivar tick_id: the row of ``job_ticks`` that each heartbeat marks as seen.
    :ivar watch_every: how often to tell which runs are at work, in seconds; None: never.
    :ivar pings: whether a definition may have a ping URL.
    :ivar handed: the id and token of the one run to begin, which was handed to an executor. Then
        nothing is claimed from the queue.
    :ivar elsewhere: the queues whose runs executors execute, so that this worker does not.
    :ivar hands_on: whether the worker hands the runs of those on to their executors.
    :ivar front: what a look at the queue has found before.
    :ivar lease: how long its claims hold, in seconds; None: as the settings say.
    :ivar books: the keeper's connection, which stays open if all went well; None: a new one.
    """

    worker: str
    until: float = float("inf")
    max_runs: int | None = None
    queues: tuple[str, ...] = ()
    resident: bool = False
    limits: Limits | None = None
    minute_work: Callable[[ResidentWorker], MinuteWork] | None = None
    parent: int | None = None
    may_kill: bool = False
    tick_id: int | None = None
    pings: bool = True
    news: News = unheard
    watch_every: float | None = None
    handed: tuple[int, str] | None = None
    elsewhere: frozenset[str] = frozenset()
    hands_on: bool = False
    front: Front = Front(may_find=True)
    lease: float | None = None
    books: KeeperConnection | None = None
