"""The pages. Each opens one connection and shows one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flask import Response, abort, redirect, request, url_for
from flask.typing import ResponseReturnValue

from ..jobs.batches.views import find_batch, list_batches
from ..jobs.definitions.detail import find_definition, find_task
from ..jobs.definitions.views import list_definitions
from ..jobs.error_groups import STATES as ERROR_STATES
from ..jobs.error_groups import list_errors
from ..jobs.health import headline_of, verdict_tone
from ..jobs.once_effects import list_effects
from ..jobs.operations import list_operations
from ..jobs.orders import list_key_orders
from ..jobs.overview import find_place, read_overview
from ..jobs.pauses import list_pauses
from ..jobs.queues import list_hosts, list_queues
from ..jobs.reader import Page, reading
from ..jobs.runs.detail import RunView, without_own_frames
from ..jobs.runs.filters import RunFilter
from ..jobs.runs.list import list_runs, sorting_of
from ..jobs.state import state_of
from ..jobs.ticks import list_gaps, list_ticks
from .actions import run_or_404
from .format import batch_tone, definition_tone, status_tone
from .params import (
    BadQuery,
    choice,
    clamped,
    cursor,
    cursor_text,
    definition_filter,
    flag,
    needed,
    row_id,
    run_filter,
    text,
    typed_args,
)
from .render import ACTIONS, REFRESH, reader_page, wants_json


def overview() -> ResponseReturnValue:
    """Render the overview: verdict, figures, definitions, dead runs, the last day."""
    found = read_overview(state_of())
    return reader_page(
        "overview",
        found,
        verdict_tone(found.verdict, found.findings),
        own_zones=[row.timezone for row in found.definitions.rows],
        now=found.verdict.now,
        headline=headline_of(found.verdict, found.findings),
    )


def find() -> ResponseReturnValue:
    """Go to the page of what the box in the header names."""
    endpoint, found = find_place(state_of(), text(request.args, "q") or "")
    values: dict[str, Any] = dict(found)
    return redirect(url_for(f".{endpoint}", **values), 303)


def effects() -> ResponseReturnValue:
    """Render effects in doubt or being done; with ``?all=1`` also those that are done."""
    args = _flag("all")
    return _list_page("effects", list_effects(state_of(), open_only=not args, **_asked(50)), args)


def errors() -> ResponseReturnValue:
    """Render groups of errors: open ones, or with ``?state=`` those resolved or muted."""
    state = choice(request.args, "state", ERROR_STATES) or "open"
    found = list_errors(state_of(), state, clamped(request.args, "limit", 50))
    data = {"errors": found.rows, "total": found.total, "numbers": found.numbers}
    return reader_page("errors", found, data=data, state=state)


def operations() -> ResponseReturnValue:
    """Render what operators did, and what became of the runs."""
    return _list_page("operations", list_operations(state_of(), **_asked(50)))


def ticks() -> ResponseReturnValue:
    """Render the latest ticks, and when none came."""
    before = row_id(request.args, "before")
    with reading(state_of()) as reader:
        found = list_ticks(reader, 50, before)
        gaps = list_gaps(reader) if before is None else Page((), None, reader.now)
    data = {"ticks": found.rows, "gaps": gaps.rows, "before": found.next}
    return _list_page("ticks", found, data=data, gaps=gaps)


def queues() -> ResponseReturnValue:
    """Render the queues, and the hosts that serve them."""
    with reading(state_of()) as reader:
        found, hosts = list_queues(reader), list_hosts(reader)
    data = {"queues": found.rows, "hosts": hosts.rows}
    return reader_page("queues", found, data=data, hosts=hosts)


def order() -> ResponseReturnValue:
    """Render the keys whose runs wait for one another; with ``?stopped=1``, those stopped."""
    args = _flag("stopped")
    after = text(request.args, "after") or ""
    limit = clamped(request.args, "limit", 50)
    found = list_key_orders(state_of(), stopped=bool(args), after=after, limit=limit)
    return _list_page("order", found, args, data={"keys": found.rows, "after": found.next})


def definitions() -> ResponseReturnValue:
    """Render a page of definitions: searched, filtered and sorted by the URL."""
    which = definition_filter(request.args)
    found = list_definitions(state_of(), which, clamped(request.args, "page", 1, most=1_000_000))
    zones = [row.timezone for row in found.rows]
    numbers = {"total": found.total, "page": found.page, "pages": found.pages}
    data = {"definitions": found.rows, **numbers}
    return reader_page("definitions", found, data=data, own_zones=zones, which=which)


def definition() -> ResponseReturnValue:
    """Render one definition with its last runs and next slots."""
    name, state = needed(request.args, "name"), state_of()
    with reading(state) as reader:
        found = find_definition(reader, name)
        if found is None:
            abort(404, "There is no definition of that name. It may have been renamed or removed.")
    data = found if state.settings.show_payload else replace(found, payload=None)
    tone = definition_tone(found.view)
    return reader_page("definition", found, tone, data=data, own_zones=[found.view.timezone])


def task() -> ResponseReturnValue:
    """Render one task: what the code says about it, its definitions and its last runs."""
    name = needed(request.args, "name")
    with reading(state_of()) as reader:
        found = find_task(reader, name)
        if found is None:
            abort(404, "There is no task of that name. It may have been renamed or removed.")
        zones = [row.timezone for row in found.definitions]
        paused = [each for each in list_pauses(reader) if (each.kind, each.name) == ("task", name)]
    return reader_page("task", found, own_zones=zones, pause=next(iter(paused), None))


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
    data: Mapping[str, object] | None = None,
    **values: Any,
) -> Response:
    """Render a page of rows, of which only the first is refreshed.

    :param name: of the template.
    :param args: the values of the URL that each page of the list keeps.
    :param data: the answer in JSON; else the rows by *name*, and ``before``.
    """
    before = request.args.get("before") or request.args.get("after")
    values |= {"refresh": 0} if before else {}
    data = data or {name: found.rows, "before": found.next}
    return reader_page(name, found, data=data, args=args, before=before, **values)


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
        if wants_json():
            raise
        wrong = error.description
        return reader_page("runs", status=400, typed=typed, which=RunFilter(), wrong=wrong)
    order = sorting_of(which.status, which.overdue)
    found = list_runs(state_of(), which, before, limit, order)
    following = None if found.next is None else cursor_text(found.next)
    cut = {"partial": found.partial, "searched_to": found.searched_to}
    return reader_page(
        "runs",
        found,
        data={"runs": found.rows, "before": following, **cut},
        own_zones=[row.timezone for row in found.rows],
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
        data=found if state_of().settings.show_payload else _hidden(found),
        own_zones=[found.row.timezone],
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


def _hidden(run: RunView) -> RunView:
    """Return *run* without what pages do not show."""
    attempts = tuple(replace(attempt, stack=None, output=None) for attempt in run.attempts)
    family = run.family and replace(run.family, succeeded_payload=None)
    steps = tuple(replace(step, result=None) for step in run.steps)
    return replace(run, payload=None, result=None, attempts=attempts, steps=steps, family=family)
