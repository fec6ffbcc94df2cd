"""Pages with a form for arguments: run something now, or a run again with another payload."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, cast

from flask import abort, request
from flask.typing import ResponseReturnValue
from werkzeug.wrappers import Response

from ..errors import PayloadError
from ..operations.runs import RETRY
from ..registry.handler import Handler
from ..report.details import read_arguments
from ..report.run_detail import RunView, find_run
from ..state import State, state_of
from ..types import JSON
from .params import MAX_ID, needed
from .render import reader_page


def prepare() -> ResponseReturnValue:
    """Render a form for the arguments of a run of the definition or task ``name``."""
    return _new_run(needed(request.args, "name"))


def edit(run_id: int) -> ResponseReturnValue:
    """Render a form for another payload of a run."""
    return _edited_run(run_id)


def typed_payload() -> dict[str, object] | None:
    """Return the payload that the request's form has, or None if it has none.

    :raises PayloadError: it is not a JSON object.
    """
    typed = request.form.get("payload")
    if typed is None:
        return None
    try:
        payload: object = json.loads(typed)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"The payload is not JSON: {error}.") from None
    if not isinstance(payload, dict):
        raise PayloadError('The payload is not a JSON object. Write one, such as {"user_id": 1}.')
    return cast("dict[str, object]", payload)


def form_again(error: Exception, run_id: int | None) -> Response:
    """Render the form that was sent, as it was typed, with what is wrong."""
    typed = {"typed": request.form["payload"], "error": str(error)}
    if run_id is not None:
        return _edited_run(run_id, 400, **typed)
    return _new_run(needed(request.form, "name"), 400, **typed)


def _new_run(name: str, status: int = 200, **typed: str) -> Response:
    state = state_of()
    found = read_arguments(state, name)
    if found is None:
        abort(404, f"There is no definition and no task {name}.")
    payload = found.payload if state.settings.show_payload else None
    return _form(state, found.task, payload, status, typed, name=name, run=None, can_retry=False)


def _edited_run(run_id: int, status: int = 200, **typed: str) -> Response:
    state = state_of()
    found: RunView | None = find_run(state, run_id) if run_id <= MAX_ID else None
    if found is None:
        abort(404, f"There is no run {str(run_id)[:20]}. It may have been pruned.")
    if not state.settings.show_payload:
        abort(403, "Payloads are hidden: CRONJOBS_SHOW_PAYLOAD is not set.")
    row = found.row
    return _form(
        state, row.task, found.payload, status, typed,
        name=row.definition or row.task, run=row, can_retry=row.status in RETRY.allowed,
    )  # fmt: skip


def _form(
    state: State,
    task: str,
    payload: JSON,
    status: int,
    typed: Mapping[str, str],
    **values: Any,
) -> Response:
    handler = state.registry.tasks.get(task)
    text = json.dumps(_proposed(handler, payload), indent=2, ensure_ascii=False)
    response = reader_page(
        "arguments",
        task=task,
        handler=handler,
        about=(inspect.getdoc(handler.func) or "") if handler else "",
        typed=typed.get("typed", text),
        error=typed.get("error"),
        **values,
    )
    response.status_code = status
    return response


def _proposed(handler: Handler | None, payload: JSON) -> JSON:
    """Return *payload*, or one with a place for each argument that is needed."""
    if payload is None:
        return dict.fromkeys(handler.required if handler else (), None)
    return payload
