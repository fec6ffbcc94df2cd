"""Retry, cancel or discard all runs of a filter: the page that asks, and the action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import request
from flask.typing import ResponseReturnValue

from ..errors import StateConflict
from ..operations.runs import CANCEL, DISCARD, RETRY, Action
from ..report import RunFilter
from ..state import state_of
from .actions import MOST, actor
from .format import Tone
from .params import BadQuery, filter_args, needed, run_filter
from .render import Said, back, reader_page

BULK: dict[str, Action] = {action.name: action for action in (RETRY, CANCEL, DISCARD)}


def bulk() -> ResponseReturnValue:
    """Ask whether to change all runs of the URL's filter, and say how many there are."""
    action, which = _action(request.args), run_filter(request.args)
    try:
        count = action.count(state_of(), which, MOST)
    except StateConflict as error:
        return _back(which, f"Nothing was changed. {error}", "bad")
    return reader_page(
        "bulk",
        "warn",
        action=action,
        statuses=action.statuses(which),
        count=count,
        args=filter_args(which),
        data={"do": action.name, "statuses": action.statuses(which), "count": count},
    )


def bulk_act() -> ResponseReturnValue:
    """Change all runs of the form's filter, up to `MOST`."""
    action, which = _action(request.form), run_filter(request.form)
    try:
        result = action.many(state_of(), which, actor(), most=MOST)
    except StateConflict as error:
        return _back(which, f"Nothing was changed. {error}", "bad")
    return _back(which, result.sentence(), "good")


def _back(which: RunFilter, message: str, tone: Tone) -> ResponseReturnValue:
    args: dict[str, Any] = {**filter_args(which)}
    return back("runs", Said(tone, message), **args)


def _action(args: Mapping[str, str]) -> Action:
    action = BULK.get(needed(args, "do"))
    if action is None:
        raise BadQuery(f"do must be one of {', '.join(BULK)}.")
    return action
