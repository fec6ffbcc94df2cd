"""What an operator does: each a POST that changes something, says so, and leads back to a page.

The guard has seen to the right and to the origin before anything here is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import request
from flask.typing import ResponseReturnValue

from .. import operations
from ..errors import CronJobsError, DatabaseTrouble, NotFound, TablesMissing
from ..log import logger
from ..report import RunFilter
from ..report.humanize import plural
from ..state import state_of
from ..text import one_line
from .params import MAX_ID, needed, text
from .render import back

#: How many runs one click retries: a web server ends requests that take long.
MOST = 10_000
_LONGEST_ACTOR = 100


def retry(run_id: int) -> ResponseReturnValue:
    """Queue a run again."""

    def act() -> str:
        operations.retry(state_of(), _known(run_id), actor=actor())
        return f"Run {run_id} is queued again. The next tick takes it up."

    return _back_with(act, "run", run_id=run_id)


def cancel(run_id: int) -> ResponseReturnValue:
    """Cancel a run."""

    def act() -> str:
        change = operations.cancel(state_of(), _known(run_id), actor=actor())
        if change.status == "running":
            return f"Run {run_id} was asked to stop. Its worker follows within seconds."
        return f"Run {run_id} is cancelled."

    return _back_with(act, "run", run_id=run_id)


def run_now() -> ResponseReturnValue:
    """Queue a run of a definition, due now."""
    name = needed(request.form, "name")

    def act() -> str:
        run_id = operations.run_now(state_of(), name, actor=actor(), tasks=False)
        return f"Run {run_id} of {name} is queued. The next tick takes it up."

    return _back_with(act, "overview", _anchor="definitions")


def pause() -> ResponseReturnValue:
    """Pause a definition."""
    name = needed(request.form, "name")

    def act() -> str:
        operations.pause(state_of(), name, actor=actor())
        return f"{name} is paused. Its slots pass by until it is resumed."

    return _back_with(act, "overview", _anchor="definitions")


def resume() -> ResponseReturnValue:
    """Resume a definition."""
    name = needed(request.form, "name")

    def act() -> str:
        if operations.resume(state_of(), name, actor=actor()):
            return f"{name} is resumed, from its next slot on."
        return f"{name} was not paused."

    return _back_with(act, "overview", _anchor="definitions")


def retry_group() -> ResponseReturnValue:
    """Queue again the dead runs of one task that ended with one type of error."""
    group = RunFilter(
        status="dead",
        task=needed(request.form, "task"),
        # Without a type is a group too; without the field would be all of the task's.
        error_type=text({"error_type": "", **request.form}, "error_type", empty=""),
    )

    def act() -> str:
        result = operations.retry_many(state_of(), group, actor=actor(), most=MOST)
        are = "is" if result.changed == 1 else "are"
        said = f"{plural(result.changed, 'run')} of {group.task} {are} queued again."
        if result.left:
            said += f" {result.left:,} had moved on already."
        if result.beyond:
            are = "is" if result.beyond == 1 else "are"
            said += f" {result.beyond:,} more {are} dead; retry again for the next ones."
        return said

    return _back_with(act, "overview", _anchor="dead")


def effect_done() -> ResponseReturnValue:
    """Settle an effect in doubt: it was done."""
    key = needed(request.form, "key")

    def act() -> str:
        operations.effect_done(state_of(), key, actor=actor())
        return f"{key} is noted as done. It will not be done again."

    return _back_with(act, "effects")


def effect_redo() -> ResponseReturnValue:
    """Settle an effect in doubt: it was not done."""
    key = needed(request.form, "key")

    def act() -> str:
        operations.effect_redo(state_of(), key, actor=actor())
        return f"{key} is free. The next run that wants it does it."

    return _back_with(act, "effects")


def actor() -> str:
    """Who acts: what the app's `actor` says, else from where the request came. Never raises."""
    state = state_of()
    named = ""
    if state.actor is not None:
        try:
            named = str(state.app.ensure_sync(state.actor)() or "")
        except Exception:
            logger.exception("actor() raised, so the log names the address instead")
    # A line break in it would forge a line of the log.
    return one_line(named or f"the pages, from {request.remote_addr}")[:_LONGEST_ACTOR]


def _back_with(act: Callable[[], str], endpoint: str, **values: Any) -> ResponseReturnValue:
    """Act, and lead to a page that says what came of it.

    :raises NotFound: what it was about is not there; `TablesMissing` and `DatabaseTrouble` too.
    """
    try:
        return back(endpoint, act(), **values)
    except (NotFound, TablesMissing, DatabaseTrouble):
        raise
    except (CronJobsError, TypeError) as error:
        return back(endpoint, f"Nothing was changed. {error}", "bad", **values)


def _known(run_id: int) -> int:
    if run_id > MAX_ID:
        raise NotFound(f"There is no run {str(run_id)[:20]}.")
    return run_id
