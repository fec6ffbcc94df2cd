"""One run in a worker of an executor: begun by its token, then as in a tick."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import cached_property

from ..jobs.runs.claim import release_token
from ..jobs.runs.leases import database_fingerprint, refuse
from ..jobs.state import State, Throttle, state_of
from ..log import logger, worker_name
from ..types import HANDED
from .worker.options import KeeperConnection, WorkOptions
from .worker.worker import work

_LACKS = (
    "The worker {worker} does not have this task: its code is older than that of the ticks, or "
    "does not import it. Deploy the executor's workers before all that tick."
)
#: Warnings of messages that are refused: one in so many seconds, since somebody may send thousands.
_BETWEEN_WARNINGS = 60.0
_refused = Throttle()


def perform_handed(
    state: State | None, run_id: int, token: str, own_process: bool = False
) -> str | None:
    """Begin a handed run and execute it; see `executors.perform`."""
    state = state_of() if state is None else state
    state.forget_connections()
    books = _kept(state)
    if not _is_handed_by(token, books.database):
        _say_refused(run_id)
        return None
    options = WorkOptions(
        worker=worker_name(),
        max_runs=1,
        may_kill=own_process,
        handed=(run_id, token),
        books=books,
    )
    counts = work(state, options)
    if counts:
        return next(iter(counts))
    # Paused meanwhile, no longer first in its order, or of a task that this code lacks.
    lacks = _LACKS.format(worker=options.worker)
    with books.precedence.taken():
        task = refuse(books, run_id, token, tuple(state.registry.tasks), lacks)
        release_token(books, token, run_id)
    if task is not None:
        logger.warning("The task %s, run %d, was given back. %s", task, run_id, lacks)
    return None


def _say_refused(run_id: int) -> None:
    if _refused.ready():
        _refused.block_for(_BETWEEN_WARNINGS)
        logger.warning(
            "A message of the run %d is refused, since it comes from another database: two apps "
            "share a queue of a broker, or it is forged. Give each app a broker, or queues, of its "
            "own. Its owner hands the run on again after five leases.",
            run_id,
        )


class _KeptBooks(KeeperConnection):
    """The keeper's connection, which stays open for the next run: to open one takes longer."""

    @cached_property
    def database(self) -> str:
        """The database_fingerprint of its database."""
        with self.precedence.taken():
            return database_fingerprint(self)

    def __del__(self) -> None:
        """Close it when its thread has ended."""
        with suppress(Exception):
            self.close()


class _OfThread(threading.local):
    """What a thread keeps from run to run, by process and app."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, State], _KeptBooks] = {}


_of_thread = _OfThread()


def _kept(state: State) -> _KeptBooks:
    """Return the connection of this thread."""
    key = os.getpid(), state
    if key not in _of_thread.kept:
        _of_thread.kept[key] = _KeptBooks(state)
    return _of_thread.kept[key]


def _is_handed_by(token: str, database: str) -> bool:
    """Return whether *token* is of a run that was handed on from the *database* of a fingerprint.

    No other token is ever traded: that of a run at work may be seen by others.
    """
    return token.startswith(HANDED) and token.split(":")[2:3] == [database]
