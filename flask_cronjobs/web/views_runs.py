"""The list of runs, and the page of one run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flask import Response, abort, request
from flask.typing import ResponseReturnValue

from ..operations.runs import CANCEL, DISCARD, RETRY
from ..report.run_detail import RunView, find_run, without_own_frames
from ..report.run_list import RunFilter, list_runs
from ..report.run_search import DUE_FIRST, LATEST_DEATH, NEWEST, order_of
from ..state import State, state_of
from . import format
from .actions import BULK
from .params import MAX_ID, BadQuery, clamped, cursor, cursor_text, run_filter, typed_args
from .render import reader_page, wants_json
from .views import REFRESH

#: What the head of the column of times says, and how the list is ordered.
_HEADS = {
    NEWEST: ("Scheduled for", "newest first"),
    LATEST_DEATH: ("Died", "latest death first"),
    DUE_FIRST: ("Due", "first due first"),
}
#: Seconds after which the page of a run is refreshed, by its status.
_REFRESH_RUN: dict[str, int] = {"running": 5, "queued": 5, "failed": REFRESH}
#: How many names of tasks a field suggests.
_SUGGESTED = 500


def runs() -> ResponseReturnValue:
    """Render a page of runs, filtered by the URL."""
    state, typed = state_of(), typed_args(request.args)
    try:
        which = run_filter(request.args)
        before = cursor(request.args, "before")
        limit = clamped(request.args, "limit", 50)
    except BadQuery as error:
        if wants_json():
            raise
        return _form(state, typed, 400, wrong=error.description)
    order = order_of(which.status, which.overdue)
    found = list_runs(state, which, before, limit, order)
    following = None if found.next is None else cursor_text(found.next)
    head, described = _HEADS[order]
    return _form(
        state, typed, which=which, found=found, before=before, following=following,
        column=order.column, head=head, described=described, now=found.now,
        bulk=[each for each in BULK.values() if which != RunFilter() and each.statuses(which)],
        own_zones=[row.timezone for row in found.rows],
        advice=state.registry.advice(which.task) if not found.rows else "",
        refresh=REFRESH if before is None else 0,
        data={"runs": found.rows, "before": following, "partial": found.partial},
    )  # fmt: skip


def _form(state: State, typed: dict[str, str], status: int = 200, **values: Any) -> Response:
    common: dict[str, Any] = {
        "which": RunFilter(),
        "found": None,
        "typed": typed,
        "wrong": None,
        "bulk": [],
        "shown": state.settings.show_payload,
        "suggested": sorted(state.registry.tasks)[:_SUGGESTED],
    }
    response = reader_page("runs", **(common | values))
    response.status_code = status
    return response


def run(run_id: int) -> ResponseReturnValue:
    """Render one run with its attempts."""
    state = state_of()
    found = find_run(state, run_id) if run_id <= MAX_ID else None
    if found is None:
        abort(404, f"There is no run {str(run_id)[:20]}. It may have been pruned.")
    whole = request.args.get("frames") == "1"
    shown = state.settings.show_payload
    return reader_page(
        "run",
        format.tone_of(found.row.status),
        own_zones=[found.row.timezone],
        run=found if whole else _shortened(found),
        whole=whole,
        hides=not whole and _shortened(found) != found,
        can_retry=found.row.status in RETRY.allowed,
        can_cancel=found.row.status in CANCEL.allowed,
        can_discard=found.row.status in DISCARD.allowed,
        known=found.row.task in state.registry.tasks,
        now=found.now,
        shown=shown,
        refresh=_REFRESH_RUN.get(found.row.status, 0),
        data=found if shown else _hidden(found),
    )


def _shortened(run: RunView) -> RunView:
    """Return *run* without our own frames in its stacks."""
    attempts = (
        replace(attempt, stack=attempt.stack and without_own_frames(attempt.stack))
        for attempt in run.attempts
    )
    return replace(run, attempts=tuple(attempts))


def _hidden(run: RunView) -> RunView:
    """Return *run* without what pages do not show."""
    attempts = tuple(replace(attempt, stack=None, output=None) for attempt in run.attempts)
    return replace(run, payload=None, result=None, attempts=attempts)
