"""One worker: a runner in this thread, and a keeper beside it, until nothing is left to do.

SIGUSR1 is taken: by it, the parent of several workers passes SIGTERM on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from ...db.statements import at_keyboard, free_frames
from ...jobs.state import State
from ...log import logger
from ...signals import notify
from ...types import AtWork, RunAtWork
from ..announcer import Pings
from ..threads import Precedence, repeating
from .admission import Listener, side_by_side_tasks
from .context import RunnerContext
from .held_runs import HeldRuns, Leases, Working
from .interrupts import HandlerInterrupter, Watchdog
from .keeper import Keeper
from .options import Companion, ResidentWorker, WorkOptions
from .output import noting
from .runner import Runner

#: How a parent passes SIGTERM on to its workers. A service manager sends SIGTERM to a whole group.
#: Passed on as SIGTERM it would arrive twice, and the second ends a worker at once.
STOP_FROM_PARENT: signal.Signals = getattr(signal, "SIGUSR1", signal.SIGTERM)
#: SIGHUP, by which a terminal says that it was closed, unless it is ignored, as under nohup, or the
#: app's. It may come twice, from the shell and from the system, so it never ends a worker at once.
HANG_UP: tuple[signal.Signals, ...] = tuple(
    signal.Signals[name]
    for name in ("SIGHUP",)
    if hasattr(signal, name) and signal.getsignal(signal.Signals[name]) is signal.SIG_DFL
)
#: What stops a worker.
STOPPING = (signal.SIGTERM, signal.SIGINT, *HANG_UP, STOP_FROM_PARENT)


def work(state: State, options: WorkOptions, handle_signals: bool = False) -> Counter[str]:
    """Claim and run what is due; return how many attempts came to which outcome.

    :param handle_signals: stop gracefully at SIGTERM, SIGINT and SIGHUP; needs the main thread.
    :raises DatabaseTrouble: the database could not be used any more. Held runs come back by lease.
    """
    leases = Leases(state.settings.lease)
    held_runs = HeldRuns(leases)
    with (
        HandlerInterrupter(leases) as interrupter,
        Watchdog(state.settings.lease, options.may_kill) as watchdog,
        Listener(state.engine, held_runs.wake, enabled=options.resident) as listener,
    ):
        context = RunnerContext(
            state,
            interrupter,
            watchdog,
            leases,
            held_runs.inbox,
            held_runs.mailbox,
            keyboard=not handle_signals,
            pings=Pings(state) if options.pings else None,
            precedence=Precedence() if options.books is None else options.books.precedence,
        )
        runner = Runner(context, side_by_side_tasks(state))
        keeper = Keeper(runner, options, held_runs, listener)
        context.to_stop = keeper.gives_back
        with (
            noting(state, lambda: runner.at_work),
            _handling_signals(runner, keeper, interrupter, handle_signals),
            _beside(_minutes(options, listener, held_runs, keeper), keeper),
            _watching(runner, options, keeper),
        ):
            _perform(keeper, runner, _hand_over(state, options, keeper))
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


def _perform(keeper: Keeper, runner: Runner, hand_over: Companion | None) -> None:
    """Perform runs until none is left, and let the keeper end."""
    try:
        keeper.start()
        with _beside(hand_over, keeper):
            runner.run()
    finally:
        keeper.stop()
        if keeper.ident is not None:
            keeper.join()


def _minutes(
    options: WorkOptions, listener: Listener, held_runs: HeldRuns, keeper: Keeper
) -> Companion | None:
    """Return what does the work of each minute, if this worker is to do it."""
    if options.minute_work is None:
        return None
    return options.minute_work(
        ResidentWorker(
            news=options.news,
            listening=lambda: listener.listening,
            wake=held_runs.wake,
            fail=keeper.fail,
        )
    )


def _hand_over(state: State, options: WorkOptions, keeper: Keeper) -> Companion | None:
    """Return what hands runs on to executors, if this worker is to do it."""
    if not options.hands_on:
        return None
    from ..hand_over import HandOver

    return HandOver(state, options, lambda: keeper.stopping)


@contextmanager
def _beside(companion: Companion | None, keeper: Keeper) -> Generator[None]:
    """Let *companion*, if there is one, do its work beside the runs."""
    if companion is None:
        yield
        return
    companion.start()
    try:
        yield
    finally:
        companion.end(well=keeper.error is None)


@contextmanager
def _watching(runner: Runner, options: WorkOptions, keeper: Keeper) -> Generator[None]:
    """Tell which runs are at work, some times a second and at the end, if anybody asks for it."""
    if options.watch_every is None:
        yield
        return
    told = False

    def tell() -> None:
        nonlocal told
        now = time.monotonic()
        runs = tuple(_seen(working, now) for working in runner.at_work)
        if runs or told:
            notify(options.news, "at_work", AtWork(os.getpid(), runs, keeper.stopping))
        told = bool(runs)

    with repeating("cronjobs-watcher", options.watch_every, tell):
        yield


def _seen(working: Working, now: float) -> RunAtWork:
    claim = working.claim
    fraction, message = working.run.reported or (None, None)
    return RunAtWork(
        claim.id, claim.job_type, claim.attempt, now - working.since, fraction, message
    )


@contextmanager
def _handling_signals(
    runner: Runner, keeper: Keeper, interrupter: HandlerInterrupter, own_process: bool
) -> Generator[None]:
    """Stop the worker at signals in this block, in a process of its own; else at Ctrl-C.

    Ctrl-C interrupts a handler, and stops the worker in order where it hits our own code. Raised
    anywhere else, a KeyboardInterrupt could leave a keeper behind that renews a claim on which
    nobody works.
    """

    def interrupt(frame: FrameType | None) -> None:
        runner.context.interrupted = KeyboardInterrupt()
        keeper.stop()
        runner.interrupt_all(runner.context.interrupted)
        interrupter.raise_in_handler(runner.context.interrupted, frame)

    stopping = own_process and threading.current_thread() is threading.main_thread()
    with _stopping_at_signals(keeper) if stopping else at_keyboard(interrupt):
        yield


@contextmanager
def _stopping_at_signals(keeper: Keeper) -> Generator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        # The first signal asks. The second finds the default again, and ends the process at once.
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        keeper.stop()

    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, stop) for number in numbers}
    for each in {STOP_FROM_PARENT, *HANG_UP} - previous.keys():
        previous[each] = signal.signal(each, lambda number, frame: keeper.stop())
    if hasattr(signal, "pthread_sigmask"):
        # Whoever forked this process has blocked them until they can be handled.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
