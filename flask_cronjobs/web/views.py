"""The pages. Each opens one connection and shows one moment."""

from __future__ import annotations

from flask import request
from flask.typing import ResponseReturnValue

from .. import report
from ..operations.pauses import queues
from ..state import state_of
from .chart import chart
from .params import clamped, row_id
from .render import reader_page

#: Seconds after which the script refreshes a page.
REFRESH = 15
_TICKS = 50


def overview() -> ResponseReturnValue:
    """Render the overview: verdict, figures, definitions, dead runs, the last day."""
    view = report.overview(state_of())
    tone = report.tone(view.verdict, view.figures)
    return reader_page(
        "overview",
        tone,
        own_zones=[row.timezone for row in view.definitions.rows],
        view=view,
        now=view.verdict.now,
        headline=report.headline(view.verdict, view.figures),
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
    found = report.effects(state_of(), open_only=not everything, before=before, limit=limit)
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
    with report.reading(state_of()) as reader:
        found = report.ticks(reader, _TICKS, before)
        gaps = report.gaps(reader) if before is None else ()
    return reader_page(
        "ticks",
        found=found,
        gaps=gaps,
        before=before,
        now=found.now,
        refresh=0 if before else REFRESH,
        data={"ticks": found.rows, "gaps": gaps, "before": found.next},
    )
