"""A worker without a keeper, in the thread of a test; and one run alone, which it performs."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, cast

from sqlalchemy import Connection, select

from ..db.shared_connection import SharedBookkeeping
from ..engine.worker.claims import WorkerClaims
from ..engine.worker.context import RunnerContext
from ..engine.worker.held_runs import Leases, ProgressRequest
from ..engine.worker.interrupts import HandlerInterrupter
from ..engine.worker.options import WorkOptions
from ..engine.worker.runner import Runner
from ..engine.worker.watchdog import Watchdog
from ..errors import NotFound, RetryLater, SetupError, StateConflict
from ..jobs.batches.ending import end_batches
from ..jobs.definitions import rows as definitions
from ..jobs.definitions.rows import DefinitionRow
from ..jobs.definitions.scheduler import announce_slot, sync_definitions
from ..jobs.definitions.slots import record_slots
from ..jobs.runs.changes import prepare_run
from ..jobs.runs.current import CurrentRun
from ..jobs.runs.enqueue import enqueue_one
from ..jobs.runs.leases import progress as write_progress
from ..jobs.state import State
from ..log import worker_name
from ..models import JobRun
from ..registry.options import MOMENT, UNLIMITED, EnqueueOptions
from ..schedule import Schedule
from ..schedule.catchup import Slot, SlotPlan
from ..signals import announce
from ..text import did_you_mean
from ..types import Claim, Outcome, RecordedSlot

#: How many attempts one test may perform in a call: more look like a handler that enqueues itself.
MOST = 10_000


class InlineWorker:
    """Claims one run at a time, and performs it as any worker does.

    :param queues: claim from these only; none means all.
    :param raise_errors: raise what a handler raised, once it is recorded.
    :ivar counts: how many attempts came to which outcome.
    """

    def __init__(self, context: RunnerContext, queues: tuple[str, ...], raise_errors: bool) -> None:
        self.counts: Counter[str] = Counter()
        self._app = context.state.app
        self._context = context
        self._raise_errors = raise_errors
        # A test does not wait for its rate; only a key that is held back keeps its runs.
        unlimited = dict.fromkeys(context.state.registry.rates, UNLIMITED)
        options = WorkOptions(worker_name(), queues=queues, rates=unlimited)
        self._claims = WorkerClaims(context.books, context.state, options)
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
            claims = self._claims.claim([], 1, idle=True).claims
            if claims:
                return claims[0]
            if self._claims.exhausted:
                return None

    def perform(self, claim: Claim) -> None:
        """Perform *claim*, and record its outcome."""
        self._context.leases.extend([claim], time.monotonic())
        with self._around_handler():
            outcome = self._runner.perform(claim)
        self._context.leases.forget(claim)
        mailbox = cast("_Mailbox", self._context.mailbox)
        mailbox.write_progress(partial(write_progress, self._context.books))
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
        answer = self._claims.record([outcome])
        stored, recorded = answer.stored(outcome), outcome.id in answer.recorded
        self.counts[stored.kind if recorded else "lost"] += 1
        announce(self._app, stored, recorded)

    def _raise(self, outcome: Outcome) -> None:
        if self._context.interrupted is not None:
            raise self._context.interrupted
        # A handler that says RetryLater has decided something; it has not failed.
        decided = outcome.kind == "failed" and isinstance(outcome.exception, RetryLater)
        if self._raise_errors and outcome.exception is not None and not decided:
            raise outcome.exception


class _Mailbox(SimpleQueue[Any]):
    """Takes the progress of the handler at work. It is written when the handler has ended."""

    run: CurrentRun | None = None

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Keep the progress of *item*, and answer it at once."""
        if isinstance(item, ProgressRequest):
            self.run = item.run
            item.answered.put(None)

    def write_progress(self, write: Callable[[Claim, float, str | None], object]) -> None:
        """Pass the last progress to *write*, if there was any."""
        if self.run is not None:
            self.run.write_progress(write)
            self.run = None


@contextmanager
def inline_worker(
    state: State, queues: tuple[str, ...] = (), raise_errors: bool = True
) -> Generator[InlineWorker]:
    """Yield a worker for this block.

    No keeper renews its leases, so they hold as long as it works.
    """
    if isinstance(state.database, Connection):
        state.db.session().commit()  # Its savepoint must end before others begin.
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


