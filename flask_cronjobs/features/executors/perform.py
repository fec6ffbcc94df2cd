"""Execute one run in a Celery worker: begin it with its token, then run it as in a tick."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import cached_property

from ...core.app_state import State, Throttle
from ...core.claim import release_token
from ...core.worker.work_options import WorkOptions
from ...core.worker.worker import work
from ...db.connection import Bookkeeping
from ...log import logger, worker_name
from ...types import HANDED_PREFIX
from .tokens import REFUSED_SECONDS, database_fingerprint, refuse

_LACKS = (
    "The worker {worker} does not have this task: its code is older than that of the ticks, or "
    "does not import it. Deploy Celery's workers before the processes that tick."
)

#: Seconds between two warnings about refused messages, since an attacker may send thousands.
_WARNING_SECONDS = 60.0
_refused = Throttle()


def perform_handed(state: State, run_id: int, token: str, own_process: bool = False) -> str | None:
    """Begin a handed run and execute it, inside an app context.

    Timeouts, heartbeats and retries work as in a tick. A handler can be interrupted only in the
    main thread.

    :param own_process: whether this process executes only this run and is replaced when it ends. If
        so, a handler that does not end is stopped by ending the process.
    :returns: how the attempt ended: ``"succeeded"``, ``"failed"`` and so on; None if the token no
        longer holds the run, so that nothing was done.
    :raises DatabaseTrouble: the database could not be used. The run comes back when its lease ends.
    """
    state.forget_connections()
    books = _kept_books(state)
    if not (token.startswith(HANDED_PREFIX) and token.split(":")[2:3] == [books.database]):
        _say_refused(run_id)  # A token of a running run is refused, too: it is not secret.
        return None
    options = WorkOptions(
        worker=worker_name(),
        max_runs=1,
        own_process=own_process,
        handed=(run_id, token),
        books=books,
    )
    counts = work(state, options)
    if not counts:
        _give_back(state, books, run_id, token, options.worker)
    return next(iter(counts), None)


class _KeptBooks(Bookkeeping):
    """The keeper's connection, kept open for the next run, since opening one takes time."""

    @cached_property
    def database(self) -> str:
        """The `database_fingerprint` of the connection's database."""
        return database_fingerprint(self)

    def __del__(self) -> None:
        """Close the connection when its thread has ended."""
        with suppress(Exception):
            self.close()


_of_thread = threading.local()


def _kept_books(state: State) -> _KeptBooks:
    """Return the connection of this thread."""
    owner = os.getpid(), state
    if getattr(_of_thread, "whose", None) != owner:
        _of_thread.whose, _of_thread.books = owner, _KeptBooks(state.engine)
    books: _KeptBooks = _of_thread.books
    return books


def _say_refused(run_id: int) -> None:
    if _refused.ready():
        _refused.block_for(_WARNING_SECONDS)
        logger.warning(
            "A message for the run %d was refused, since it comes from another database: either "
            "two apps share a queue of a broker, or the message is forged. Give each app its own "
            "broker or queues. The other app hands its run over again after five leases.",
            run_id,
        )


def _give_back(state: State, books: Bookkeeping, run_id: int, token: str, worker: str) -> None:
    """Release a run that is paused, not first in its order, or of an unknown task."""
    lacks = _LACKS.format(worker=worker)
    task = refuse(books, run_id, token, tuple(state.registry.tasks), lacks)
    release_token(books, token, run_id)
    if task is not None:
        logger.warning(
            "The task %s, run %d, was released, and is due again in %d s. %s",
            *(task, run_id, REFUSED_SECONDS, lacks),
        )
