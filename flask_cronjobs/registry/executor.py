"""What executes the runs of a queue instead of our worker must offer, and which one a queue has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import cast

from flask import Flask

from ..config import EXECUTORS
from ..errors import SetupError
from ..types import HandedRun


class Executor(ABC):
    """Sends runs to what executes them. Derive from it for an executor of your own.

    `send` and `waiting` are called in one thread of a tick or of ``flask jobs work``.
    """

    name: str
    """What pages and commands call the executor: letters, digits, ``-`` and ``_``."""

    @abstractmethod
    def send(self, runs: Sequence[HandedRun]) -> None:
        """Let the executor's workers call `perform` for each of *runs*, once or more often.

        If this raises, all of them go back to the queue, and their attempts are not counted. Those
        that were sent all the same do nothing.
        """

    def waiting(self, queue: str) -> int:
        """Return how many messages of *queue* wait in the broker; 0 if it cannot be told.

        It may raise if the broker is away: then nothing is claimed.
        """
        return 0

    def check(self, queues: Sequence[str]) -> Sequence[str]:
        """Return what is wrong with the executor, for the command ``doctor``: a sentence for each.

        :param queues: the queues whose runs it executes.
        """
        return ()


def executor_of(app: Flask, given: object) -> Executor:
    """Return the executor that ``CRONJOBS_EXECUTORS`` has for a queue.

    :param given: an executor, or its name.
    :raises SetupError: its package is not installed, or it is not initialized on *app*.
    """
    if not isinstance(given, str):
        return cast("Executor", given)
    try:
        module = import_module(f"{EXECUTORS}.{given}")
    except ImportError as error:
        raise SetupError(
            f"CRONJOBS_EXECUTORS names {given!r}, which cannot be imported: {error}. "
            f"Install it: pip install 'Flask-CronJobs[{given}]'"
        ) from error
    return cast("Executor", module.executor_of_app(app))
