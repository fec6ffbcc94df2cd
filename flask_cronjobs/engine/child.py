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
from ..log import logger
from ..signals import notify
from ..state import State
from ..types import AtWork, Outcome, RecordedSlot, RunAtWork, stored_time
from .observer import Observer
from .worker.options import WorkOptions
from .worker.worker import work

#: The exit status of a worker that would fail again, because the tables are missing, say.
HOPELESS = 3
#: How long the last of what handlers printed may take to be written, in seconds.
FLUSH_WITHIN = 3.0
_encode = json.JSONEncoder(default=datetime.isoformat).encode


class PipeObserver(Observer):
    """Sends news from a forked worker to its parent. For any thread.

    Each piece is a line of JSON: its kind, and the fields of what a method received, in order. To
    name the fields, too, would take three times as long.
    """

    def __init__(self, writer: int, watch_every: float | None = None) -> None:
        self.watch_every = watch_every
        self._writer = writer
        self._lock = threading.Lock()

    def slot(self, slot: RecordedSlot) -> None:
        """Send *slot*."""
        self._send("slot", slot)

    def outcome(self, outcome: Outcome) -> None:
        """Send *outcome*, without what may be large or is no JSON."""
        self._send("outcome", _plain(outcome))

    def lost(self, outcome: Outcome) -> None:
        """Send *outcome*, likewise."""
        self._send("lost", _plain(outcome))

    def at_work(self, seen: AtWork) -> None:
        """Send *seen*."""
        self._send("at_work", seen)

    def end(self, error: str | None) -> None:
        """Send that the worker has ended, and what kept it from its work."""
        with suppress(OSError):  # The parent may be gone.
            self._send("end", error)

    def _send(self, kind: str, news: object) -> None:
        left = _encode((kind, news)).encode() + b"\n"
        with self._lock:
            while left:
                left = left[os.write(self._writer, left) :]


def _plain(outcome: Outcome) -> Outcome:
    kept = outcome.stack, outcome.result, outcome.exception, outcome.until
    if kept == (None, None, None, None):
        return outcome
    return outcome._replace(stack=None, result=None, exception=None, until=None)


def receive(observer: Observer, kind: str, news: Any) -> None:
    """Tell *observer* what a `PipeObserver` has sent, but for the worker's end."""
    if kind == "outcome":
        notify(observer.outcome, Outcome(*news))
    elif kind == "lost":
        notify(observer.lost, Outcome(*news))
    elif kind == "at_work":
        worker, runs, stopping = news
        seen = AtWork(worker, tuple(RunAtWork(*run) for run in runs), stopping)
        notify(observer.at_work, seen)
    else:
        slot = RecordedSlot(*news)
        notify(observer.slot, slot._replace(at=stored_time(slot.at)))


def be_worker(state: State, options: WorkOptions, told: PipeObserver) -> NoReturn:
    """Work in a forked process, and end it."""
    status = 1
    try:
        status = _work(state, options, told)
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


def _work(state: State, options: WorkOptions, told: PipeObserver) -> int:
    state.forget_connections()
    try:
        work(state, options, handle_signals=True)
    except CronJobsError as error:
        told.end(str(error))
        passing = isinstance(error, DatabaseTrouble) and error.transient
        return 1 if passing else HOPELESS
    except BaseException as error:
        logger.exception("The worker process %d failed; its runs come back by lease", os.getpid())
        told.end(f"A worker process failed: {error!r}")
        return 1
    told.end(None)
    return 0
