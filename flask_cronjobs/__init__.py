"""Flask-CronJobs: scheduled and background work, woken by cron, refereed by the app's database."""
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "AtomicCommit",
    "Batch",
    "BatchClosed",
    "BatchCounts",
    "Cancelled",
    "ConfigError",
    "CronJobs",
    "CronJobsError",
    "CurrentRun",
    "DatabaseTrouble",
    "Discard",
    "EffectInDoubt",
    "Interruption",
    "KeyConflict",
    "LeaseLost",
    "NotFound",
    "PayloadError",
    "Retry",
    "RetryLater",
    "RunIds",
    "Schedule",
    "ScheduleError",
    "SetupError",
    "ShuttingDown",
    "Snooze",
    "StateConflict",
    "Suspended",
    "TablesMissing",
    "Task",
    "TaskError",
    "TickReport",
    "TimedOut",
    "UnknownTask",
    "WorkerLost",
    "current_run",
    "in_run",
    "in_worker",
    "lease_lost",
    "run_cancelled",
    "run_dead",
    "run_failed",
    "run_started",
    "run_succeeded",
    "slot_skipped",
    "tick_finished",
]

if TYPE_CHECKING:
    from .core.current import CurrentRun, current_run, in_run, in_worker
    from .core.tasks.retry import Retry
    from .errors import *
    from .extension import CronJobs
    from .features.batches.batch import Batch
    from .log import __version__ as __version__
    from .schedule import Schedule
    from .signals import *
    from .task import Task
    from .types import BatchCounts, RunIds, TickReport
else:
    # pytest imports this package at every start, for its plugin, so modules are imported late.
    _MODULES = {
        **dict.fromkeys(("CurrentRun", "current_run", "in_run", "in_worker"), "core.current"),
        "Batch": "features.batches.batch",
        "CronJobs": "extension",
        "Retry": "core.tasks.retry",
        "Schedule": "schedule",
        "Task": "task",
        "__version__": "log",
        **dict.fromkeys(("BatchCounts", "RunIds", "TickReport"), "types"),
    }

    def __getattr__(name):
        if name not in (*__all__, *_MODULES):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = _MODULES.get(name, "signals" if name.islower() else "errors")
        value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
