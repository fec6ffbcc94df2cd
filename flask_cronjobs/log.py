"""The one logger of the package, and the one line for each change of a run's state."""

from __future__ import annotations

import logging
import os
import socket

logger: logging.Logger = logging.getLogger("flask_cronjobs")

#: The event of an outcome that was dropped.
LOST = "lease lost"


def worker_name() -> str:
    """This process's name, at the head of its tokens: ``host:pid``."""
    return f"{socket.gethostname()}:{os.getpid()}"


def log_run(
    level: int,
    what: str,
    *,
    task: str,
    run_id: int,
    attempt: int,
    worker: str | None = None,
    seconds: float = 0.0,
    why: str | None = None,
    actor: str | None = None,
) -> None:
    """One line for one change of a run's state, the same facts as ``extra=`` fields.

    Payloads are never logged.

    :param worker: by default this process.
    :param seconds: how long the attempt took.
    :param actor: who asked for it, if an operator did.
    """
    if not logger.isEnabledFor(level):
        return
    worker = worker or worker_name()
    milliseconds = round(seconds * 1000, 1)
    logger.log(
        level,
        "%s%s: task %s, run %d, attempt %d, worker %s, %g ms%s",
        what,
        f" by {actor}" if actor else "",
        task,
        run_id,
        attempt,
        worker,
        milliseconds,
        f": {why}" if why else "",
        extra={
            "cronjobs_event": what,
            "cronjobs_task": task,
            "cronjobs_run_id": run_id,
            "cronjobs_attempt": attempt,
            "cronjobs_worker": worker,
            "cronjobs_ms": milliseconds,
            **({"cronjobs_actor": actor} if actor else {}),
        },
    )
