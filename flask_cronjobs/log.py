"""The one logger of the package, and the one line for each change of a run's state."""

from __future__ import annotations

import logging

logger: logging.Logger = logging.getLogger("flask_cronjobs")

#: The event of an outcome that was dropped.
LOST = "lease lost"


def log_run(
    level: int,
    what: str,
    *,
    task: str,
    run_id: int,
    attempt: int,
    worker: str,
    seconds: float = 0.0,
    why: str | None = None,
) -> None:
    """One line for one change of a run's state, the same facts as ``extra=`` fields.

    Payloads are never logged. *seconds* is how long the attempt took.
    """
    if not logger.isEnabledFor(level):
        return
    milliseconds = round(seconds * 1000, 1)
    logger.log(
        level,
        "%s: task %s, run %d, attempt %d, worker %s, %g ms%s",
        what,
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
        },
    )
