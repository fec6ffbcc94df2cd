"""A worker without a keeper: it claims, performs and records in the thread of a test."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any

from sqlalchemy import Connection

from ..current_run import CurrentRun
from ..engine.batches import end_batches
from ..engine.worker.at_work import ProgressRequest
from ..engine.worker.context import RunnerContext
from ..engine.worker.exchanger import Exchanger
from ..engine.worker.interrupts import HandlerInterrupter
from ..engine.worker.leases import Leases
from ..engine.worker.options import WorkOptions
from ..engine.worker.runner import Runner
from ..engine.worker.watchdog import Watchdog
from ..errors import RetryLater, SetupError
from ..log import worker_name
from ..signals import announce
from ..state import State
from ..store.claims import Claims
from ..store.leases import progress as write_progress
from ..store.shared import SharedBookkeeping
from ..types import Claim, Outcome

#: How many attempts one test may perform in a call: more look like a handler that enqueues itself.
MOST = 10_000


class InlineWorker:
    """Claims one run at a time, and performs it as any worker does.

    :param queues: claim from these only; none means all.
    :param raise_errors: raise what a handler raised, once it is recorded.
    :ivar counts: how many attempts came to which outcome.
    """

    def __init__(
        self, state: State, context: _Context, queues: tuple[str, ...], raise_errors: bool
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._app = state.app
        self._context = context
        self._raise_errors = raise_errors
        options = WorkOptions(worker_name(), queues=queues)
        self._exchanger = Exchanger(Claims(context.books), state, options)
        self._runner = Runner(context)

    def drain(self) -> None:
        """Perform what is due until nothing is."""
        while (claim := self.claim()) is not None:
            if self.counts.total() >= MOST:
                raise SetupError(
                    f"{MOST} attempts were made, and more runs are due. Does a handler enqueue "
                    "itself again and again?"
                )
            self.perform(claim)

    def claim(self) -> Claim | None:
        """Claim the next run; return None if none is due."""
        while True:
            claims = self._exchanger.exchange([], 1, idle=True).claims
            if claims:
                return claims[0]
            if self._exchanger.exhausted:
                return None

    def perform(self, claim: Claim) -> None:
        """Perform *claim*, and record its outcome."""
        self._context.leases.extend([claim], time.monotonic())
        with self._around_handler():
            outcome = self._runner.perform(claim)
        self._context.leases.forget(claim)
        if progress := self._context.mailbox.take_progress():
            write_progress(self._context.books, claim, *progress)
        self._record(outcome)
        if claim.batch_id is not None:
            end_batches(self._context.books, self._tell, [claim.batch_id])
        self._raise(outcome)

    def _tell(self, outcome: Outcome) -> None:
        announce(self._app, outcome, recorded=True)

    def _around_handler(self) -> AbstractContextManager[None]:
        books = self._context.books
        return books.around_handler() if isinstance(books, SharedBookkeeping) else nullcontext()

    def _record(self, outcome: Outcome) -> None:
        exchange = self._exchanger.record([outcome])
        stored, recorded = exchange.stored(outcome), outcome.id in exchange.recorded
        self.counts[stored.kind if recorded else "lost"] += 1
        announce(self._app, stored, recorded)

    def _raise(self, outcome: Outcome) -> None:
        if self._context.interrupted is not None:
            raise self._context.interrupted
        error, self._context.error = self._context.error, None
        if error is None or not self._raise_errors:
            return
        # A handler that says RetryLater or Discard has decided something; it has not failed.
        decided = outcome.kind == "failed" and isinstance(error, RetryLater)
        if outcome.kind in ("failed", "dead") and not decided:
            raise error


class _Mailbox(SimpleQueue[Any]):
    """Takes the progress of the handler at work. It is written when the handler has ended."""

    run: CurrentRun | None = None

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Keep the progress of *item*, and answer it at once."""
        if isinstance(item, ProgressRequest):
            self.run = item.run
            item.answered.put(None)

    def take_progress(self) -> tuple[float, str | None] | None:
        """Return the last progress, if there was any."""
        run, self.run = self.run, None
        return run.take_progress() if run is not None else None


class _Context(RunnerContext):
    """The context of an inline worker; keeps what a handler raised."""

    mailbox: _Mailbox
    error: BaseException | None = None

    def outcome(self, claim: Claim, error: BaseException, seconds: float) -> Outcome:
        """Return the outcome of an attempt that *error* ended after *seconds*."""
        self.error = error
        return super().outcome(claim, error, seconds)


@contextmanager
def inline_worker(
    state: State, queues: tuple[str, ...] = (), raise_errors: bool = True
) -> Generator[InlineWorker]:
    """Yield a worker for this block.

    No keeper renews its leases, so they hold as long as it works.
    """
    if isinstance(state.database, Connection):
        state.db.session.commit()  # Its savepoint must end before others begin.
    leases = Leases(float("inf"))
    with _timer_kept(), HandlerInterrupter(leases) as interrupter:
        watchdog = Watchdog(state.settings.lease, enabled=False)
        context = _Context(
            state, interrupter, watchdog, leases, SimpleQueue(), _Mailbox(), keyboard=True
        )
        with context.books:
            yield InlineWorker(state, context, queues, raise_errors)


@contextmanager
def _timer_kept() -> Generator[None]:
    """Set SIGALRM's timer again after this block: pytest-timeout uses it, and so do we."""
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and hasattr(signal, "setitimer")):
        yield
        return
    (left, interval), started = signal.getitimer(signal.ITIMER_REAL), time.monotonic()
    try:
        yield
    finally:
        if left:
            left = max(left - (time.monotonic() - started), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left, interval)
