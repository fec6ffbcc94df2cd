"""The operator's actions, behind the pages, the commands and the methods of `CronJobs`.

The condition of every write says which rows it may change. If it changes none, the error explains
why. Every action is logged with the one who asked for it (*actor*, a text for people).
"""

from __future__ import annotations

from ..store.operations import Change
from .batches import cancel_batch, close_batch, retry_batch
from .definitions import QueuedRun, no_definition, pause, queue_run, remove, resume, run_now
from .maintenance import effect_done, effect_redo, health, prune
from .pauses import pause_work, queues, resume_work
from .payloads import retry_with, run_again
from .runs import (
    CANCEL,
    DISCARD,
    RETRY,
    Action,
    BulkResult,
    Progress,
    cancel,
    no_run,
    retry,
    retry_many,
)

__all__ = [
    "CANCEL",
    "DISCARD",
    "RETRY",
    "Action",
    "BulkResult",
    "Change",
    "Progress",
    "QueuedRun",
    "cancel",
    "cancel_batch",
    "close_batch",
    "effect_done",
    "effect_redo",
    "health",
    "no_definition",
    "no_run",
    "pause",
    "pause_work",
    "prune",
    "queue_run",
    "queues",
    "remove",
    "resume",
    "resume_work",
    "retry",
    "retry_batch",
    "retry_many",
    "retry_with",
    "run_again",
    "run_now",
]
