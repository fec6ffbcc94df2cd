"""The pages. Each opens one connection and shows one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flask import Response, abort, request
from flask.typing import ResponseReturnValue

from ..operations.pauses import queues
from ..report.activity import list_effects, list_gaps, list_ticks
from ..report.batches import BatchView, find_batch, list_batches
from ..report.definitions import SORTS, STATES, DefinitionView, list_definitions
from ..report.details import find_definition, find_task
from ..report.health import headline_of, tone_of
from ..report.key_orders import list_key_orders
from ..report.overview import read_overview
from ..report.reader import Page, reading
from ..report.run_list import WINDOW
from ..state import state_of
from .format import Tone, chart
from .params import clamped, definition_filter, needed, row_id
from .render import reader_page

#: Seconds after which the script refreshes a page.
REFRESH = 15
_TICKS = 50


def overview() -> ResponseReturnValue:
    """Render the overview: verdict, figures, definitions, dead runs, the last day."""
    view = read_overview(state_of())
    tone = tone_of(view.verdict, view.figures)
    return reader_page(
        "overview",
        tone,
        own_zones=[row.timezone for row in view.definitions.rows],
        view=view,
        now=view.verdict.now,
        headline=headline_of(view.verdict, view.figures),
        chart=chart(view.activity),
        declared=len(state_of().registry.declarations),
        queues=queues(state_of()),
        tasks=sorted(state_of().registry.tasks),
        refresh=REFRESH,
        data=view,
    )


def effects() -> ResponseReturnValue:
    """Render effects in doubt or being done; with ``?all=1`` also those that are done."""
    everything = request.args.get("all") == "1"
    before = row_id(request.args, "before")
    limit = clamped(request.args, "limit", 50)
    found = list_effects(state_of(), open_only=not everything, before=before, limit=limit)
    return _list_page("effects", found, before, refresh=0, everything=everything)


def ticks() -> ResponseReturnValue:
    """Render the latest ticks, and when none came."""
    before = row_id(request.args, "before")
    with reading(state_of()) as reader:
        found = list_ticks(reader, _TICKS, before)
        gaps = list_gaps(reader) if before is None else ()
    return _list_page("ticks", found, before, {"gaps": gaps}, gaps=gaps)


#: A concurrency key has no more characters.
_LONGEST = 500


def order() -> ResponseReturnValue:
    """Render the keys whose runs wait for one another; with ``?stopped=1``, those stopped."""
    stopped = request.args.get("stopped") == "1"
    after = request.args.get("after", "")[:_LONGEST].replace("\0", "")
    limit = clamped(request.args, "limit", 50)
    found = list_key_orders(state_of(), stopped=stopped, after=after, limit=limit)
    return reader_page(
        "order",
        found=found,
        stopped=stopped,
        after=after,
        now=found.now,
        refresh=0 if after else REFRESH,
        data={"keys": found.rows, "after": found.next},
    )


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
    name = needed(request.args, "name")
    state = state_of()
    found = find_definition(state, name)
    if found is None:
        abort(404, "There is no definition of that name. It may have been renamed or removed.")
    return reader_page(
        "definition",
        _tone(found.view),
        own_zones=[found.view.timezone],
        found=found,
        definition=found.view,
        shown=state.settings.show_payload,
        now=found.now,
        refresh=REFRESH,
        data=found if state.settings.show_payload else replace(found, payload=None),
    )


def task() -> ResponseReturnValue:
    """Render one task: what the code says about it, its definitions and its last runs."""
    found = find_task(state_of(), needed(request.args, "name"))
    if found is None:
        abort(404, "There is no task of that name. It may have been renamed or removed.")
    return reader_page(
        "task",
        own_zones=[row.timezone for row in found.definitions],
        found=found,
        window=WINDOW,
        now=found.now,
        refresh=REFRESH,
        data=found,
    )


def _tone(view: DefinitionView) -> Tone:
    if view.paused_at is not None:
        return "idle"
    return "warn" if view.needs or view.broken or view.orphaned or view.undeclared else "good"


#: Seconds after which the script refreshes the page of a batch that has not finished.
_REFRESH_BATCH = 5


def batches() -> ResponseReturnValue:
    """Render batches that have not finished; with ``?all=1`` also those that have."""
    everything = request.args.get("all") == "1"
    before = row_id(request.args, "before")
    limit = clamped(request.args, "limit", 25)
    found = list_batches(state_of(), unfinished=not everything, before=before, limit=limit)
    return _list_page("batches", found, before, everything=everything)


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
        now=now,
        refresh=0 if found.finished_at else _REFRESH_BATCH,
        data=found,
    )


def batch_tone(found: BatchView) -> Tone:
    """Return the color of a batch."""
    if found.counts.dead:
        return "bad" if found.state == "finished" else "warn"
    return "good" if found.state == "finished" else "busy"


def _list_page(
    name: str,
    found: Page[Any],
    before: int | None,
    data: Mapping[str, object] | None = None,
    refresh: int = REFRESH,
    **values: Any,
) -> Response:
    """Render a page of rows, of which only the first is refreshed.

    :param name: of the template, and of the rows in JSON.
    :param before: the id before which the page begins.
    :param data: what JSON has besides.
    """
    shown = {name: found.rows, **(data or {}), "before": found.next}
    values |= {"found": found, "before": before, "now": found.now, "data": shown}
    return reader_page(name, refresh=0 if before else refresh, **values)
