"""Execute runs in Celery's workers.

Cron, tables and pages stay as they are. A tick or a resident worker claims a run and sends its id
and token; a Celery process begins the run with them.
"""

# Celery and its parts have no type hints.
# pyright: reportMissingTypeStubs=false, reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from billiard.process import current_process
from celery import Celery
from celery.signals import worker_process_init
from flask import Flask
from kombu.exceptions import OperationalError

from ..core.app_state import state_of
from ..features.executors.executor import EXTENSION
from ..types import Claim

#: The name of the only Celery task, which receives the id and the token of a run.
TASK = "flask_cronjobs.perform"
#: Seconds that the workers may take to answer the doctor.
ANSWER_SECONDS = 2.0


def init(celery: Celery, app: Flask) -> None:
    """Let the workers of *celery* execute runs of *app*.

    Call it where the app makes its Celery app, in the processes that send and in the workers. A run
    goes to the Celery queue that has the name of its own queue.

    :param celery: the Celery app, with its broker. It needs no result backend.
    :param app: the Flask app; ``app.extensions["celery"]`` becomes *celery*.
    """

    def cronjobs_perform(run_id: int, token: str) -> None:
        from ..features.executors.perform import perform_handed

        with app.app_context():
            perform_handed(state_of(app), run_id, token, own_process=_own_process())

    # Acknowledge the message before the run begins, whatever the app's default is: the run's row is
    # the record, and RabbitMQ closes the channel of a message that stays unacknowledged for 30
    # minutes.
    task: Any = celery.task(name=TASK, shared=False, ignore_result=True, acks_late=False)
    app.extensions["celery"] = celery
    app.extensions[EXTENSION] = CeleryExecutor(celery, task(cronjobs_perform))
    worker_process_init.connect(_import_worker, weak=False)


def _import_worker(**_: object) -> None:
    """Import the modules that runs need, so that a process's first run need not wait for them."""
    import_module("..features.executors.perform", __package__)


class CeleryExecutor:
    """Sends runs as messages of a Celery app."""

    def __init__(self, celery: Any, task: Any) -> None:
        self._celery = celery
        self._task = task

    def send(self, queue: str, claims: Sequence[Claim]) -> None:
        """Send a message for each of *claims*; retry once, since a pooled connection may be dead.

        :raises Exception: an error of the transport's library.
        """
        try:
            self._send(queue, claims)
        except Exception:
            self._send(queue, claims)

    def _send(self, queue: str, claims: Sequence[Claim]) -> None:
        with self._celery.producer_or_acquire() as producer:
            # Redis gets them in one request. Kombu has had this since 5.7.
            batch: Any = getattr(producer, "batch", nullcontext)
            with batch():
                for claim in claims:
                    self._task.apply_async(
                        (claim.id, claim.token),
                        queue=queue,
                        producer=producer,
                        retry_policy={"max_retries": 1, "interval_start": 0},
                    )

    def check(self, queues: Collection[str]) -> Sequence[str]:
        """Return the faults: no worker answers, none consumes a queue, or one lacks the task."""
        try:
            workers = self._celery.control.inspect(timeout=ANSWER_SECONDS)
            queues_by_worker, tasks_by_worker = (
                workers.active_queues() or {},
                workers.registered() or {},
            )
        except (OperationalError, OSError) as error:
            return [f"Celery's broker cannot be reached: {type(error).__name__}: {error}"]
        return list(_wrong(queues, queues_by_worker, tasks_by_worker))


def _wrong(
    queues: Collection[str], queues_by_worker: dict[str, Any], tasks_by_worker: dict[str, Any]
) -> Iterator[str]:
    if not queues_by_worker:
        yield f"No Celery worker answered within {ANSWER_SECONDS:g} s"
        return
    names = {entry["name"] for entries in queues_by_worker.values() for entry in entries}
    for queue in queues:
        if queue not in names:
            yield f"No Celery worker consumes the queue {queue!r}: start one with -Q {queue}"
    for worker, tasks in sorted(tasks_by_worker.items()):
        queues_there = {entry["name"] for entry in queues_by_worker.get(worker, ())}
        if queues_there & set(queues) and TASK not in tasks:
            fault = f"does not know the task {TASK}: its code does not call init()"
            yield f"Celery's worker {worker} {fault}"


def _own_process() -> bool:
    """Return whether this is a process of Celery's prefork pool, which runs one task at a time."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and bool(current_process().daemon)
