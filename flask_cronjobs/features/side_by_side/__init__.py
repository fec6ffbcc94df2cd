"""Async handlers that run side by side on one event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import Flask

from ...core.current import in_event_loop

if TYPE_CHECKING:
    from ...core.app_state import State
    from ...core.worker.context import RunnerContext
    from .async_loop import AsyncLoop


def loop(context: RunnerContext) -> AsyncLoop | None:
    """Return the loop for handlers that run side by side; None if no task has such a handler."""
    tasks = tasks_of(context.state)
    if not tasks:
        return None
    from .async_loop import AsyncLoop

    return AsyncLoop(context, tasks)


def tasks_of(state: State) -> dict[str, int]:
    """Return the tasks whose handlers run side by side, each with its limit of runs at once.

    Tasks with ``atomic=True`` are left out, since the end of the handler must be the end of all its
    work. All tasks are left out if ``CRONJOBS_ASYNC_AT_ONCE`` is 1, if the app has its own way to
    call async handlers, if this thread runs an event loop, or if app contexts on one event loop
    would share one session.
    """
    app, at_once = state.app, state.settings.async_at_once
    own_way = getattr(app.async_to_sync, "__func__", None) is not Flask.async_to_sync
    if at_once == 1 or own_way or not state.db.side_by_side:
        return {}
    tasks = state.registry.tasks.values()
    limits = {
        task.name: min(at_once, task.options.async_at_once or at_once)
        for task in tasks
        if task.is_async and not task.options.atomic
    }
    return {} if limits and in_event_loop() else limits  # A notebook runs an event loop.
