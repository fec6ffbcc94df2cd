"""The runs at work: what the keeper sees of them, and what their handlers ask of it."""

from __future__ import annotations

import logging
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import TimedOut
from ...jobs.runs.current import CurrentRun
from ...log import log_run
from ...types import Claim, Outcome

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


class SyncRun(NamedTuple):
    """The run at work, for the keeper to watch.

    :ivar since: when it began, by `time.monotonic`.
    :ivar timeout: how long it may take, in seconds.
    """

    claim: Claim
    run: CurrentRun
    since: float
    timeout: float


class ProgressRequest(NamedTuple):
    """A handler reported progress through ``current_run``, or asked for a heartbeat.

    :ivar answered: receives None once the progress is written.
    """

    run: CurrentRun
    heartbeat: bool
    answered: SimpleQueue[None]


class AsyncRun:
    """A run whose async handler is at work. The runner's thread writes it, the keeper reads it.

    :ivar since: when it began, by `time.monotonic`.
    :ivar timeout: how long it may take, in seconds.
    :ivar error: by what it was interrupted last.
    :ivar told_at: when it was interrupted first.
    :ivar armed: whether the handler may be interrupted.
    :ivar outcome: what it has come to.
    :ivar dropped: whether its worker was ended by force or is broken, so that nobody waits for it.
    :ivar tasks: the tasks that the handler has begun.
    :ivar threads: its calls in threads of the default executor.
    """

    def __init__(self, claim: Claim, run: CurrentRun, timeout: float) -> None:
        self.claim = claim
        self.run = run
        self.since: float = time.monotonic()
        self.timeout = timeout
        self.error: BaseException | None = None
        self.told_at: float | None = None
        self.armed: bool = False
        self.outcome: Outcome | None = None
        self.dropped: bool = False
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.threads: set[Future[Any]] = set()

    @property
    def timed_out(self) -> TimedOut:
        """The exception of its timeout."""
        return TimedOut(f"the handler ran longer than its timeout of {self.timeout:g} s")

    def interrupt(self, error: BaseException) -> None:
        """Cancel the handler. In the loop's thread, while no handler is in a step."""
        self.note(error)
        if self.armed and self.task is not None:
            self.task.cancel()

    def note(self, error: BaseException) -> None:
        """Note that *error* interrupts it now."""
        self.error = error
        self.told_at = self.told_at or time.monotonic()

    def arm(self) -> None:
        """Let the handler be interrupted from now on.

        :raises BaseException: what has interrupted it already.
        """
        self.armed = True
        if self.error is not None:
            raise self.error


class Blocking(NamedTuple):
    """What blocks the event loop: it does not await.

    :ivar at_work: the run; None if it is not known.
    :ivar seconds: for how long it has been seen to.
    """

    at_work: AsyncRun | None
    seconds: float


def log_start(claim: Claim) -> None:
    """Log that *claim*'s run begins."""
    log_run(
        logging.INFO,
        "started",
        task=claim.job_type,
        run_id=claim.id,
        attempt=claim.attempt,
        worker=claim.token,
    )
