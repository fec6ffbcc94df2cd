"""A tick by URL, for platforms whose cron can only call one."""

from __future__ import annotations

from contextvars import Context
from dataclasses import asdict

from flask import jsonify, request
from flask.typing import ResponseReturnValue

from ..engine.tick import TickOptions
from ..engine.tick import tick as run_tick
from ..errors import CronJobsError
from ..log import logger
from ..state import State, state_of
from ..types import TickReport
from .query import clamped


def tick() -> ResponseReturnValue:
    """Run one tick in this request and answer what it did; the guard has seen the token.

    ``?budget=SECONDS`` shortens the tick, for platforms that end long requests.
    """
    state = state_of()
    longest = int(state.settings.tick_budget) or 1
    budget = clamped(request.args, "budget", longest, longest)
    try:
        # A context of its own: handlers are to see neither the request nor the token in it.
        report = Context().run(_tick, state, TickOptions(budget=budget))
    except CronJobsError as error:
        logger.error("The tick by URL could not do its work: %s", error)
        return jsonify(error="The tick could not do its work. The log says why."), 503
    return jsonify(asdict(report))


def _tick(state: State, options: TickOptions) -> TickReport:
    with state.app.app_context():
        return run_tick(state, options)
