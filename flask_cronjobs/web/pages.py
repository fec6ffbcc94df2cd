"""The pages. Each opens one connection and shows one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flask import Response, abort, redirect, request, url_for
from flask.typing import ResponseReturnValue

from ..jobs.agenda import read_agenda, scheduled_zones, span_of
from ..jobs.batches.views import batch_facts, find_batch, list_batches
from ..jobs.definitions.detail import find_definition, find_task
from ..jobs.definitions.views import SORTS, STATES, list_definitions
from ..jobs.error_groups import STATES as ERROR_STATES
from ..jobs.error_groups import list_errors
from ..jobs.health import headline_of, verdict_tone
from ..jobs.once_effects import list_effects
from ..jobs.operations import list_operations
from ..jobs.orders import list_key_orders
from ..jobs.overview import find_place, read_overview
from ..jobs.pauses import list_pauses
from ..jobs.queues import list_hosts, list_queues
from ..jobs.reader import Page, Reader, plain_data, reading
from ..jobs.runs.detail import RunView, facts_of, without_own_frames
from ..jobs.runs.filters import FILTERS, RunFilter
from ..jobs.runs.list import DUE_FIRST, LATEST_DEATH, NEWEST, WINDOW, list_runs, sorting_of
from ..jobs.runs.search import scope, wanted
from ..jobs.state import State, state_of
from ..jobs.ticks import list_gaps, list_ticks
from ..jobs.trends import Trend, read_trend
from ..types import STATUSES
from .actions import run_or_404
from .bulk import BULK
from .format import (
    ACROSS,
    Tone,
    bars_of,
    batch_tone,
    chart,
    day_chart,
    definition_tone,
    status_tone,
)
from .life import differences, life_of
from .params import (
    BadQuery,
    choice,
    clamped,
    cursor,
    cursor_text,
    definition_filter,
    flag,
    needed,
    page_zone,
    row_id,
    run_filter,
    text,
    typed_args,
)
from .render import reader_page, wants_json

#: Seconds after which the script refreshes a page.
REFRESH = 15
_TICKS = 50


def overview() -> ResponseReturnValue:
    """Render the overview: verdict, figures, definitions, dead runs, the last day."""
    view = read_overview(state_of())
    tone = verdict_tone(view.verdict, view.findings)
    return reader_page(
        "overview",
        tone,
        own_zones=[row.timezone for row in view.definitions.rows],
        view=view,
        now=view.verdict.now,
        headline=headline_of(view.verdict, view.findings),
        chart=chart(view.activity, view.marks),
        declared=len(state_of().registry.declarations),
        queues=state_of().queues,
        tasks=sorted(state_of().registry.tasks),
        refresh=REFRESH,
        data=view,
    )


def find() -> ResponseReturnValue:
    """Go to the page of what the box in the header names."""
    endpoint, found = find_place(state_of(), text(request.args, "q") or "")
    values: dict[str, Any] = dict(found)
    return redirect(url_for(f".{endpoint}", **values), 303)


def effects() -> ResponseReturnValue:
    """Render effects in doubt or being done; with ``?all=1`` also those that are done."""
    args = _flag("all")
    found = list_effects(state_of(), open_only=not args, **_asked(50))
    return _list_page("effects", found, refresh=0, args=args)


def errors() -> ResponseReturnValue:
    """Render groups of errors: open ones, or with ``?state=`` those resolved or muted."""
    state = choice(request.args, "state", ERROR_STATES) or "open"
    found = list_errors(state_of(), state, clamped(request.args, "limit", 50))
    return reader_page(
        "errors",
        found=found,
        state=state,
        states=ERROR_STATES,
        bars=[bars_of(row.days) for row in found.rows],
        now=found.now,
        refresh=REFRESH,
        data={"errors": found.rows, "total": found.total, "numbers": found.numbers},
    )


def operations() -> ResponseReturnValue:
    """Render what operators did, and what became of the runs."""
    found = list_operations(state_of(), **_asked(50))
    return _list_page("operations", found)


def ticks() -> ResponseReturnValue:
    """Render the latest ticks, and when none came."""
    before = row_id(request.args, "before")
    with reading(state_of()) as reader:
        found = list_ticks(reader, _TICKS, before)
        gaps = list_gaps(reader) if before is None else Page((), None, reader.now)
    data = {"ticks": found.rows, "gaps": gaps.rows, "before": found.next}
    return _list_page("ticks", found, data, gaps=gaps)


def queues() -> ResponseReturnValue:
    """Render the queues, and the hosts that serve them."""
    with reading(state_of()) as reader:
        found, hosts = list_queues(reader), list_hosts(reader)
    return reader_page(
        "queues",
        queues=found.rows,
        of_queues=found.cut("queue"),
        hosts=hosts.rows,
        cut=hosts.cut("host"),
        now=found.now,
        refresh=REFRESH,
        data={"queues": found.rows, "hosts": hosts.rows},
    )


def tonight() -> ResponseReturnValue:
    """Render what ran and what will run, a lane each: ``?from=`` to ``?until=``."""
    asked = {name: text(request.args, name) for name in ("from", "until")}
    with reading(state_of()) as reader:
        zones = scheduled_zones(reader)
        zone = page_zone(zones, reader.state.settings.timezone)
        try:
            span = span_of(reader.now, zone, asked["from"], asked["until"])
        except ValueError as error:
            raise BadQuery(str(error)) from None
        found = read_agenda(reader, span)
    return reader_page(
        "tonight",
        own_zones=zones,
        asked=asked,
        found=found,
        width=ACROSS,
        now=found.now,
        refresh=60,
        data=found,
    )


def order() -> ResponseReturnValue:
    """Render the keys whose runs wait for one another; with ``?stopped=1``, those stopped."""
    args = _flag("stopped")
    after = text(request.args, "after") or ""
    limit = clamped(request.args, "limit", 50)
    found = list_key_orders(state_of(), stopped=bool(args), after=after, limit=limit)
    data = {"keys": found.rows, "after": found.next}
    return _list_page("order", found, data, args=args)


def definitions() -> ResponseReturnValue:
    """Render a page of definitions: searched, filtered and sorted by the URL."""
    which = definition_filter(request.args)
    page = clamped(request.args, "page", 1, most=1_000_000)
    found = list_definitions(state_of(), which, page)
    return reader_page(
        "definitions",
        own_zones=[row.timezone for row in found.rows],
        found=found,
        which=which,
        states=STATES,
        sorts=SORTS,
        args={"search": which.search, "state": which.state, "sort": which.sort},
        now=found.now,
        refresh=REFRESH,
        data={
            "definitions": found.rows,
            "total": found.total,
            "page": found.page,
            "pages": found.pages,
        },
    )


def definition() -> ResponseReturnValue:
    """Render one definition with its last runs and next slots."""
    name, state = needed(request.args, "name"), state_of()
    with reading(state) as reader:
        found = find_definition(reader, name)
        if found is None:
            abort(404, "There is no definition of that name. It may have been renamed or removed.")
        trend = _trend(reader, found.view.task, [found.view.timezone])
    hidden = found if state.settings.show_payload else replace(found, payload=None)
    return _trend_page(
        "definition", found, hidden, trend, definition_tone(found.view), definition=found.view,
        shown=state.settings.show_payload, own_zones=[found.view.timezone],
    )  # fmt: skip


def task() -> ResponseReturnValue:
    """Render one task: what the code says about it, its definitions and its last runs."""
    name = needed(request.args, "name")
    with reading(state_of()) as reader:
        found = find_task(reader, name)
        if found is None:
            abort(404, "There is no task of that name. It may have been renamed or removed.")
        zones = [row.timezone for row in found.definitions]
        trend = _trend(reader, name, zones)
        paused = [each for each in list_pauses(reader) if (each.kind, each.name) == ("task", name)]
    return _trend_page(
        "task", found, found, trend, window=WINDOW, own_zones=zones, pause=next(iter(paused), None)
    )


def _trend_page(
    name: str, found: Any, data: Any, trend: Trend, tone: Tone = "idle", **values: Any
) -> Response:
    drawn = day_chart(trend.days, trend.marks)
    values |= {"found": found, "trend": trend, "drawn": drawn, "now": found.now}
    data = {**plain_data(data), "trend": trend}
    return reader_page(name, tone, data=data, refresh=REFRESH, **values)


def _trend(reader: Reader, task: str, zones: Sequence[str]) -> Trend:
    """Return the trend of a task, by days in the zone of the page."""
    return read_trend(reader, task, page_zone(zones, reader.state.settings.timezone))


#: Seconds after which the script refreshes the page of a batch that has not finished.
_REFRESH_BATCH = 5


def batches() -> ResponseReturnValue:
    """Render batches that have not finished; with ``?all=1`` also those that have."""
    args = _flag("all")
    found = list_batches(state_of(), unfinished=not args, **_asked(25))
    return _list_page("batches", found, args=args)


def batch() -> ResponseReturnValue:
    """Render one batch: how far it is, its dead runs, and what an operator can do."""
    key = needed(request.args, "key")
    with reading(state_of()) as reader:
        found = find_batch(reader, key)
        now = reader.now
    if found is None:
        abort(404, "There is no batch of that key. It may have been pruned.")
    return reader_page(
        "batch",
        batch_tone(found),
        batch=found,
        facts=batch_facts(found, now),
        now=now,
        refresh=0 if found.finished_at else _REFRESH_BATCH,
        data=found,
    )


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
    data: Mapping[str, object] | None = None,
    refresh: int = REFRESH,
    **values: Any,
) -> Response:
    """Render a page of rows, of which only the first is refreshed.

    :param name: of the template.
    :param data: the answer in JSON; else the rows by *name*, and ``before``.
    """
    before = request.args.get("before") or request.args.get("after")
    data = data or {name: found.rows, "before": found.next}
    values |= {"found": found, "before": before, "now": found.now, "data": data}
    return reader_page(name, refresh=0 if before else refresh, **values)


#: What the head of the column of times says, and how the list is ordered.
_HEADS = {
    NEWEST: ("Scheduled for", "newest first"),
    LATEST_DEATH: ("Died", "latest death first"),
    DUE_FIRST: ("Due", "first due first"),
}
#: Seconds after which the page of a run is refreshed, by its status.
_REFRESH_RUN: dict[str, int] = {"running": 5, "queued": 5, "failed": REFRESH}
#: The same if it has ended: somebody may retry it.
REFRESH_ENDED = 60
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
    order = sorting_of(which.status, which.overdue)
    found = list_runs(state, which, before, limit, order)
    following = None if found.next is None else cursor_text(found.next)
    head, described = _HEADS[order]
    return _form(
        state, typed, which=which, found=found, before=before, following=following,
        column=order.column, head=head, described=described, now=found.now,
        searched="" if which.search is None else wanted(which.search).value,
        scope=scope(which.search or "", state.settings.show_payload),
        bulk=[each for each in BULK.values() if which != RunFilter() and each.statuses(which)],
        own_zones=[row.timezone for row in found.rows],
        advice=state.registry.advice(which.task) if not found.rows else "",
        refresh=REFRESH if before is None else 0,
        data={"runs": found.rows, "before": following, "partial": found.partial,
              "searched_to": found.searched_to},
    )  # fmt: skip


def _form(state: State, typed: dict[str, str], status: int = 200, **values: Any) -> Response:
    common: dict[str, Any] = {
        "which": RunFilter(),
        "filters": FILTERS,
        "found": None,
        "typed": typed,
        "wrong": None,
        "bulk": [],
        "statuses": STATUSES,
        "actions": BULK.keys(),
        "shown": state.settings.show_payload,
        "suggested": sorted(state.registry.tasks)[:_SUGGESTED],
    }
    response = reader_page("runs", **(common | values))
    if status >= 400:  # Else it may be 304.
        response.status_code = status
    return response


def run(run_id: int) -> ResponseReturnValue:
    """Render one run with its attempts."""
    state = state_of()
    found = run_or_404(run_id)
    whole = flag(request.args, "frames")
    shown = state.settings.show_payload
    return reader_page(
        "run",
        status_tone(found.row.status),
        own_zones=[found.row.timezone],
        run=found if whole else _shortened(found),
        facts=facts_of(found),
        whole=whole,
        asked=text(request.args, "q"),
        hides=not whole and _shortened(found) != found,
        can={action.name for action in BULK.values() if found.row.status in action.allowed},
        known=found.row.task in state.registry.tasks,
        now=found.now,
        shown=shown,
        life=life_of(found),
        changed=_changed(found) if shown else [],
        refresh=_REFRESH_RUN.get(found.row.status, REFRESH_ENDED),
        data=found if shown else _hidden(found),
    )


def _shortened(run: RunView) -> RunView:
    """Return *run* without our own frames in its stacks."""
    attempts = (
        replace(attempt, stack=attempt.stack and without_own_frames(attempt.stack))
        for attempt in run.attempts
    )
    return replace(run, attempts=tuple(attempts))


def _changed(run: RunView) -> list[str]:
    """Return in what the payload of *run* differs from that of the last success, if it failed."""
    family = run.family
    if family is None or family.succeeded is None or run.row.status not in ("failed", "dead"):
        return []
    return differences(family.succeeded_payload, run.payload)


def _hidden(run: RunView) -> RunView:
    """Return *run* without what pages do not show."""
    attempts = tuple(replace(attempt, stack=None, output=None) for attempt in run.attempts)
    family = run.family and replace(run.family, succeeded_payload=None)
    steps = tuple(replace(step, result=None) for step in run.steps)
    return replace(run, payload=None, result=None, attempts=attempts, steps=steps, family=family)
