"""What executes the runs of chosen queues instead of our worker, such as Celery.

Cron, tables and pages stay as they are. A tick or a resident worker claims a run and sends its id
and token through an `Executor`; a process of the executor calls `perform` with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry.executor import Executor
from ..types import HandedRun

if TYPE_CHECKING:
    from ..jobs.state import State

__all__ = ["Executor", "HandedRun", "perform"]


def perform(
    run_id: int, token: str, state: State | None = None, own_process: bool = False
) -> str | None:
    """Begin a handed run and execute it, in a worker of an executor.

    Call it inside an app context. Timeouts, heartbeats, retries and all else are as in a tick; only
    in the main thread a handler can be interrupted.

    :param own_process: whether this process executes nothing else meanwhile, and another replaces
        it when it ends. Then it is ended if a handler does not end by itself.
    :returns: how the attempt ended: ``"succeeded"``, ``"failed"`` and so on; None if the token does
        not hold the run any more, so that nothing was done.
    :raises DatabaseTrouble: the database could not be used. The run comes back by its lease.
    """
    from ..engine.executor_worker import perform_handed

    return perform_handed(state, run_id, token, own_process)
