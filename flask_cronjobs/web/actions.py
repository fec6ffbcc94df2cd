"""The views that change something. Each is a POST that redirects to a page with a message.

The guard has checked the right to act and the origin of the request before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

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

#: How many runs one click retries: web servers end requests that take long.
MOST = 10_000
_LONGEST_ACTOR = 100
View: TypeAlias = Callable[..., ResponseReturnValue]


def action(endpoint: str, **values: Any) -> Callable[[Callable[..., str]], View]:
    """Turn a function that returns a message into a view that redirects to a page that shows it.

    :param endpoint: the page; it also gets the view's own arguments.
    :param values: more values for its URL.
    :raises NotFound: what is to be changed does not exist; `TablesMissing` and `DatabaseTrouble`
        are raised, too.
    """

    def decorate(act: Callable[..., str]) -> View:
        @wraps(act)
        def view(**route: Any) -> ResponseReturnValue:
            try:
                return back(endpoint, act(**route), **route, **values)
            except (NotFound, TablesMissing, DatabaseTrouble):
                raise
            except (CronJobsError, TypeError) as error:
                return back(endpoint, f"Nothing was changed. {error}", "bad", **route, **values)

        return view

    return decorate


@action("run")
def retry(run_id: int) -> str:
    """Queue a run again."""
    operations.retry(state_of(), _known(run_id), actor=actor())
    return f"Run {run_id} is queued again. The next tick runs it."


@action("run")
def cancel(run_id: int) -> str:
    """Cancel a run."""
    change = operations.cancel(state_of(), _known(run_id), actor=actor())
    if change.status == "running":
        return f"Run {run_id} was asked to stop. Its worker stops it within seconds."
    return f"Run {run_id} is cancelled."


@action("overview", _anchor="definitions")
def run_now() -> str:
    """Queue a run of a definition, due now."""
    name = needed(request.form, "name")
    run_id = operations.run_now(state_of(), name, actor=actor(), tasks=False)
    return f"Run {run_id} of {name} is queued. The next tick runs it."


@action("overview", _anchor="definitions")
def pause() -> str:
    """Pause a definition."""
    name = needed(request.form, "name")
    operations.pause(state_of(), name, actor=actor())
    return f"{name} is paused. Its slots are not run until it is resumed."


@action("overview", _anchor="definitions")
def resume() -> str:
    """Resume a definition."""
    name = needed(request.form, "name")
    if operations.resume(state_of(), name, actor=actor()):
        return f"{name} is resumed, from its next slot on."
    return f"{name} was not paused."


@action("overview", _anchor="definitions")
def remove() -> str:
    """Remove a definition that the code does not declare."""
    name = needed(request.form, "name")
    operations.remove(state_of(), name, actor=actor())
    return f"{name} is removed. Its runs stay."


@action("overview", _anchor="dead")
def retry_group() -> str:
    """Queue again the dead runs of one task that ended with one type of error."""
    group = RunFilter(
        status="dead",
        task=needed(request.form, "task"),
        # Empty means the runs without a type. Without a default, a missing field would mean all.
        error_type=text({"error_type": "", **request.form}, "error_type", empty=""),
    )
    result = operations.retry_many(state_of(), group, actor=actor(), most=MOST)
    are = "is" if result.changed == 1 else "are"
    message = f"{plural(result.changed, 'run')} of {group.task} {are} queued again."
    if result.left:
        message += f" {result.left:,} had changed meanwhile."
    if result.beyond:
        are = "is" if result.beyond == 1 else "are"
        message += f" {result.beyond:,} more {are} dead; retry again for the next ones."
    return message


@action("effects")
def effect_done() -> str:
    """Mark an effect in doubt as done."""
    key = needed(request.form, "key")
    operations.effect_done(state_of(), key, actor=actor())
    return f"{key} is marked as done. It will not be done again."


@action("effects")
def effect_redo() -> str:
    """Mark an effect in doubt as not done."""
    key = needed(request.form, "key")
    operations.effect_redo(state_of(), key, actor=actor())
    return f"{key} is marked as not done. The next run that needs it does it."


def actor() -> str:
    """Return who acts: what the app's `actor` returns, else the request's address. Never raises."""
    state = state_of()
    named = ""
    if state.actor is not None:
        try:
            named = str(state.app.ensure_sync(state.actor)() or "")
        except Exception:
            logger.exception("actor() raised, so the log names the address instead")
    # A line break would forge a line of the log.
    return one_line(named or f"the pages, from {request.remote_addr}")[:_LONGEST_ACTOR]


def _known(run_id: int) -> int:
    if run_id > MAX_ID:
        raise NotFound(f"There is no run {str(run_id)[:20]}.")
    return run_id
