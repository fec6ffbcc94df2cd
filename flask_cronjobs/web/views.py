"""The pages. Each opens one connection and shows one moment."""

from __future__ import annotations

from flask import abort, request
from flask.typing import ResponseReturnValue

from .. import report
from ..operations import CANCEL, RETRY
from ..report import run_list
from ..state import state_of
from . import format
from .chart import chart
from .params import MAX_ID, clamped, filter_args, row_id, run_filter, text
from .render import reader_page

#: Seconds after which the script refreshes a page.
REFRESH = 15
_TICKS = 50


def overview() -> ResponseReturnValue:
    """Render the overview: verdict, figures, definitions, dead runs, the last day."""
    after = text(request.args, "after")
    view = report.overview(state_of(), after)
    tone = report.tone(view.verdict, view.figures)
    return reader_page(
        "overview",
        tone,
        view=view,
        now=view.verdict.now,
        headline=report.headline(view.verdict, view.figures),
        chart=chart(view.activity),
        after=after,
        declared=len(state_of().registry.declarations),
        refresh=REFRESH,
    )


def runs() -> ResponseReturnValue:
    """Render a page of runs, newest first, filtered by the URL."""
    which = run_filter(request.args)
    before = row_id(request.args, "before")
    limit = clamped(request.args, "limit", 50)
    found = report.runs(state_of(), which, before, limit)
    return reader_page(
        "runs",
        found=found,
        which=which,
        args=filter_args(which),
        before=before,
        window=run_list.WINDOW,
        now=found.now,
    )


def run(run_id: int) -> ResponseReturnValue:
    """Render one run with its attempts."""
    state = state_of()
    found = report.run(state, run_id) if run_id <= MAX_ID else None
    if found is None:
        abort(404, f"There is no run {str(run_id)[:20]}. It may have been pruned.")
    return reader_page(
        "run",
        format.tone_of(found.row.status),
        run=found,
        can_retry=found.row.status in RETRY.allowed,
        can_cancel=found.row.status in CANCEL.allowed,
        now=found.now,
        shown=state.settings.show_payload,
        refresh=5 if found.row.status == "running" else 0,
    )


def effects() -> ResponseReturnValue:
    """Render effects in doubt or being done; with ``?all=1`` also those that are done."""
    everything = request.args.get("all") == "1"
    before = row_id(request.args, "before")
    limit = clamped(request.args, "limit", 50)
    with report.reading(state_of()) as reader:
        found = report.effects(reader, open_only=not everything, before=before, limit=limit + 1)
        now = reader.now
    more = found[limit - 1].id if len(found) > limit else None
    return reader_page(
        "effects", effects=found[:limit], everything=everything, before=before, more=more, now=now
    )


def ticks() -> ResponseReturnValue:
    """Render the latest ticks, and when none came."""
    before = row_id(request.args, "before")
    with report.reading(state_of()) as reader:
        found = report.ticks(reader, _TICKS + 1, before)
        gaps = report.gaps(reader) if before is None else ()
        now = reader.now
    more = found[_TICKS - 1].id if len(found) > _TICKS else None
    return reader_page(
        "ticks",
        ticks=found[:_TICKS],
        gaps=gaps,
        before=before,
        more=more,
        now=now,
        refresh=0 if before else REFRESH,
    )
