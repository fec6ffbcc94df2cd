"""The views that change something, and the forms for arguments.

A change is a POST that redirects to a page with a message. The guard has already checked the right
to act and, for a POST, the origin of the request.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, TypeAlias

from flask import abort, request
from flask.typing import ResponseReturnValue
from werkzeug.wrappers import Response

from ..core.app_state import State, state_of
from ..core.tasks.declared_task import DeclaredTask
from ..core.tasks.payload import check_typed_text
from ..errors import CronJobsError, DatabaseTrouble, NotFound, PayloadError, TablesMissing
from ..features.typed import forms
from ..insights import effects
from ..insights import run_payloads as payloads
from ..insights.batch_actions import cancel_batch, close_batch, retry_batch
from ..insights.run_actions import CANCEL, DISCARD, RETRY
from ..insights.run_detail import RunView, find_run, start_of
from ..insights.run_filters import RunFilter
from ..insights.schedule_actions import KINDS, Target, pause, queue_run, remove, resume
from ..insights.schedule_detail import read_arguments
from ..log import logger
from ..text import one_line
from ..text.redaction import HIDDEN, redacted
from ..types import JSON, json_object, stored_json
from .params import needed, text
from .render import Message, back, reader_page, sent_from

#: The maximum number of runs that one click changes, since web servers end long requests.
RUNS_A_CLICK = 10_000
#: The prefix of the names of fields that hold arguments.
FIELD = "argument:"
View: TypeAlias = Callable[..., ResponseReturnValue]


#: The result of an action: the message, or a response.
Done: TypeAlias = "str | Message | Response"


def action(endpoint: str, *names: str) -> Callable[[Callable[..., Done]], View]:
    """Turn a function that acts into a view that redirects to a page with a message.

    If the sent payload is invalid, the view shows the form again.

    :param endpoint: the page to redirect to, unless the form names its own; its URL also has the
        view's arguments.
    :param names: the form's fields that the function gets as arguments; the first must not be
        empty.
    :raises NotFound: the object of the action does not exist. `TablesMissing` and
        `DatabaseTrouble` are raised, too.
    """

    def decorate(act: Callable[..., Done]) -> View:
        @wraps(act)
        def view(**route: Any) -> ResponseReturnValue:
            page, values = sent_from(endpoint)
            fields = {name: text(request.form, name) or "" for name in names}
            if names:
                needed(request.form, names[0])
            try:
                result = act(**route, **fields)
            except (NotFound, TablesMissing, DatabaseTrouble):
                raise
            except (CronJobsError, TypeError) as error:
                if "payload" in request.form:
                    return edit(error=error, **route) if route else prepare(error)
                result = Message("bad", f"Nothing was changed. {error}")
            if isinstance(result, str):
                result = Message("good", result)
            return back(page, result, **values, **route) if isinstance(result, Message) else result

        return view

    return decorate


@action("run")
def run_retry(run_id: int) -> str:
    """Queue a run again, with the payload that was typed, if any."""
    payload = _typed_payload()
    if payload is None:
        RETRY.one(state_of(), run_id, actor())
    else:
        payloads.retry_with(state_of(), run_id, payload, actor())
    return f"Run {run_id} is queued again. {start_of(state_of(), run_id)}"


@action("run")
def run_again(run_id: int) -> Response:
    """Queue a new run like another one, with the same payload or another."""
    new = payloads.run_again(state_of(), run_id, _typed_payload(), actor())
    start = start_of(state_of(), new)
    message = Message("good", f"This is a new run, like run {run_id}. {start}")
    return back("run", message, run_id=new)


@action("run")
def run_cancel(run_id: int) -> str:
    """Cancel a run."""
    if CANCEL.one(state_of(), run_id, actor()).status == "running":
        return f"Run {run_id} was asked to stop. Its worker stops it within seconds."
    return f"Run {run_id} is cancelled."


@action("run")
def run_discard(run_id: int) -> str:
    """Discard a dead run, which ends as cancelled."""
    DISCARD.one(state_of(), run_id, actor())
    return f"Run {run_id} is discarded."


@action("status", "name")
def definition_run(name: str) -> Done:
    """Queue a run, due now, of a definition or, if a payload was sent, of a task."""
    payload = _typed_payload()
    run = queue_run(state_of(), name, payload, actor(), tasks=payload is not None)
    if run.is_new:
        result = f"Run {run.id} of {name} is queued. {start_of(state_of(), run.id)}"
    else:
        result = f"Nothing was queued: run {run.id} of {name} already has the same key."
    message = Message("good", result, run_id=run.id)
    return message if payload is None else back("run", message, run_id=run.id)


@action("status", "name")
def definition_remove(name: str) -> str:
    """Remove a definition that the code does not declare."""
    remove(state_of(), name, actor())
    return f"{name} is removed. Its runs stay."


@action("status")
def work_pause() -> str:
    """Pause a definition, task or queue."""
    target = _target()
    pause(state_of(), target, actor())
    then = (
        "Slots that pass meanwhile are not run."
        if target.kind == "definition"
        else "Its runs wait until it is resumed."
    )
    return f"The {target.kind} {target.name} is paused. {then}"


@action("status")
def work_resume() -> str:
    """Resume a definition, task or queue."""
    target = _target()
    if not resume(state_of(), target, actor()):
        return f"The {target.kind} {target.name} was not paused."
    then = (
        "It continues with its next slot."
        if target.kind == "definition"
        else "The next tick runs what waits."
    )
    return f"The {target.kind} {target.name} is resumed. {then}"


def _target() -> Target:
    kind, _, name = needed(request.form, "what").partition(":")
    for known in KINDS:
        if kind == known:
            return Target(known, name)
    raise NotFound(f"Only a definition, task or queue can be paused, not {kind[:20]!r}.")


@action("status", "task", "error_type", "fingerprint")
def dead_retry(task: str, error_type: str, fingerprint: str) -> str:
    """Retry the dead runs of a task that have the given error type and group."""
    alike = fingerprint if "fingerprint" in request.form else None
    group = RunFilter(status="dead", task=task, error_type=error_type, fingerprint=alike)
    return RETRY.many(state_of(), group, actor(), most=RUNS_A_CLICK).sentence(task)


@action("runs", "key")
def batch_retry(key: str) -> str:
    """Queue the dead runs of a batch again."""
    return retry_batch(state_of(), key, actor(), most=RUNS_A_CLICK).sentence(key)


@action("runs", "key")
def batch_cancel(key: str) -> str:
    """Cancel the runs of a batch that have not ended."""
    return cancel_batch(state_of(), key, actor(), most=RUNS_A_CLICK).sentence(key)


@action("runs", "key")
def batch_close(key: str) -> str:
    """Close a batch, so that no run can join it any more."""
    if close_batch(state_of(), key, actor()):
        return f"{key} is closed. It ends with its last run."
    return f"{key} was already closed."


@action("status", "key")
def effect_done(key: str) -> str:
    """Mark an effect in doubt as done."""
    effects.effect_done(state_of(), key, actor())
    return f"{key} is marked as done. It will not be done again."


@action("status", "key")
def effect_redo(key: str) -> str:
    """Mark an effect in doubt as not done."""
    effects.effect_redo(state_of(), key, actor())
    return f"{key} is marked as not done. The next run that needs it does it."


def actor() -> str:
    """Return the name of the user who acts: from the app's `actor`, or else the request's address.

    It never raises an error.
    """
    state = state_of()
    name = ""
    if state.actor is not None:
        try:
            name = str(state.app.ensure_sync(state.actor)() or "")
        except Exception:
            logger.exception("actor() raised, so the log names the address instead")
    # A line break could forge a line of the log.
    return one_line(name or f"the pages, from {request.remote_addr}")[:100]


def run_or_404(run_id: int) -> RunView:
    """Return the run of a page."""
    run = find_run(state_of(), run_id)
    if run is None:
        abort(404, f"There is no run {run_id}. It may have been pruned.")
    return run


# The forms for arguments: to run something now, or to run a run again with another payload.


def _typed_payload() -> dict[str, object] | None:
    """Return the payload in the request's form, or None if it has none.

    The field ``payload`` contains the arguments that have no field of their own. If the field of an
    argument is empty, the argument is left out.

    :raises PayloadError: ``payload`` is not a JSON object, or a field cannot be read.
    """
    typed = request.form.get("payload")
    if typed is None:
        return None
    limit = state_of().settings.max_payload_bytes
    check_typed_text(typed, limit)
    try:
        payload = dict[str, object](json_object(stored_json(typed.strip() or "{}")))
    except ValueError as error:
        raise PayloadError(
            f'The payload cannot be read: {error}. Write an object, such as {{"user_id": 1}}.'
        ) from None
    task = state_of().registry.tasks.get(request.form.get("task", ""))
    for name, text_ in request.form.items():
        if task is not None and name.startswith(FIELD) and text_.strip():
            argument = name.removeprefix(FIELD)
            payload[argument] = forms.read(task.arguments, argument, text_, limit)
    return payload


def prepare(error: Exception | None = None) -> Response:
    """Render a form for the arguments of a new run of the definition or task ``name``."""
    name = needed(request.values, "name")
    state = state_of()
    arguments = read_arguments(state, name)
    if arguments is None:
        abort(404, f"There is no definition or task {name}.")
    task, stored = arguments
    payload = stored if state.settings.show_payload else None
    return _form(state, task, payload, error, name=name, run=None, can_retry=False)


def edit(run_id: int, error: Exception | None = None) -> Response:
    """Render a form for another payload of a run."""
    state = state_of()
    run = run_or_404(run_id)
    if not state.settings.show_payload:
        abort(
            403,
            "Payloads are hidden, so they cannot be edited. Set CRONJOBS_SHOW_PAYLOAD = True to "
            "show them.",
        )
    row = run.row
    return _form(
        state, row.task, run.payload, error,
        name=row.definition or row.task, run=row, can_retry=row.status in RETRY.allowed,
        has_steps=bool(run.steps),
    )  # fmt: skip


def _current(
    task: DeclaredTask, stored: Mapping[str, JSON], hidden: Sequence[str]
) -> Mapping[str, JSON]:
    """Return *stored* as the task's upgrade makes it fit, unless that fails or has to be hidden."""
    with suppress(Exception):  # An upgrade may raise any error.
        current: dict[str, JSON] = {**task.current(stored, hidden)}
        if redacted(current, hidden) == current:
            return current
    return stored


def _form(
    state: State, task: str, payload: JSON, error: Exception | None, **values: Any
) -> Response:
    """Render a form with *payload*, or, after an *error*, with the values that were sent."""
    if HIDDEN in json.dumps(payload):
        abort(403, "A value of this payload is hidden, so it cannot be edited here.")
    declared_task = state.registry.tasks.get(task)
    stored: Mapping[str, JSON] = payload if isinstance(payload, dict) else {}
    if declared_task and stored:
        stored = _current(declared_task, stored, state.settings.redact)
    fields = list(forms.fields(declared_task.arguments, stored)) if declared_task else []
    others = {name: stored[name] for name in stored.keys() - {field.name for field in fields}}
    more = json.dumps(others, indent=2, ensure_ascii=False) if others else ""
    if error is not None:
        form, more = request.form, request.form["payload"]
        fields = [field._replace(text=form.get(FIELD + field.name, "")) for field in fields]
    about = (inspect.getdoc(declared_task.func) or "") if declared_task else ""
    values |= {"task": task, "declared_task": declared_task, "about": about}
    values |= {"fields": fields, "more": more}
    status = 200 if error is None else 400
    return reader_page("arguments", status=status, prefix=FIELD, error=error, **values)
