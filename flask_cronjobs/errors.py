"""Every error of the package, and the interruptions that it raises inside a handler.

Errors descend from `CronJobsError`; their messages say what happened, then what to do.
Interruptions descend from `BaseException`, so that a handler's ``except Exception`` lets them pass.
"""

from __future__ import annotations

from datetime import timedelta

MAX_DELAY = 366 * 86400


class CronJobsError(Exception):
    """The base of every error that Flask-CronJobs raises on purpose."""


class SetupError(CronJobsError, RuntimeError):
    """The call cannot be served as things stand: no app, no database, ``once`` inside itself."""


class ConfigError(CronJobsError, ValueError):
    """A ``CRONJOBS_*`` value that cannot be right; the message names it."""


class ScheduleError(CronJobsError, ValueError):
    """A cron text or a time zone that cannot be read, or that names no time at all."""


class TaskError(CronJobsError, ValueError):
    """A task or definition declared with options that cannot be right."""


class UnknownTask(CronJobsError, LookupError):
    """A task name that this app's registry does not hold."""


class PayloadError(CronJobsError, ValueError):
    """A payload that is not a plain JSON object, or too large; the message names the key."""


class NotFound(CronJobsError, LookupError):
    """No row has the id or the name that was asked for."""


class StateConflict(CronJobsError):
    """The row's status does not allow what was asked; nothing was changed."""


class TablesMissing(CronJobsError):
    """The job tables do not exist. Run: flask jobs admin init"""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or "The job tables do not exist. Run: flask jobs admin init")


class DatabaseTrouble(CronJobsError):
    """The database could not be used, and trying again did not help.

    :ivar transient: whether it is of a kind that passes: a lost connection, a lock.
    """

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class EffectInDoubt(CronJobsError):
    """A process died between an effect's mark and its result, and ``in_doubt`` says raise."""


class AtomicCommit(CronJobsError, RuntimeError):
    """A handler with ``atomic=True`` committed by itself."""


class RetryLater(CronJobsError):
    """Raised by a handler: end this attempt and try again after *delay*.

    :param delay: seconds (a number or a `timedelta`) until the run may be claimed again.
    :param reason: a short text for the operator, kept as the attempt's error.

    The attempt counts: a run that asks for later at its last attempt ends dead.
    """

    def __init__(self, delay: float | timedelta, reason: str = "asked to be tried later") -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not 0 <= seconds <= MAX_DELAY:
            raise ValueError(
                f"RetryLater: the delay is {delay!r}. Give seconds from 0 to {MAX_DELAY} (a year)."
            )
        super().__init__(reason)
        self.delay = seconds
        self.reason = reason


class Discard(CronJobsError):
    """Raised by a handler: this run is not wanted any more; end it as cancelled, without a retry.

    :param reason: a short text for the operator, kept as the run's last error.
    """

    def __init__(self, reason: str = "discarded by the handler") -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerLost(CronJobsError):
    """A run's lease ran out while it was running: its worker died, froze or lost the network."""


class Interruption(BaseException):
    """Raised inside a handler from outside of it; a `BaseException`, so few handlers swallow it."""


class TimedOut(Interruption):
    """The handler ran longer than its task's timeout."""


class Cancelled(Interruption):
    """An operator cancelled the run while its handler worked."""


class ShuttingDown(Interruption):
    """The worker must stop and its grace is over; the run is given back, not counted."""


class LeaseLost(Interruption):
    """The run's lease was lost to another worker; what this handler still does is not recorded."""
