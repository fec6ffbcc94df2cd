"""One attempt of an async handler, in a task of its own: from its begin to its outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ... import failpoints, signals
from ...current_run import CurrentRun, enter_run
from ...registry.payload import kept_result
from ...store.frames import free_frames
from ...types import JSON, Outcome
from .at_work import AsyncRun
from .context import RunnerContext
from .outcomes import success
from .output import make_ready
from .owned_work import end_rest


async def attempt(
    context: RunnerContext,
    run: AsyncRun,
    handler: Callable[..., Any],
    request_write: Callable[[CurrentRun, bool], None],
) -> None:
    """Call *handler* for *run*, and note what came of it in ``run.outcome``.

    :param request_write: asks the keeper to write the run's progress and output.
    :raises BaseException: the run was dropped.
    """
    try:
        context.begin(run.claim)
        result, warning = await _enter(context, run, handler, request_write)
    except BaseException as error:
        if run.dropped:
            raise
        run.outcome = failure(context, run, error)
    else:
        run.outcome = success(run.claim, result, warning, run.since)


def failure(context: RunnerContext, run: AsyncRun, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that *error* ended."""
    if isinstance(error, asyncio.CancelledError):
        error = run.error or error
    return context.outcome(run.claim, error, time.monotonic() - run.since)


async def _enter(
    context: RunnerContext,
    run: AsyncRun,
    handler: Callable[..., Any],
    request_write: Callable[[CurrentRun, bool], None],
) -> tuple[JSON, str | None]:
    leave = enter_run(run.run)
    try:
        return await _call(context, run, handler), run.run.warning
    finally:
        if run.run.output is not None:
            make_ready(run.run.output)
        if run.run.has_progress or run.run.output is not None:
            request_write(run.run, False)
        leave()


async def _call(context: RunnerContext, run: AsyncRun, handler: Callable[..., Any]) -> JSON:
    state = context.state
    app_context = state.app.app_context()
    try:
        with app_context:
            try:
                value = await _armed(context, run, handler)
            finally:
                await end_rest(run)
            result = kept_result(value, state.settings.max_payload_bytes, str(run.claim))
    finally:
        context.forget_session(app_context)
    return result


async def _armed(context: RunnerContext, run: AsyncRun, handler: Callable[..., Any]) -> object:
    try:
        run.arm()
        signals.send(signals.run_started, context.state.app, claim=run.claim)
        failpoints.reach("before-handler")
        value: object = await handler(**run.run.payload)
        failpoints.reach("after-handler")
        return value
    except BaseException as error:
        run.armed = False
        free_frames(error)
        raise
    finally:
        run.armed = False
