"""The errors of the package, and the interruptions that it raises inside a handler.

Errors derive from `CronJobsError`. Each message says what happened, then what to do. Interruptions
derive from `BaseException`, so that ``except Exception`` does not catch them.
"""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import datetime, timedelta, timezone

MAX_DELAY_SECONDS = 366 * 86400
#: The earliest and the latest time that can be written in any time zone.
EARLIEST = datetime(1000, 1, 1, tzinfo=timezone.utc)
FARTHEST = datetime(9999, 12, 30, tzinfo=timezone.utc)
_MAX_MESSAGE_CHARACTERS = 6_000


class CronJobsError(Exception):
    """The base of every error that Flask-CronJobs raises on purpose.

    A long message is cut, since it may repeat a value of megabytes.

    >>> try:
    ...     jobs.get("send_reports")
    ... except CronJobsError as error:
    ...     print(error)
    No task is called 'send_reports'. Did you mean 'send_report'?
    """

    def __str__(self) -> str:
        message, half = super().__str__(), _MAX_MESSAGE_CHARACTERS // 2
        return message if len(message) <= 2 * half else f"{message[:half]} … {message[-half:]}"


class SetupError(CronJobsError, RuntimeError):
    """The call is not possible here; for example, there is no app or no usable database."""


class ConfigError(CronJobsError, ValueError):
    """A ``CRONJOBS_*`` value is invalid; the message names it."""


class ScheduleError(CronJobsError, ValueError):
    """A cron text or a time zone cannot be read, or the cron text never matches."""


class TaskError(CronJobsError, ValueError):
    """A task or a definition is declared with invalid options."""


class UnknownTask(CronJobsError, LookupError):
    """This app declares no task of that name."""


class PayloadError(CronJobsError, ValueError):
    """A payload is not a plain JSON object, is too large, or does not fit the annotations.

    The message names the key.
    """


class NotFound(CronJobsError, LookupError):
    """No row has the given id or name."""


class StateConflict(CronJobsError):
    """The row's status does not allow the change; nothing was changed."""


class BatchClosed(CronJobsError):
    """The batch is closed, so no run can join it any more."""


class KeyConflict(CronJobsError):
    """The idempotency key belongs to a run of another task; nothing was enqueued."""


class TablesMissing(CronJobsError):
    """Job tables are missing or have another version. Run: flask jobs admin init"""


