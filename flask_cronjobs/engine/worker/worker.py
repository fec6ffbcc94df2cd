"""One worker: a runner in this thread, and a keeper beside it, until nothing is left to do."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from ...db.deadlines import free_frames
from ...jobs.state import State
from ...log import logger
from ...signals import notify
from ...types import AtWork, Claim, RunAtWork
from ..pings import Pings
from .admission import Admission, side_by_side_tasks
from .context import RunnerContext
from .held_runs import AsyncRun, HeldRuns, Leases, SyncRun
from .interrupts import HandlerInterrupter, Watchdog
from .keeper import Keeper
from .monitor import RunMonitor
from .options import ResidentWorker, WorkOptions
from .output import noting
from .pace import Listener
from .process_signals import handling_signals
from .runner import Runner


def work(state: State, options: WorkOptions, handle_signals: bool = False) -> Counter[str]:
    """Claim and run what is due; return how many attempts came to which outcome.

    :param handle_signals: stop gracefully at SIGTERM, SIGINT and SIGHUP; needs the main thread.
    :raises DatabaseTrouble: the database could not be used any more. Held runs come back by lease.
    """
    inbox: SimpleQueue[Claim | None] = SimpleQueue()
    mailbox: SimpleQueue[Any] = SimpleQueue()
    leases = Leases(state.settings.lease)
    held_runs = HeldRuns(inbox, mailbox, leases)
    side_by_side = side_by_side_tasks(state)
    with (
        HandlerInterrupter(leases) as interrupter,
        Watchdog(state.settings.lease, options.may_kill) as watchdog,
        Listener(state.engine, held_runs.wake, enabled=options.resident) as listener,
    ):
        keyboard = not handle_signals
        pings = Pings(state) if options.pings else None
        precedence = None if options.books is None else options.books.precedence
        context = RunnerContext(
            state, interrupter, watchdog, leases, inbox, mailbox, keyboard, pings, precedence
        )
        runner = Runner(context, side_by_side)
        monitor = RunMonitor(state, runner, interrupter, watchdog, options.may_kill)
        admission = Admission(state, side_by_side)
        keeper = Keeper(state, runner, options, held_runs, monitor, listener, admission)
        with (
            noting(state, lambda: runner.at_work),
            handling_signals(runner, keeper, interrupter, handle_signals),
            _minute_work(options, held_runs, listener, keeper),
            _watching(runner, options, lambda: monitor.stop_at is not None),
        ):
            _perform(state, options, runner, keeper)
    if runner.context.interrupted is not None:
        # Once more: now all frames that it passed through have ended.
        free_frames(runner.context.interrupted)
        raise runner.context.interrupted
    if keeper.error is not None:
        raise keeper.error
    if keeper.limit is not None:
        logger.info("The worker %s ends %s, and a fresh one follows", options.worker, keeper.limit)
        notify(options.news, "replaced", f"worker {options.worker}  {keeper.limit}")
    return keeper.counts


def _perform(state: State, options: WorkOptions, runner: Runner, keeper: Keeper) -> None:
    """Perform runs until none is left, and let the keeper end."""
    try:
        keeper.start()
        with _handing_on(state, options, keeper):
            runner.run()
    finally:
        keeper.stop()
        if keeper.ident is not None:
            keeper.join()


@contextmanager
def _minute_work(
    options: WorkOptions, held_runs: HeldRuns, listener: Listener, keeper: Keeper
) -> Generator[None]:
    """Do the minute work beside the runs, if this worker is to do it."""
    if options.minute_work is None:
        yield
        return
    minutes = options.minute_work(
        ResidentWorker(
            news=options.news,
            listening=lambda: listener.listening,
            wake=held_runs.wake,
            fail=keeper.fail,
        )
    )
    try:
        yield
    finally:
        minutes.end(well=keeper.error is None)


@contextmanager
def _handing_on(state: State, options: WorkOptions, keeper: Keeper) -> Generator[None]:
    """Hand runs on to executors beside the runs here, if this worker is to do it."""
    if not options.hands_on:
        yield
        return
    from ..hand_over import HandOver

    hand_over = HandOver(state, options, lambda: keeper.stopping)
    hand_over.start()
    try:
        yield
    finally:
        hand_over.end(well=keeper.error is None)


@contextmanager
def _watching(
    runner: Runner, options: WorkOptions, stopping: Callable[[], bool]
) -> Generator[None]:
    """Tell which runs are at work, some times a second and at the end, if anybody asks for it."""
    every = options.watch_every
    if every is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        told = False
        while True:
            last = ended.wait(every)
            now = time.monotonic()
            runs = tuple(_seen(working, now) for working in runner.at_work)
            if runs or told:
                notify(options.news, "at_work", AtWork(os.getpid(), runs, stopping()))
            told = bool(runs)
            if last:
                return

    thread = threading.Thread(target=watch, name="cronjobs-watcher", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _seen(working: SyncRun | AsyncRun, now: float) -> RunAtWork:
    claim = working.claim
    fraction, message = working.run.reported or (None, None)
    return RunAtWork(
        claim.id, claim.job_type, claim.attempt, now - working.since, fraction, message
    )
