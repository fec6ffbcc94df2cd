"""The pages. Each opens one connection and shows one moment."""

from __future__ import annotations

from flask import request
from flask.typing import ResponseReturnValue

from .. import operations
from ..report.activity import list_gaps, list_ticks
from ..report.effects import list_effects
from ..report.health import headline_of, tone_of
from ..report.key_orders import list_key_orders
from ..report.overview import read_overview
from ..report.reader import reading
from ..state import state_of
from .chart import chart
from .params import clamped, row_id
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
        queues=operations.queues(state_of()),
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
    return reader_page(
        "effects",
        found=found,
        everything=everything,
        before=before,
        now=found.now,
        data={"effects": found.rows, "before": found.next},
    )


def ticks() -> ResponseReturnValue:
    """Render the latest ticks, and when none came."""
    before = row_id(request.args, "before")
    with reading(state_of()) as reader:
        found = list_ticks(reader, _TICKS, before)
        gaps = list_gaps(reader) if before is None else ()
    return reader_page(
        "ticks",
        found=found,
        gaps=gaps,
        before=before,
        now=found.now,
        refresh=0 if before else REFRESH,
        data={"ticks": found.rows, "gaps": gaps, "before": found.next},
    )


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
