"""A forked worker of a process pool: what it tells its parent, and how it begins and ends."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from ..errors import CronJobsError, DatabaseTrouble
from ..jobs.state import State
from ..log import logger
from ..signals import News, notify
from ..types import AtWork, Outcome, RecordedSlot, RunAtWork, stored_time
from .worker.options import WorkOptions
from .worker.worker import work

#: The exit status of a worker that would fail again, because the tables are missing, say.
HOPELESS = 3
#: How long the last of what handlers printed may take to be written, in seconds.
FLUSH_WITHIN = 3.0
_encode = json.JSONEncoder(default=datetime.isoformat).encode


class Pipe:
    """Sends news from a forked worker to its parent. For any thread.

    Each piece is a line of JSON: its kind, and the fields of its value, in order. To name the
    fields, too, would take three times as long.
    """

    def __init__(self, writer: int) -> None:
        self._writer = writer
        self._lock = threading.Lock()

    def __call__(self, kind: str, value: Any) -> None:
        """Send *value*; of an outcome not what may be large or is no JSON."""
        if kind in ("pause", "flush"):
            return
        if kind in ("outcome", "lost"):
            value = _plain(value)
        left = _encode((kind, value)).encode() + b"\n"
        with self._lock:
            while left:
                left = left[os.write(self._writer, left) :]

    def end(self, error: str | None) -> None:
        """Send that the worker has ended, and what kept it from its work."""
        with suppress(OSError):  # The parent may be gone.
            self("end", error)


def _plain(outcome: Outcome) -> Outcome:
    kept = outcome.stack, outcome.result, outcome.exception, outcome.until
    if kept == (None, None, None, None):
        return outcome
    return outcome._replace(stack=None, result=None, exception=None, until=None)


def receive(news: News, kind: str, sent: Any) -> None:
    """Pass on to *news* what came through a `Pipe`, but for the worker's end."""
    value: Any
    if kind == "at_work":
        worker, runs, stopping = sent
        value = AtWork(worker, tuple(RunAtWork(*run) for run in runs), stopping)
    elif kind == "slot":
        slot = RecordedSlot(*sent)
        value = slot._replace(at=stored_time(slot.at))
    else:
        value = Outcome(*sent)
    notify(news, kind, value)


def be_worker(state: State, options: WorkOptions, pipe: Pipe) -> NoReturn:
    """Work in a forked process, and end it."""
    status = 1
    try:
        status = _work(state, options, pipe)
    finally:
        # In a thread: if nobody reads what handlers printed, the worker ends all the same.
        last = threading.Thread(target=flush_output, daemon=True)
        last.start()
        last.join(FLUSH_WITHIN)
        os._exit(status)


def flush_output() -> None:
    """Write what is left in the buffers of standard output and standard error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # A full disk, a closed pipe.
            stream.flush()


def _work(state: State, options: WorkOptions, pipe: Pipe) -> int:
    state.forget_connections()
    try:
        work(state, options, handle_signals=True)
    except CronJobsError as error:
        pipe.end(str(error))
        passing = isinstance(error, DatabaseTrouble) and error.transient
        return 1 if passing else HOPELESS
    except BaseException as error:
        logger.exception("The worker process %d failed; its runs come back by lease", os.getpid())
        pipe.end(f"A worker process failed: {error!r}")
        return 1
    pipe.end(None)
    return 0
