"""Perform one attempt of an async handler in a separate task; nothing it begins outlives it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from ... import signals
from ...core.background import end_fork
from ...core.current import run_here
from ...core.tasks.payload import kept_result
from ...core.worker.context import RunnerContext
from ...core.worker.outcomes import success
from ...db import failpoints
from ...db.statements import free_frames
from ...types import JSON, Outcome
from .async_run import AsyncRun

P = ParamSpec("P")
T = TypeVar("T")


async def attempt(context: RunnerContext, run: AsyncRun, handler: Callable[..., Any]) -> Outcome:
    """Call *handler* for *run*, and return the outcome.

    :raises BaseException: the error that the handler raised, or that interrupted it.
    """
    context.report_start(run.claim)
    before = run_here.set(run.run)
    try:
        result = await _call(context, run, handler)
    finally:
        context.clean_up_after(run.run)
        run_here.reset(before)
    return success(run.claim, result, run.run.warning, run.since)


async def _call(context: RunnerContext, run: AsyncRun, handler: Callable[..., Any]) -> JSON:
    state = context.state
    app_context = state.app.app_context()
    try:
        with app_context:
            try:
                value = await _armed(context, run, handler)
            finally:
                await _end_rest(run)
            result = kept_result(value, state.settings, str(run.claim))
    finally:
        state.db.close_session(app_context)
    return result


async def _armed(context: RunnerContext, run: AsyncRun, handler: Callable[..., Any]) -> object:
    pid = os.getpid()
    try:
        try:
            run.arm()
            signals.send(signals.run_started, context.state.app, claim=run.claim)
            failpoints.reach("before-handler")
            value: object = await handler(**run.run.payload)
            run.run.raise_again(at_end=True)
            failpoints.reach("after-handler")
        finally:
            if os.getpid() != pid:
                end_fork()
            run.armed = False
    except BaseException as error:
        run.armed = False  # A second interruption may have come just before.
        cause = run.run.cause_of(error)
        free_frames(error)
        if cause is not error:
            free_frames(cause)
            raise cause from None
        raise
    return value


async def _end_rest(run: AsyncRun) -> None:
    """Cancel the tasks that the handler left running; wait for them and for its threads."""
    for task in run.tasks:
        task.cancel()
    while pending := [*run.tasks, *map(asyncio.wrap_future, run.threads.copy())]:
        with suppress(asyncio.CancelledError):
            await asyncio.wait(pending)


class OwnedThreads(ThreadPoolExecutor):
    """A default executor that notes to which run its calls belong.

    :param threads: the largest number of threads.
    :param owner: returns the run in whose context it is called.
    """

    def __init__(self, threads: int, owner: Callable[[], AsyncRun | None]) -> None:
        super().__init__(threads, thread_name_prefix="cronjobs-async")
        self._owner = owner

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call *fn* in a thread."""
        future = super().submit(fn, *args, **kwargs)
        run = self._owner()
        if run is not None:
            run.threads.add(future)
            future.add_done_callback(run.threads.discard)
        return future
