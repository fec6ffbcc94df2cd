"""Flask-CronJobs: scheduled and background work, woken by cron, refereed by the app's database."""

from __future__ import annotations

from .current_run import current_run, in_run
from .errors import (
    AtomicCommit,
    Cancelled,
    ConfigError,
    CronJobsError,
    DatabaseTrouble,
    Discard,
    EffectInDoubt,
    Interruption,
    KeyConflict,
    LeaseLost,
    NotFound,
    PayloadError,
    RetryLater,
    ScheduleError,
    SetupError,
    ShuttingDown,
    StateConflict,
    TablesMissing,
    TaskError,
    TimedOut,
    UnknownTask,
    WorkerLost,
)
from .extension import CronJobs
from .registry.options import NewRun
from .registry.retry import Retry
from .schedule import Schedule
from .signals import (
    lease_lost,
    run_cancelled,
    run_dead,
    run_failed,
    run_started,
    run_succeeded,
    slot_skipped,
    tick_finished,
)
from .task import Task
from .types import RunIds, TickReport

__version__ = "0.1.0"

__all__ = [
    "AtomicCommit",
    "Cancelled",
    "ConfigError",
    "CronJobs",
    "CronJobsError",
    "DatabaseTrouble",
    "Discard",
    "EffectInDoubt",
    "Interruption",
    "KeyConflict",
    "LeaseLost",
    "NewRun",
    "NotFound",
    "PayloadError",
    "Retry",
    "RetryLater",
    "RunIds",
    "Schedule",
    "ScheduleError",
    "SetupError",
    "ShuttingDown",
    "StateConflict",
    "TablesMissing",
    "Task",
    "TaskError",
    "TickReport",
    "TimedOut",
    "UnknownTask",
    "WorkerLost",
    "current_run",
    "in_run",
    "lease_lost",
    "run_cancelled",
    "run_dead",
    "run_failed",
    "run_started",
    "run_succeeded",
    "slot_skipped",
    "tick_finished",
]
