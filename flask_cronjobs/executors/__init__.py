"""Engines that execute the runs of chosen queues, such as Celery.

Cron, tables and pages stay as they are. A tick or a resident worker claims a run and sends its id
and token through an `Executor`; a process of the engine calls `perform` with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from ..errors import SetupError
from ..types import HandedRun

if TYPE_CHECKING:
    from ..state import State

__all__ = ["Executor", "HandedRun", "perform"]


class Executor(ABC):
    """Sends runs to an engine. Derive from it for an engine of your own.

    `send` and `waiting` are called in one thread of a tick or of ``flask jobs work``.
    """

    name: str
    """What pages and commands call the engine: letters, digits, ``-`` and ``_``."""

    @abstractmethod
    def send(self, runs: Sequence[HandedRun]) -> None:
        """Let the engine's workers call `perform` for each of *runs*, once or more often.

        If this raises, all of them go back to the queue, and their attempts are not counted. Those
        that were sent all the same do nothing.
        """

    def waiting(self, queue: str) -> int:
        """Return how many messages of *queue* wait in the engine's broker; 0 if it cannot be told.

        It may raise if the broker is away: then nothing is claimed.
        """
        return 0

    def check(self, queues: Sequence[str]) -> Sequence[str]:
        """Return what is wrong with the engine, for the command ``doctor``: a sentence for each.

        :param queues: the queues whose runs it executes.
        """
        return ()


def perform(
    run_id: int, token: str, state: State | None = None, own_process: bool = False
) -> str | None:
    """Begin a handed run and execute it, in a worker of an engine.

    Call it inside an app context. Timeouts, heartbeats, retries and all else are as in a tick; only
    in the main thread a handler can be interrupted.

    :param own_process: whether this process executes nothing else meanwhile, and another replaces
        it when it ends. Then it is ended if a handler does not end by itself.
    :returns: how the attempt ended: ``"succeeded"``, ``"failed"`` and so on; None if the token does
        not hold the run any more, so that nothing was done.
    :raises DatabaseTrouble: the database could not be used. The run comes back by its lease.
    """
    from ..engine.handed import perform_handed

    return perform_handed(state, run_id, token, own_process)


def executor_of(state: State, queue: str) -> Executor:
    """Return the executor of a queue that has one.

    :raises SetupError: its package is not installed, or it is not initialized on the app.
    """
    given = state.settings.executors[queue]
    if not isinstance(given, str):
        return cast("Executor", given)
    try:
        module = import_module(f".{given}", __name__)
    except ImportError as error:
        raise SetupError(
            f"CRONJOBS_EXECUTORS names {given!r}, which cannot be imported: {error}. "
            f"Install it: pip install 'Flask-CronJobs[{given}]'"
        ) from error
    return cast("Executor", module.executor_of_app(state.app))
