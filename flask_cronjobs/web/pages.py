"""The pages. Each opens one connection and shows one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flask import Response, abort, request
from flask.typing import ResponseReturnValue

from ..jobs.batches.views import find_batch, list_batches
from ..jobs.definitions.detail import find_task
from ..jobs.orders import list_key_orders
from ..jobs.pauses import list_pauses
from ..jobs.reader import Page, reading
from ..jobs.runs.detail import RunView, without_own_frames
from ..jobs.runs.filters import RunFilter
from ..jobs.runs.list import list_runs, sorting_of
from ..jobs.state import state_of
from .actions import run_or_404
from .format import batch_tone, status_tone
from .params import (
    BadQuery,
    clamped,
    cursor,
    cursor_text,
    flag,
    needed,
    row_id,
    run_filter,
    text,
    typed_args,
)
from .render import ACTIONS, REFRESH, reader_page


def order() -> ResponseReturnValue:
    """Render the keys whose runs wait for one another."""
    after = text(request.args, "after") or ""
    limit = clamped(request.args, "limit", 50)
    found = list_key_orders(state_of(), after=after, limit=limit)
    return _list_page("order", found, {})


def task() -> ResponseReturnValue:
    """Render one task: what the code says about it, its definitions and its last runs."""
    name = needed(request.args, "name")
    with reading(state_of()) as reader:
        found = find_task(reader, name)
        if found is None:
            abort(404, "There is no task of that name. It may have been renamed or removed.")
        paused = [each for each in list_pauses(reader) if (each.kind, each.name) == ("task", name)]
    return reader_page("task", found, pause=next(iter(paused), None))


#: Seconds after which the script refreshes the page of a batch that has not finished.
_REFRESH_BATCH = 5


def batches() -> ResponseReturnValue:
    """Render batches that have not finished; with ``?all=1`` also those that have."""
    args = _flag("all")
    return _list_page("batches", list_batches(state_of(), unfinished=not args, **_asked(25)), args)


def batch() -> ResponseReturnValue:
    """Render one batch: how far it is, its dead runs, and what an operator can do."""
    key = needed(request.args, "key")
    with reading(state_of()) as reader:
        found = find_batch(reader, key)
        now = reader.now
    if found is None:
        abort(404, "There is no batch of that key. It may have been pruned.")
    refresh = 0 if found.finished_at else _REFRESH_BATCH
    return reader_page("batch", found, batch_tone(found), now=now, refresh=refresh)


def _flag(name: str) -> dict[str, int]:
    """Return the values of the URL that keep the flag *name*; none if it is not set."""
    return {name: 1} if flag(request.args, name) else {}


def _asked(limit: int) -> dict[str, Any]:
    """Return which page of a list the URL asks for."""
    return {
        "before": row_id(request.args, "before"),
        "limit": clamped(request.args, "limit", limit),
    }


def _list_page(
    name: str,
    found: Page[Any],
    args: Mapping[str, int] | None = None,
    **values: Any,
) -> Response:
    """Render a page of rows, of which only the first is refreshed.

    :param name: of the template.
    :param args: the values of the URL that each page of the list keeps.
    """
    before = request.args.get("before") or request.args.get("after")
    values |= {"refresh": 0} if before else {}
    return reader_page(name, found, args=args, before=before, **values)


#: Seconds after which the page of a run is refreshed, by its status.
_REFRESH_RUN: dict[str, int] = {"running": 5, "queued": 5, "failed": REFRESH}
#: The same if it has ended: somebody may retry it.
REFRESH_ENDED = 60


def runs() -> ResponseReturnValue:
    """Render a page of runs, filtered by the URL."""
    typed = typed_args(request.args)
    try:
        which = run_filter(request.args)
        before = cursor(request.args, "before")
        limit = clamped(request.args, "limit", 50)
    except BadQuery as error:
        wrong = error.description
        return reader_page("runs", status=400, typed=typed, which=RunFilter(), wrong=wrong)
    order = sorting_of(which.status, which.overdue)
    found = list_runs(state_of(), which, before, limit, order)
    following = None if found.next is None else cursor_text(found.next)
    return reader_page(
        "runs",
        found,
        typed=typed,
        which=which,
        wrong=None,
        before=before,
        following=following,
        column=order.column,
        bulk=[each for each in ACTIONS.values() if which != RunFilter() and each.statuses(which)],
        refresh=REFRESH if before is None else 0,
    )


def run(run_id: int) -> ResponseReturnValue:
    """Render one run with its attempts."""
    found = run_or_404(run_id)
    whole = flag(request.args, "frames")
    run = found if whole else _shortened(found)
    return reader_page(
        "run",
        found,
        status_tone(found.row.status),
        run=run,
        whole=whole,
        hides=run != found,
        refresh=_REFRESH_RUN.get(found.row.status, REFRESH_ENDED),
    )


def _shortened(run: RunView) -> RunView:
    """Return *run* without our own frames in its stacks."""
    attempts = (
        replace(attempt, stack=attempt.stack and without_own_frames(attempt.stack))
        for attempt in run.attempts
    )
    return replace(run, attempts=tuple(attempts))
