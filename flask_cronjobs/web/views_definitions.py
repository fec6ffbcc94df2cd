"""The pages of definitions and tasks. Each opens one connection and shows one moment."""

from __future__ import annotations

from dataclasses import replace

from flask import abort, request
from flask.typing import ResponseReturnValue

from ..report.definitions import SORTS, STATES, DefinitionView, list_definitions
from ..report.details import find_definition, find_task
from ..report.run_list import WINDOW
from ..state import state_of
from .format import Tone
from .params import clamped, definition_filter, needed
from .render import reader_page

#: Seconds after which the script refreshes a page.
REFRESH = 15


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