class DatabaseTrouble(CronJobsError):
    """The database could not be used, and retries did not help.

    :ivar transient: whether the cause may be temporary, such as a lost connection or a lock.
    :ivar unknown: whether the server may have committed nevertheless, since its answer was lost.
    """

    def __init__(self, message: str, transient: bool = False, unknown: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        self.unknown = unknown


class EffectInDoubt(CronJobsError):
    """An effect is in doubt, and ``in_doubt="raise"`` was given."""


class AtomicCommit(CronJobsError, RuntimeError):
    """A handler with ``atomic=True``, or a step, called ``session.commit()``."""


class RetryLater(CronJobsError):
    """Raise this in a handler to end the attempt and retry the run after *delay*.

    :param delay: seconds (a number or a `timedelta`) until the run may be claimed again.
    :param reason: a short text for the operator, kept as the attempt's error.
    :param rate: whether to hold back all runs of the rate key for *delay*, as after a "429 Too Many
        Requests". The task needs a ``rate``.

    The attempt counts: a run that raises this in its last attempt becomes dead. `Snooze` does not
    count the attempt.

    >>> @jobs.task
    ... def fetch():
    ...     if current_run.attempt == 1:
    ...         raise RetryLater(300, "the bank asked us to wait")
    >>> run = fetch.using(commit=True).enqueue()
    >>> drain(jobs).failed
    1
    >>> run.status, run.last_error
    ('failed', 'the bank asked us to wait')
    """

    def __init__(
        self,
        delay: float | timedelta,
        reason: str = "asked to be tried later",
        *,
        rate: bool = False,
    ) -> None:
        super().__init__(reason)
        self.delay: float = _seconds("RetryLater", delay, 0)
        self.reason = reason
        self.rate = rate


class Snooze(CronJobsError):
    """Raise this in a handler to end the attempt without counting it, and to continue later.

    :param delay: seconds (a number or a `timedelta`, at least 1) until the run may be claimed
        again, or the aware time at which it may.
    :param reason: a short text for the operator, kept in the run's row until its next outcome.

    The run waits with as many attempts left as before, however often it is snoozed. To limit that,
    check ``current_run.snoozes``.

    >>> @jobs.task
    ... def import_report():
    ...     if current_run.snoozes == 0:
    ...         raise Snooze(600, "the report is not there yet")
    >>> run = import_report.using(commit=True).enqueue()
    >>> drain(jobs).snoozed
    1
    >>> run.status, run.attempts
    ('queued', 0)
    """

    def __init__(self, delay: float | timedelta | datetime, reason: str = "not ready yet") -> None:
        super().__init__(reason)
        self.until: datetime | None = _utc(delay) if isinstance(delay, datetime) else None
        self.delay: float = 1.0 if isinstance(delay, datetime) else _seconds("Snooze", delay, 1)
        self.reason = reason


class Discard(CronJobsError):
    """Raise this in a handler to end the run as cancelled, without a retry.

    :param reason: a short text for the operator, kept as the run's last error.

    >>> @jobs.task
    ... def charge(invoice_id):
    ...     raise Discard("there is no such invoice")
    >>> run = charge.using(commit=True).enqueue(812)
    >>> drain(jobs).cancelled
    1
    """

    def __init__(self, reason: str = "discarded by the handler") -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerLost(CronJobsError):
    """A run's lease ended while it was running: its worker died, froze or lost the network."""


class Interruption(BaseException):
    """The base of the exceptions that are raised inside a handler from outside.

    It is a `BaseException`, so that code that catches ``Exception`` does not swallow it.
    """


class TimedOut(Interruption):
    """The handler ran longer than its task's timeout."""


class Cancelled(Interruption):
    """An operator cancelled the run while its handler ran."""


class ShuttingDown(Interruption):
    """The worker must stop, and its grace period is over.

    The run is released, and the attempt is not counted.
    """


class Suspended(Interruption):
    """The run continues later from the step that it reached; the attempt is not counted.

    :ivar delay: seconds until the run continues, if the step's row does not record a time.
    """

    def __init__(self, message: str = "", delay: float = 0.0) -> None:
        super().__init__(message)
        self.delay: float = delay


class LeaseLost(Interruption):
    """The run's lease has ended, or is lost: another process has reclaimed the run, or soon may.

    If the run was reclaimed, this handler's outcome is not recorded. Otherwise the attempt fails.
    """


def _utc(moment: datetime) -> datetime:
    """Return *moment* in UTC, limited to the range of all databases, drivers and time zones."""
    if moment.utcoffset() is None:
        raise ValueError(
            f"Snooze: {str(moment)!r} has no time zone. Give an aware time, such as "
            "datetime.now(timezone.utc) + timedelta(hours=1), or seconds."
        )
    try:
        utc = moment.astimezone(timezone.utc)
    except OverflowError:  # The time in UTC is outside the years 1 to 9999.
        return FARTHEST if moment.year > EARLIEST.year else EARLIEST
    return min(max(utc, EARLIEST), FARTHEST)


def _seconds(name: str, delay: float | timedelta, least: int) -> float:
    seconds = math.nan
    with suppress(TypeError, ValueError):  # A Retry-After header is a number as a text.
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not least <= seconds <= MAX_DELAY_SECONDS:
        raise ValueError(
            f"{name}: the delay is {delay!r}. Give seconds from {least} to {MAX_DELAY_SECONDS} "
            "(a year), or a timedelta."
        )
    return seconds
