"""One run in a worker of an engine: begun by its token, then as in a tick."""

from __future__ import annotations

import os

from ..log import worker_name
from ..state import State, state_of
from ..store import Bookkeeping, Claims
from .worker.options import WorkOptions
from .worker.worker import work

#: The process that has forgotten the connections of the one that forked it.
_clean_process = 0


def perform_handed(
    state: State | None, run_id: int, token: str, own_process: bool = False
) -> str | None:
    """Begin a handed run and execute it; see `executors.perform`."""
    state = state_of() if state is None else state
    _forget_connections(state)
    options = WorkOptions(
        worker=worker_name(), max_runs=1, may_kill=own_process, handed=(run_id, token)
    )
    counts = work(state, options)
    if counts:
        return next(iter(counts))
    # Paused meanwhile, or of a task that this code does not have yet: let it wait again.
    with Bookkeeping(state.engine) as books:
        Claims(books).release_token(token, run_id)
    return None


def _forget_connections(state: State) -> None:
    """In a process that was forked, forget the connections of its parent, and close none."""
    global _clean_process
    pid = os.getpid()
    if pid in (state.pid, _clean_process):
        return
    _clean_process = pid
    with state.app.app_context():
        for engine in state.db.engines.values():
            engine.dispose(close=False)
