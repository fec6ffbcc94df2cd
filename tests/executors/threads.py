"""An executor of the tests' own: a pool of threads in this process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from flask import Flask

from flask_cronjobs.engine import executor_worker
from flask_cronjobs.executors import Executor, HandedRun, perform


class Threads(Executor):
    """Executes runs in threads; or keeps them, as a broker does.

    :ivar sent: all that was sent.
    :ivar away: what `send` raises, if anything.
    :ivar unreachable: what `waiting` raises, if anything.
    :ivar problems: what `check` finds.
    :ivar results: what `perform` returned or raised for each message.
    """

    name = "threads"

    def __init__(self, app: Flask, number: int = 4, keep: bool = False) -> None:
        self.app = app
        self.sent: list[HandedRun] = []
        self.away: Exception | None = None
        self.unreachable: Exception | None = None
        self.problems: list[str] = []
        self.keep = keep
        self._pool = ThreadPoolExecutor(number)
        self._futures: list[Future[str | None]] = []
        self._kept: list[dict[Any, Any]] = []

    def send(self, runs: Sequence[HandedRun]) -> None:
        self.sent += runs
        if self.away is not None:
            raise self.away
        if not self.keep:
            for run in runs:
                self.deliver(run)

    def waiting(self, queue: str) -> int:
        if self.unreachable is not None:
            raise self.unreachable
        return 0

    def check(self, queues: Sequence[str]) -> Sequence[str]:
        return self.problems

    def deliver(self, run: HandedRun) -> None:
        """Let a thread begin *run*."""
        self._futures.append(self._pool.submit(self._perform, run))

    def results(self) -> list[str | None]:
        """What came of all that was delivered so far."""
        wait(self._futures)
        return [future.result() for future in self._futures]

    def close(self) -> None:
        """End the threads, and close their connections, which records of the log may hold."""
        self._pool.shutdown()
        for kept in self._kept:
            for books in kept.values():
                books.close()

    def _perform(self, run: HandedRun) -> str | None:
        with self.app.app_context():
            self._kept.append(executor_worker._of_thread.kept)
            return perform(run.id, run.token)
