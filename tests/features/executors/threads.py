"""A pool of threads in this process that replaces Celery in tests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from flask import Flask

from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.features.executors import perform as executor_worker
from flask_cronjobs.features.executors.executor import EXTENSION
from flask_cronjobs.types import Claim


class Threads:
    """Executes runs in threads, or keeps them as a broker does.

    :ivar sent: everything that was sent.
    :ivar away: the error that `send` raises, if any.
    :ivar problems: the problems that `check` finds.
    """

    def __init__(self, app: Flask, keep: bool = False) -> None:
        self.app = app
        self.sent: list[Claim] = []
        self.away: Exception | None = None
        self.problems: list[str] = []
        self.keep = keep
        self._pool = ThreadPoolExecutor(4)
        self._futures: list[Future[str | None]] = []
        self._kept: list[Any] = []
        app.config["CRONJOBS_EXECUTORS"] = {"far": "celery"}
        app.extensions[EXTENSION] = self

    def send(self, queue: str, claims: Sequence[Claim]) -> None:
        assert queue == "far"
        self.sent += claims
        if self.away is not None:
            raise self.away
        if not self.keep:
            for claim in claims:
                self.deliver(claim)

    def check(self, queues: Collection[str]) -> Sequence[str]:
        return self.problems

    def deliver(self, claim: Claim) -> None:
        """Let a thread begin the run of *claim*."""
        self._futures.append(self._pool.submit(self._perform, claim))

    def results(self) -> list[str | None]:
        """Return the results of everything that was delivered so far."""
        wait(self._futures)
        return [future.result() for future in self._futures]

    def close(self) -> None:
        """End the threads, and close their connections, which log records may hold."""
        self._pool.shutdown()
        for books in self._kept:
            books.close()

    def _perform(self, claim: Claim) -> str | None:
        with self.app.app_context():
            try:
                return executor_worker.perform_handed(state_of(), claim.id, claim.token)
            finally:
                self._kept.append(executor_worker._of_thread.books)
