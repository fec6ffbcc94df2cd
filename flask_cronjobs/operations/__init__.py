"""The operator's actions, behind the pages, the commands and the methods of `CronJobs`.

The condition of every write says which rows it may change. If it changes none, the error explains
why. Every action is logged with the one who asked for it (*actor*, a text for people).
"""

from __future__ import annotations

from ..store.operations import Change
from .definitions import pause, remove, resume, run_now
from .maintenance import effect_done, effect_redo, health, prune
from .runs import (
    CANCEL,
    RETRY,
    Action,
    BulkResult,
    Progress,
    cancel,
    cancel_many,
    no_run,
    retry,
    retry_many,
)

__all__ = [
    "CANCEL",
    "RETRY",
    "Action",
    "BulkResult",
    "Change",
    "Progress",
    "cancel",
    "cancel_many",
    "effect_done",
    "effect_redo",
    "health",
    "no_run",
    "pause",
    "prune",
    "remove",
    "resume",
    "retry",
    "retry_many",
    "run_now",
]
