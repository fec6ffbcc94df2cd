"""The pages Status and Workers, and the page of one schedule. Each opens one connection."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from flask import abort, request
from flask.typing import ResponseReturnValue

from ..core.app_state import state_of
from ..insights.effects import list_effects
from ..insights.operations import list_operations
from ..insights.overview import read_overview
from ..insights.queues import list_hosts, list_queues
from ..insights.reader import reading
from ..insights.schedule_detail import find_definition
from ..insights.tick_views import list_gaps
from .format import definition_tone
from .params import choice, clamped, needed
from .render import reader_page

#: The maximum number of rows of each kind that the first page shows.
SCHEDULES_SHOWN = 25
GROUPS_SHOWN = 10
DOUBTS_SHOWN = 10
OPERATIONS_SHOWN = 5
#: The order of schedules: those that need attention first, or those that are due next.
Sort: TypeAlias = Literal["need", "next"]


def status() -> ResponseReturnValue:
    """Render the findings, dead runs, schedules, the last day, and the latest operations."""
    sort: Sort = "need"
    page = 1
    if request.args:
        sort = choice(request.args, "sort", get_args(Sort)) or sort
        page = clamped(request.args, "page", page, most=1_000_000)
    with reading(state_of()) as reader:
        overview = read_overview(reader, sort, page, SCHEDULES_SHOWN)
        in_doubt = any(finding.id == "effects-in-doubt" for finding in overview.verdict.findings)
        doubts = list_effects(reader, doubts_only=True, limit=DOUBTS_SHOWN) if in_doubt else None
        operations = list_operations(reader, limit=OPERATIONS_SHOWN).rows
    return reader_page(
        "status",
        overview,
        overview.verdict.tone,
        now=overview.verdict.now,
        sort=sort,
        most=GROUPS_SHOWN,
        doubts=doubts,
        operations=operations,
    )


def workers() -> ResponseReturnValue:
    """Render the queues, the hosts that serve them, and the gaps between ticks."""
    with reading(state_of()) as reader:
        queues, hosts, gaps = list_queues(reader), list_hosts(reader), list_gaps(reader)
    return reader_page("workers", queues, hosts=hosts, gaps=gaps)


def definition() -> ResponseReturnValue:
    """Render one schedule with its task, its last runs and its next slots."""
    detail = find_definition(state_of(), needed(request.args, "name"))
    if detail is None:
        abort(404, "There is no schedule of that name. It may have been renamed or removed.")
    return reader_page("definition", detail, definition_tone(detail.view))
