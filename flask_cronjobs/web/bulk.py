"""One action on many runs: the question before it, which shows them, and the act.

The guard has checked the right to act and the origin of the request before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import request
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from ..errors import StateConflict
from ..jobs.reader import CAP, Count
from ..jobs.runs.actions import Action, of_status, preview
from ..jobs.runs.filters import RunFilter
from ..jobs.runs.search import SEARCH_FOR
from ..jobs.state import state_of
from .actions import MOST, actor
from .format import Tone
from .params import BadQuery, filter_args, needed, row_id, run_filter
from .render import ACTIONS, Message, back, reader_page

_NONE_PICKED = "No run is picked."


def bulk() -> ResponseReturnValue:
    """Ask whether to change the picked runs, or all of the URL's filter; say which those are."""
    action, which, picked = _asked(request.args)
    if picked == []:
        return _back(which, _NONE_PICKED, "bad")
    stopped_at = None
    try:
        if picked is not None:
            ids = of_status(state_of(), picked, action.allowed)
            count = Count(len(ids))
        else:
            found = action.some_ids(state_of(), which, MOST + 1, SEARCH_FOR)
            is_cut = len(found.ids) > MOST or found.stopped_at is not None
            count, ids = Count(min(len(found.ids), MOST), is_cut), found.ids[:CAP]
            stopped_at = found.stopped_at
    except StateConflict as error:
        return _back(which, f"Nothing was changed. {error}", "bad")
    statuses = action.allowed if picked else action.statuses(which)
    shown = preview(state_of(), ids)
    data = {"do": action.name, "statuses": statuses, "count": count, "preview": shown}
    return reader_page(
        "bulk",
        tone="warn",
        data={**data, "searched_to": stopped_at},
        action=action,
        statuses=statuses,
        count=count,
        which=which,
        picked=picked,
        stopped_at=stopped_at,
        most=MOST,
        ids=ids,
        preview=shown,
        args=filter_args(which),
    )


def bulk_act() -> ResponseReturnValue:
    """Change the picked runs, or all of the form's filter, up to `MOST`."""
    action, which, picked = _asked(request.form)
    if picked == []:
        return _back(which, _NONE_PICKED, "bad")
    try:
        result = action.many(state_of(), which if picked is None else picked, actor(), most=MOST)
    except StateConflict as error:
        return _back(which, f"Nothing was changed. {error}", "bad")
    return _back(which, result.sentence(), "good")


def _asked(args: MultiDict[str, str]) -> tuple[Action, RunFilter, list[int] | None]:
    """Return what to do, the filter of the list, and the ids that were picked there; None: all.

    :raises BadQuery: one of them is wrong.
    """
    given = dict.fromkeys(row_id({"id": each}, "id") for each in args.getlist("id"))
    picked = [each for each in given if each is not None]
    return _action(args), run_filter(args), picked if "picked" in args else None


def _back(which: RunFilter, message: str, tone: Tone) -> ResponseReturnValue:
    args: dict[str, Any] = {**filter_args(which)}
    return back("runs", Message(tone, message), **args)


def _action(args: Mapping[str, str]) -> Action:
    action = ACTIONS.get(needed(args, "do"))
    if action is None:
        raise BadQuery(f"do must be one of {', '.join(ACTIONS)}.")
    return action
