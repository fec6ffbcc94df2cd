"""A thread that tells the observer which runs are at work, some times a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

from ...signals import notify
from ...types import AtWork, RunAtWork
from ..observer import Observer
from .at_work import AsyncRun, SyncRun
from .runner import Runner


class Watcher:
    """Calls `Observer.at_work`, if the observer wants that. A context manager.

    :param stopping: returns whether the worker was told to stop.
    """

    def __init__(self, runner: Runner, observer: Observer, stopping: Callable[[], bool]) -> None:
        self._runner = runner
        self._observer = observer
        self._stopping = stopping
        self._told: AtWork | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watcher:
        if self._observer.watch_every is not None:
            self._thread = threading.Thread(
                target=self._run,
                args=(self._observer.watch_every,),
                name="cronjobs-watcher",
                daemon=True,
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, every: float) -> None:
        while not self._stopped.wait(every):
            self._tell()
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        runs = tuple(_seen(working, now) for working in self._runner.at_work)
        seen = AtWork(os.getpid(), runs, self._stopping())
        if seen.runs or (self._told is not None and self._told.runs):
            notify(self._observer.at_work, seen)
        self._told = seen


def _seen(working: SyncRun | AsyncRun, now: float) -> RunAtWork:
    claim = working.claim
    fraction, message = working.run.reported or (None, None)
    return RunAtWork(
        claim.id, claim.job_type, claim.attempt, now - working.since, fraction, message
    )
