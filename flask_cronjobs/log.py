"""The package's logger, and one log line for each change of a run."""

from __future__ import annotations

import logging
import os
import socket
import time
from textwrap import indent

from .text import one_line, printable
from .text.redaction import without_own_frames

logger: logging.Logger = logging.getLogger("flask_cronjobs")


def _clean(record: logging.LogRecord) -> bool:
    """Clean the text of *record*, which may come from rows and errors; return True to keep it.

    The message is one line. Below it, our redacted stack replaces that of the exception: it has no
    credentials and none of our frames, and it is indented to differ from other log lines.
    """
    stack: str | None = getattr(record, "cronjobs_stack", None)
    if stack is not None:
        record.exc_text = indent(printable(_of_the_app(stack)).rstrip(), "  ")
    if isinstance(record.args, tuple):
        record.args = tuple(_cleaned(value) for value in record.args)
    return True


def _of_the_app(stack: str) -> str:
    """Return *stack* without our frames, or all of it if it has no others: it may be our fault."""
    app_stack = without_own_frames(stack)
    return app_stack if "\n  File " in app_stack else stack


def _cleaned(value: object) -> object:
    return one_line(str(value)) if isinstance(value, (str, BaseException)) else value


logger.addFilter(_clean)

#: Seconds after which the log repeats that something is unavailable.
REPEAT_SECONDS = 60.0


class Outage:
    """Logs that something is unavailable, at once and then every minute, and that it is back.

    A service that comes and goes is logged at most once a minute, too.

    :ivar since: when the outage began, by `time.monotonic`; None while there is none.
    """

    since: float | None = None
    _said_at = float("-inf")

    @property
    def seconds(self) -> float:
        """The length of the outage so far, in seconds."""
        return 0.0 if self.since is None else time.monotonic() - self.since

    def say(self, message: str, *values: object, after: float = 0.0) -> None:
        """Note an outage, and log *message* unless one was logged in the last minute.

        :param after: log only if the outage has lasted for at least this many seconds.
        """
        now = time.monotonic()
        self.since = self.since or now
        if now - self.since >= after and now - self._said_at >= REPEAT_SECONDS:
            logger.warning(message, *values)
            self._said_at = now

    def over(self, service: str) -> None:
        """Note that the outage is over; if it was logged, log that *service* is back."""
        if self.since is not None and self._said_at >= self.since:
            logger.warning("%s is back, after %.0f s", service, self.seconds)
        self.since = None


#: The event for an outcome that was dropped.
LEASE_LOST = "lease lost"


__version__ = "0.1.0"


def worker_name() -> str:
    """Return this process's name, ``host:pid``, with which its tokens begin."""
    return f"{socket.gethostname()}:{os.getpid()}"


def log_run(
    level: int,
    event: str,
    *,
    task: str,
    run_id: int,
    attempt: int,
    worker: str | None = None,
    seconds: float = 0.0,
    why: str | None = None,
    actor: str | None = None,
    error: BaseException | None = None,
    stack: str | None = None,
) -> None:
    """Log one change of a run as one line and as ``extra=`` fields, without its payload.

    :param event: the event, such as an outcome's kind.
    :param worker: the worker's name or token; by default this process's name.
    :param seconds: how long the attempt took.
    :param why: a short reason.
    :param actor: the operator who asked for the change, if one did.
    :param error: the exception, for the record's ``exc_info``.
    :param stack: the text that is printed for the exception.
    """
    if not logger.isEnabledFor(level):
        return
    worker = worker or worker_name()
    milliseconds = round(seconds * 1000, 1)
    by, because = f" by {actor}" if actor else "", f": {why}" if why else ""
    logger.log(
        level,
        "%s%s: task %s, run %d, attempt %d, worker %s, %g ms%s",
        *(event, by, task, run_id, attempt, worker, milliseconds, because),
        extra={
            "cronjobs_event": event,
            "cronjobs_task": task,
            "cronjobs_run_id": run_id,
            "cronjobs_attempt": attempt,
            "cronjobs_worker": worker,
            "cronjobs_ms": milliseconds,
            **({"cronjobs_actor": actor} if actor else {}),
            **({"cronjobs_stack": stack} if error else {}),
        },
        exc_info=error,
    )


#: The actor if the caller names none.
DEFAULT_ACTOR = "Python"


def log_action(event: str, target: str, actor: str) -> None:
    """Log an action of an operator, such as the *event* ``paused``, and its *target*."""
    extra = {"cronjobs_event": event, "cronjobs_actor": actor}
    logger.info("%s by %s: %s", event, actor, one_line(target), extra=extra)
