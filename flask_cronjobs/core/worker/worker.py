"""One worker: a runner in this thread, and a keeper beside it, until nothing is left to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from ...db.statements import free_frames
from ...log import logger
from ...signals import notify
from .. import features
from ..app_state import State
from ..background import patched_by_gevent, switching_often
from .admission import Listener, side_by_side_tasks
from .context import RunnerContext
from .held_runs import HeldRuns, Leases
from .interrupts import HandlerInterrupter
from .keeper import Keeper
from .process_signals import handling_signals
from .runner import Runner
from .watchdog import Watchdog
from .work_options import KeeperConnection, WorkOptions


def work(state: State, options: WorkOptions, handle_signals: bool = False) -> Counter[str]:
    """Claim and run what is due; return how many attempts came to which outcome.

    :param handle_signals: stop gracefully at SIGTERM, SIGINT and SIGHUP; needs the main thread.
    :raises DatabaseTrouble: the database could not be used any more. Held runs come back by lease.
    """
    if warning := patched_by_gevent():
        logger.warning("%s", warning)
    features.prepare(state)
    leases = Leases(state.settings.lease)
    held_runs = HeldRuns(leases)
    connection = options.books or KeeperConnection(state)
    with (
        switching_often(),
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
            watchers=features.watch(state) if options.is_watched else (),
        )
        runner = Runner(context, side_by_side_tasks(state))
        keeper = Keeper(runner, options, held_runs, listener, connection)
        context.to_stop = keeper.gives_back
        with (
            handling_signals(runner, keeper, handle_signals),
            _beside(state, options, keeper),
        ):
            _perform(keeper, runner)
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


def _perform(keeper: Keeper, runner: Runner) -> None:
    """Perform runs until none is left, and let the keeper end."""
    try:
        keeper.start()
        runner.run()
    finally:
        runner.left = True
        keeper.wake()
        if keeper.ident is not None:
            keeper.join()


@contextmanager
def _beside(state: State, options: WorkOptions, keeper: Keeper) -> Generator[None]:
    """Do beside the runs of this block what else this worker is to do.

    Each in a thread of its own: however long it takes, the leases of the runs are renewed.
    """
    with ExitStack() as stack:
        if options.minutes:
            from ..resident import ResidentMinutes

            minutes = ResidentMinutes(state, options, keeper)
            minutes.start()
            stack.callback(minutes.end)
        if options.hands_on:
            from ...features.executors.hand_over import HandOver

            hand_over = HandOver(state, options, keeper)
            hand_over.start()
            stack.callback(hand_over.end)
        yield
