"""Async handlers at work side by side, on one event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import Flask

if TYPE_CHECKING:
    from ...core.app_state import State
    from ...core.worker.context import RunnerContext
    from .async_loop import AsyncLoop


def loop(context: RunnerContext) -> AsyncLoop | None:
    """Return what performs the runs of async handlers; None if none are side by side."""
    tasks = tasks_of(context.state)
    if not tasks:
        return None
    from .async_loop import AsyncLoop

    return AsyncLoop(context, tasks)


def tasks_of(state: State) -> dict[str, int]:
    """Return the tasks whose handlers run side by side, each with how many of its runs at once.

    ``atomic=True`` is left out: the end of one handler must be the end of all its work. So are all
    tasks if the app has its own way to call async handlers, this thread an event loop at work, or
    the app a session that contexts on one event loop cannot use side by side.
    """
    app, most = state.app, state.settings.async_at_once
    own_way = getattr(app.async_to_sync, "__func__", None) is not Flask.async_to_sync
    if most == 1 or own_way or not state.db.side_by_side:
        return {}
    tasks = state.registry.tasks.values()
    found = {
        task.name: min(most, task.options.async_at_once or most)
        for task in tasks
        if task.is_async and not task.options.atomic
    }
    return {} if found and _in_loop() else found


def _in_loop() -> bool:
    """Return whether this thread has an event loop at work, as a notebook has."""
    from asyncio import get_running_loop

    try:
        get_running_loop()
    except RuntimeError:
        return False
    return True
