"""One worker: a runner in this thread, and a keeper beside it, until nothing is left to do."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from ...db.connection import Bookkeeping
from ...db.statements import free_frames
from ...log import logger
from ...signals import notify
from .. import features
from ..app_state import State
from ..background import patched_by_gevent, switching_often
from .context import RunnerContext
from .held_runs import HeldRuns, Leases
from .interrupts import HandlerInterrupter
from .keeper import Keeper
from .listener import Listener
from .monitor import Watchdog
from .process_signals import StopFlag, handling_signals
from .runner import Runner
from .work_options import WorkOptions

#: The number of the keeper's statements that fit into a lease if each takes its whole time limit.
STATEMENTS_PER_LEASE = 8
#: Seconds for which the keeper's connection retries a statement before the keeper checks its runs.
RETRY_SECONDS = 0.5


def work(state: State, options: WorkOptions, handle_signals: bool = False) -> Counter[str]:
    """Claim and run what is due; return the number of attempts by outcome.

    :param handle_signals: stop gracefully at SIGTERM, SIGINT and SIGHUP; needs the main thread. In
        a worker of Celery it is False, even if the process is the worker's own: Celery handles
        these signals.
    :raises DatabaseTrouble: the database could not be used any more. Held runs are reclaimed when
        their leases end.
    """
    if warning := patched_by_gevent():
        logger.warning("%s", warning)
    features.prepare(state)
    leases = Leases(state.settings.lease)
    held_runs = HeldRuns(leases)
    flag = StopFlag(held_runs.wake)
    connection = options.books or Bookkeeping(state.engine)
    limit = max(1.0, state.settings.lease / STATEMENTS_PER_LEASE)
    with switching_often(), HandlerInterrupter(leases) as interrupter, ExitStack() as stack:
        stack.enter_context(connection.lent(RETRY_SECONDS, limit))
        watchdog = Watchdog(state.settings.lease, options.own_process)
        stack.callback(watchdog.disarm)
        listener = None
        if options.resident:
            listener = stack.enter_context(Listener(state.engine, held_runs.wake))
        context = RunnerContext(
            *(state, interrupter, watchdog, leases, held_runs.inbox, held_runs.mailbox),
            keyboard=not handle_signals,
            watchers=features.watch(state) if options.is_watched else (),
        )
        runner = Runner(context)
        keeper = Keeper(runner, options, held_runs, flag, listener, connection)
        context.gives_back = keeper.gives_back
        stack.enter_context(handling_signals(runner, flag, handle_signals))
        for make in options.beside:
            thread = make(state, options, keeper)
            thread.start()
            stack.callback(thread.end)
        _perform(keeper, runner)
    if runner.context.interrupted is not None:
        # Free the frames again: a frame can be freed only after it has ended, and now all have.
        free_frames(runner.context.interrupted)
        raise runner.context.interrupted
    if flag.error is not None:
        raise flag.error
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
