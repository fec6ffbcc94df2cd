"""Execute runs in the workers of Celery."""

# Celery has no types, and neither have its parts.
# pyright: reportMissingTypeStubs=false, reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any, TypeVar

from billiard.process import current_process
from celery import Celery
from celery.signals import worker_process_init
from flask import Flask
from kombu.exceptions import ChannelError, OperationalError

from ..errors import SetupError
from ..jobs.state import state_of
from ..types import HandedRun
from . import Executor, perform

T = TypeVar("T")

#: The name of the one Celery task, to which the id and the token of a run are sent.
TASK = "flask_cronjobs.perform"
#: Where an app keeps its Celery app, as in Flask's documentation.
EXTENSION = "celery"
#: How long the workers may take to answer the doctor, in seconds.
ANSWER_WITHIN = 2.0


def init(celery: Celery, app: Flask) -> None:
    """Let the workers of *celery* execute runs of *app*.

    Call it where the app makes its Celery app, in the processes that send and in the workers. A run
    goes to the Celery queue that has the name of its own queue.

    :param celery: the Celery app, with its broker. It needs no result backend.
    :param app: the Flask app; ``app.extensions["celery"]`` becomes *celery*.
    """
    app.extensions[EXTENSION] = celery

    def cronjobs_perform(run_id: int, token: str) -> None:
        with app.app_context():
            perform(run_id, token, state_of(app), own_process=_own_process())

    # Acknowledged before it begins, whatever the app's default is: the run's row says what becomes
    # of it, and RabbitMQ closes the channel of a message that is not acknowledged for 30 minutes.
    task: Any = celery.task(name=TASK, shared=False, ignore_result=True, acks_late=False)
    task(cronjobs_perform)
    worker_process_init.connect(_import_worker, weak=False)


def _import_worker(**_: object) -> None:
    """Import what runs need, so that the first one of a process does not wait for it."""
    import_module("..engine.executor_worker", __package__)


def executor_of_app(app: Flask) -> CeleryExecutor:
    """Return the executor of *app*.

    :raises SetupError: there is no Celery app that `init` has seen.
    """
    celery = app.extensions.get(EXTENSION)
    if not isinstance(celery, Celery) or TASK not in celery.tasks:
        raise SetupError(
            "CRONJOBS_EXECUTORS names 'celery', but no Celery app is initialized on the app "
            f"{app.name!r}. Call flask_cronjobs.executors.celery.init(celery, app)."
        )
    return CeleryExecutor(celery)


class CeleryExecutor(Executor):
    """Sends runs as messages of a Celery app."""

    name: str = "celery"

    def __init__(self, celery: Celery) -> None:
        self._celery: Any = celery

    def send(self, runs: Sequence[HandedRun]) -> None:
        """Send a message for each of *runs*."""
        self._again_if_broken(lambda: self._send(runs))

    def _send(self, runs: Sequence[HandedRun]) -> None:
        task = self._celery.tasks[TASK]
        with self._celery.producer_or_acquire() as producer:
            # With Redis, in one request. Kombu has this since 5.7.
            together: Any = getattr(producer, "batch", nullcontext)
            with together():
                for run in runs:
                    task.apply_async(
                        (run.id, run.token),
                        queue=run.queue,
                        producer=producer,
                        # Once more, at once: the connection may be an old one.
                        retry_policy={"max_retries": 1, "interval_start": 0},
                    )

    def waiting(self, queue: str) -> int:
        """Return how many messages wait in Celery's *queue*."""
        return self._again_if_broken(lambda: self._count(queue))

    def _again_if_broken(self, ask: Callable[[], T]) -> T:
        """Return what *ask* gets of the broker; try twice: the connection may be old."""
        try:
            return ask()
        except Exception:  # Of the transport's library, whichever that is.
            return ask()

    def _count(self, queue: str) -> int:
        with self._celery.connection_or_acquire() as connection:
            connection.ensure_connection(max_retries=1)
            with connection.channel() as channel:
                try:
                    return int(channel.queue_declare(queue, passive=True).message_count)
                except ChannelError:  # There is no such queue yet.
                    return 0

    def check(self, queues: Sequence[str]) -> Sequence[str]:
        """Return what is wrong: no worker answers, none consumes a queue, or knows the task."""
        try:
            workers = self._celery.control.inspect(timeout=ANSWER_WITHIN)
            consumed, known = workers.active_queues() or {}, workers.registered() or {}
        except (OperationalError, OSError) as error:
            return [f"Celery's broker cannot be reached: {type(error).__name__}: {error}"]
        return list(_wrong(queues, consumed, known))


def _wrong(queues: Sequence[str], consumed: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    if not consumed:
        yield f"No worker of Celery answered within {ANSWER_WITHIN:g} s"
        return
    names = {each["name"] for of_worker in consumed.values() for each in of_worker}
    for queue in queues:
        if queue not in names:
            yield f"No worker of Celery consumes the queue {queue!r}: start one with -Q {queue}"
    for worker, tasks in sorted(known.items()):
        queues_there = {each["name"] for each in consumed.get(worker, ())}
        if queues_there & set(queues) and TASK not in tasks:
            yield f"Celery's worker {worker} does not know the task {TASK}: it lacks init()"


def _own_process() -> bool:
    """Return whether this is a process of Celery's prefork pool: it runs one task at a time."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and bool(current_process().daemon)
