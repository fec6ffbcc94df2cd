"""An action on many runs: the page that shows them and asks for confirmation, and the action.

For the action, the guard has already checked the right to act and the origin of the request. The
page that asks needs only the right to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Response, request
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from ..core.app_state import state_of
from ..errors import StateConflict
from ..insights.reader import CAP, Count, reading
from ..insights.run_actions import Action
from ..insights.run_filters import RunFilter
from ..insights.run_preview import of_status, preview
from .actions import RUNS_A_CLICK, actor
from .params import BadQuery, filter_args, id_of, needed, run_filter
from .render import ACTIONS, Message, back, reader_page


def bulk() -> ResponseReturnValue:
    """Ask whether to change the selected runs, or all that match the URL's filter; show them."""
    return _to_many(request.args, _ask)


def bulk_act() -> ResponseReturnValue:
    """Change the selected runs, or all that match the form's filter, up to `RUNS_A_CLICK`."""
    return _to_many(request.form, _change)


def _to_many(
    args: MultiDict[str, str],
    act: Callable[[Action, RunFilter, list[int] | None], Response | Message],
) -> ResponseReturnValue:
    """Call *act*; if it returns a message, redirect to the list, which shows the message.

    *act* gets an action, the list's filter, and the ids of the selected runs or None for all.
    """
    name = needed(args, "do")
    if name not in ACTIONS:
        raise BadQuery(f"The parameter do must be one of {', '.join(ACTIONS)}.")
    which = run_filter(args)
    ids = dict.fromkeys(id_of(value, "id") for value in args.getlist("id") if value.strip())
    picked = list(ids) if "picked" in args else None
    try:
        none = Message("bad", "No run is selected. Select one or more, then repeat the action.")
        result = none if picked == [] else act(ACTIONS[name], which, picked)
    except StateConflict as error:
        result = Message("bad", f"Nothing was changed. {error}")
    parameters: dict[str, Any] = {**filter_args(which)}
    return back("runs", result, **parameters) if isinstance(result, Message) else result


def _ask(action: Action, which: RunFilter, picked: list[int] | None) -> Response:
    with reading(state_of()) as reader:
        if picked is not None:
            ids = of_status(reader, picked, action.allowed)
            count = Count(len(ids))
        else:
            matches = action.ids(reader.state, which, RUNS_A_CLICK + 1, reader.connection)
            count = Count(min(len(matches), RUNS_A_CLICK), len(matches) > RUNS_A_CLICK)
            ids = matches[:CAP]
        data: dict[str, Any] = {
            "do": action.name,
            "statuses": action.allowed if picked else action.statuses(which),
            "count": count,
            "preview": preview(reader, ids),
        }
    question: dict[str, Any] = {"which": which, "args": filter_args(which), "picked": picked}
    return reader_page("bulk", tone="warn", **data, **question, ids=ids, most=RUNS_A_CLICK)


def _change(action: Action, which: RunFilter, picked: list[int] | None) -> Message:
    runs = which if picked is None else picked
    return Message("good", action.many(state_of(), runs, actor(), most=RUNS_A_CLICK).sentence())