def enqueue_alone(state: State, name: str, payload: Mapping[str, object], attempt: int) -> int:
    """Commit a run in a session of its own, and return its id."""
    with state.app.app_context():
        handler = state.registry.get(name)
        most = handler.retry_policy(state.settings.max_attempts).max_attempts
        if not 1 <= attempt <= most:
            raise ValueError(f"attempt is {attempt}, but a run of {name!r} has {most} at most.")
        # Of its own, so that no run of the same `unique` key stands for it.
        key = None if handler.options.unique is None else f"testing-{secrets.token_hex(8)}"
        options = EnqueueOptions(commit=True, idempotency_key=key)
        return enqueue_one(state, handler, handler.payload_from(payload), options).id


def perform_alone(
    state: State, run_id: int, values: Mapping[str, object], raise_errors: bool
) -> None:
    """Perform the run *run_id*, and no other: it has a queue of its own until it is claimed."""
    own = f"testing-{secrets.token_hex(8)}"
    with state.bookkeeping() as books:
        queue = loaded(state, run_id).queue
        prepare_run(books, run_id, queue=own, **values)
        with inline_worker(state, (own,), raise_errors) as worker:
            claim = worker.claim()
            prepare_run(books, run_id, queue=queue)
            if claim is None:
                raise StateConflict(
                    f"Run {run_id} cannot be claimed: as many runs of its concurrency key as may "
                    "are running already, or it is paused."
                )
            worker.perform(claim)


def loaded(state: State, run_id: int) -> JobRun:
    """Return a run as it is now, in ``db.session``."""
    found = state.db.session().get(JobRun, run_id, populate_existing=True)
    if found is None:
        raise NotFound(f"Run {run_id} was deleted.")
    return found


def find_definition(state: State, name: str) -> DefinitionRow:
    """Return a definition; if only the code has it, insert those of the code, as a tick does."""
    with state.bookkeeping() as books:
        found = definitions.find(books, name)
        if found is None and name in state.registry.declarations:
            sync_definitions(state, books, ())
            found = definitions.find(books, name)
    if found is None:
        hint = did_you_mean(name, state.registry.declarations)
        raise NotFound(f"There is no definition {name!r}.{hint}")
    return found


def slot_of(found: DefinitionRow, at: datetime | None) -> datetime:
    """Return *at*, or the next slot of a definition.

    :raises ValueError: its schedule does not name it.
    """
    schedule = Schedule(found.spec.schedule, found.spec.timezone)
    moment = schedule.next_after(found.now) if at is None else aware(at)
    if moment is None or not schedule.is_slot(moment):
        following = schedule.next_after(moment or found.now)
        raise ValueError(
            f"The schedule {found.spec.schedule!r} ({found.spec.timezone}) of {found.spec.name!r} "
            f"does not name {moment}. Next after that: {following}."
        )
    return moment


def record_slot(state: State, found: DefinitionRow, moment: datetime) -> RecordedSlot:
    """Insert the row of a definition's slot, and leave its watermark.

    :raises StateConflict: there is one already, or the definition is paused.
    """
    name, watermark = found.spec.name, found.next_run_at
    if watermark is None or found.paused:
        raise StateConflict(f"The definition {name!r} is paused, or has no slot to come.")
    # The watermark stays: the slots until then are owed as before.
    plan = SlotPlan(watermark, watermark, (Slot(moment),))
    with state.bookkeeping() as books:
        slots = record_slots(books, {found.id: plan})
    if not slots:
        raise StateConflict(f"The slot of {name!r} at {moment} has a run already.")
    announce_slot(state, slots[0])
    return slots[0]


def refuse_taken(state: State, found: DefinitionRow, moment: object) -> None:
    """Refuse a run of a definition for a time for which it has one.

    :raises StateConflict: it has.
    """
    taken = state.db.session().scalar(
        select(JobRun.id).filter_by(definition_id=found.id, scheduled_for=moment)
    )
    if taken is not None:
        raise StateConflict(
            f"The slot of {found.spec.name!r} at {moment} has a run already: {taken}. Leave "
            "scheduled_for out, or give another time."
        )


def aware(moment: datetime) -> datetime:
    """Return *moment*, a time.

    :raises ValueError: it is naive, or no time.
    """
    MOMENT.check("The time", moment, ValueError)
    return moment
