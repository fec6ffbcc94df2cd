"""Runs of chosen queues that Celery's workers execute instead of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...core.app_state import State
    from ...core.worker.keeper import Keeper
    from ...core.worker.work_options import WorkOptions
    from .hand_over import HandOver


def beside(state: State, options: WorkOptions, keeper: Keeper) -> HandOver:
    """Return a thread that hands runs over to Celery while a worker works."""
    from .hand_over import HandOver

    return HandOver(state, options, keeper.flag)
