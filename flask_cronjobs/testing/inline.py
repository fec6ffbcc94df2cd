"""A worker without a keeper, in the thread of a test."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any, cast

from sqlalchemy import Connection

from ..core.app_state import State
from ..core.current import CurrentRun
from ..core.leases import progress as write_progress
from ..core.tasks.rate import UNLIMITED
from ..core.worker.claims import WorkerClaims
from ..core.worker.context import RunnerContext
from ..core.worker.held_runs import Leases, ProgressRequest
from ..core.worker.interrupts import HandlerInterrupter
from ..core.worker.monitor import Watchdog
from ..core.worker.runner import Runner
from ..core.worker.work_options import WorkOptions
from ..db.shared_connection import SharedBookkeeping
from ..errors import RetryLater, SetupError
from ..features.batches.ending import end_batches
from ..log import worker_name
from ..signals import announce
from ..types import Claim, Outcome

#: The most attempts that a call performs. If there are more, a handler may enqueue itself.
MAX_ATTEMPTS = 10_000


class InlineWorker:
    """Claims one run at a time, and performs it as any worker does.

    :param queues: the queues to claim from; none for all.
    :param raise_errors: whether to raise a handler's error once it is recorded.
    :ivar counts: the number of attempts by outcome.
    """

    def __init__(self, context: RunnerContext, queues: tuple[str, ...], raise_errors: bool) -> None:
        self.counts: Counter[str] = Counter()
        self._app = context.state.app
        self._context = context
        self._raise_errors = raise_errors
        # Rates do not delay runs in tests, except while RetryLater holds back their rate key.
        unlimited = dict.fromkeys(context.state.registry.rates, UNLIMITED)
        options = WorkOptions(worker_name(), queues=queues, rates=unlimited)
        self._claims = WorkerClaims(context.books, context.state, options)
        self._runner = Runner(context)

    @property
    def wait(self) -> float:
        """The seconds until a due run with a rate key that is held back may begin, or infinity."""
        return self._claims.next_start - time.monotonic()

    def drain(self) -> None:
        """Perform all due runs until no more are due."""
        while (claim := self.claim()) is not None:
            if self.counts.total() >= MAX_ATTEMPTS:
                raise SetupError(
                    f"{MAX_ATTEMPTS} attempts were made, and more runs are due. Does a handler "
                    "enqueue itself again and again?"
                )
            self.perform(claim)

    def claim(self) -> Claim | None:
        """Claim the next run; return None if none is due."""
        while True:
            answer = self._claims.claim([], 1, idle=True)
            if answer.claims:
                return answer.claims[0]
            if answer.exhausted:
                return None

    def perform(self, claim: Claim) -> None:
        """Perform *claim*, and record its outcome."""
        self._context.leases.extend([claim], time.monotonic())
        books = self._context.books
        with books.around_handler() if isinstance(books, SharedBookkeeping) else nullcontext():
            outcome = self._runner.perform(claim)
        self._context.leases.forget(claim)
        mailbox = cast("_Mailbox", self._context.mailbox)
        mailbox.write_progress(partial(write_progress, books))
        self._record(outcome)
        if claim.batch_id is not None:
            end_batches(books, [claim.batch_id])
        self._raise(outcome)

    def _record(self, outcome: Outcome) -> None:
        answer = self._claims.record([outcome])
        stored_outcome, recorded = answer.stored(outcome), outcome.id in answer.recorded
        self.counts[stored_outcome.kind if recorded else "lost"] += 1
        announce(self._app, stored_outcome, recorded)

    def _raise(self, outcome: Outcome) -> None:
        if self._context.interrupted is not None:
            raise self._context.interrupted
        # A handler that raises RetryLater has made a decision; it has not failed.
        is_decision = outcome.kind == "failed" and isinstance(outcome.exception, RetryLater)
        if self._raise_errors and outcome.exception is not None and not is_decision:
            raise outcome.exception


class _Mailbox(SimpleQueue[Any]):
    """Keeps the progress of the running handler, which is written when the handler has ended."""

    run: CurrentRun | None = None

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Keep the progress of *item*, and answer the request at once."""
        if isinstance(item, ProgressRequest):
            self.run = item.run
            item.answered.put(None)

    def write_progress(self, write: Callable[[Claim, float, str | None], object]) -> None:
        """Pass the last progress to *write*, if there is any."""
        if self.run is not None:
            self.run.write_progress(write)
            self.run = None


@contextmanager
def inline_worker(
    state: State, queues: tuple[str, ...] = (), raise_errors: bool = True
) -> Generator[InlineWorker]:
    """Yield a worker for this block.

    There is no keeper to renew its leases, so none of them counts as ended while it works.
    """
    if isinstance(state.database, Connection):
        state.db.session().commit()  # The test's savepoint must end before others begin.
    leases = Leases(float("inf"))
    with _timer_kept(), HandlerInterrupter(leases) as interrupter:
        watchdog = Watchdog(state.settings.lease, enabled=False)
        context = RunnerContext(
            state, interrupter, watchdog, leases, SimpleQueue(), _Mailbox(), keyboard=True
        )
        with context.books:
            yield InlineWorker(context, queues, raise_errors)


@contextmanager
def _timer_kept() -> Generator[None]:
    """Restore SIGALRM's timer after this block, since both pytest-timeout and we use it."""
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and hasattr(signal, "setitimer")):
        yield
        return
    (remaining, interval), started = signal.getitimer(signal.ITIMER_REAL), time.monotonic()
    try:
        yield
    finally:
        if remaining:
            remaining = max(remaining - (time.monotonic() - started), 0.001)
            signal.setitimer(signal.ITIMER_REAL, remaining, interval)
