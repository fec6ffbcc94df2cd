"""Execute runs in the workers of RQ."""

# RQ's types leave out what their containers hold.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any

from flask import Flask
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker

from ..errors import SetupError
from ..jobs.state import state_of
from ..types import HandedRun
from . import Executor, perform

#: Where an app keeps its connection.
EXTENSION = "cronjobs.rq"
#: For how long RQ keeps a job whose process died, in seconds. The run's row says what became of it.
KEEP_FAILED = 3600


def init(connection: Redis, app: Flask) -> None:
    """Let RQ's workers execute runs of *app*.

    A run goes to RQ's queue that has the name of its own queue. Start the workers inside an app
    context, as `perform_run` says.

    :param connection: to the Redis server of RQ.
    """
    app.extensions[EXTENSION] = connection


def perform_run(run_id: int, token: str) -> None:
    """Begin a run and execute it: the function of every job that is sent.

    RQ's worker forks a process for each job, which inherits the app context in which the worker was
    started: ``with app.app_context(): Worker(["reports"], connection=connection).work()``.
    """
    perform(run_id, token, state_of(), own_process=_own_process())


def executor_of_app(app: Flask) -> RQExecutor:
    """Return the executor of *app*.

    :raises SetupError: `init` was not called for it.
    """
    connection = app.extensions.get(EXTENSION)
    if connection is None:
        raise SetupError(
            "CRONJOBS_EXECUTORS names 'rq', but RQ is not initialized on the app "
            f"{app.name!r}. Call flask_cronjobs.executors.rq.init(connection, app)."
        )
    return RQExecutor(connection)


class RQExecutor(Executor):
    """Sends runs as jobs of RQ."""

    name: str = "rq"

    def __init__(self, connection: Redis) -> None:
        self._connection = connection

    def send(self, runs: Sequence[HandedRun]) -> None:
        """Enqueue a job for each of *runs*."""
        by_queue: dict[str, list[Any]] = {}
        for run in runs:
            job = Queue.prepare_data(
                perform_run,
                args=(run.id, run.token),
                timeout=-1,  # The run's own timeout counts.
                result_ttl=0,
                failure_ttl=KEEP_FAILED,
                description=f"{run.task}, run {run.id}",
            )
            by_queue.setdefault(run.queue, []).append(job)
        for name, jobs in by_queue.items():
            Queue(name, connection=self._connection).enqueue_many(jobs)

    def waiting(self, queue: str) -> int:
        """Return how many jobs wait in RQ's *queue*."""
        return int(Queue(queue, connection=self._connection).count)

    def check(self, queues: Sequence[str]) -> Sequence[str]:
        """Return which queues have no worker."""
        try:
            served = {
                name
                for worker in Worker.all(connection=self._connection)
                for name in worker.queue_names()
            }
        except RedisError as error:
            return [f"RQ's Redis server cannot be reached: {type(error).__name__}: {error}"]
        return [
            f"No worker of RQ serves the queue {queue!r}: start one for it"
            for queue in queues
            if queue not in served
        ]


def _own_process() -> bool:
    """Return whether this is a process that RQ forked for one job: it sets its signals so."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
