"""The list of runs, with the batch, concurrency key or task that it is about, and one run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from flask import request
from flask.typing import ResponseReturnValue

from ..core.app_state import state_of
from ..insights.batch_views import BatchView, find_batch
from ..insights.keys import KeyView, find_key
from ..insights.pauses import PauseView, list_pauses
from ..insights.reader import Count, Reader, reading
from ..insights.run_actions import Action
from ..insights.run_detail import RunView
from ..insights.run_filters import RunFilter
from ..insights.run_list import RunPage, count_by_status, list_runs, sorting_of
from ..insights.schedule_detail import TaskCode, read_arguments, task_code
from ..text.redaction import HIDDEN, without_own_frames
from ..types import Status
from .actions import run_or_404
from .format import run_tone
from .params import BadQuery, clamped, cursor, cursor_text, flag, run_filter, typed_args
from .render import ACTIONS, REFRESH_SECONDS, reader_page

#: Seconds after which the page of a run is refreshed, by its status.
_REFRESH_RUN_SECONDS: dict[str, int] = {"running": 5, "queued": 5, "failed": REFRESH_SECONDS}
#: Seconds after which the page of an ended run is refreshed, since the run may be retried.
REFRESH_ENDED_SECONDS = 60


class TaskHead(NamedTuple):
    """A task, above the list of its runs.

    :ivar code: the task in this app's code; None if the app does not declare it.
    :ivar has_form: whether the form for its arguments can be shown: no value is hidden, and no
        definition of another task has its name, since the form would be of that definition.
    """

    name: str
    code: TaskCode | None
    pause: PauseView | None
    has_form: bool


class Heads(NamedTuple):
    """The batch, the concurrency key and the task that a list of runs is about."""

    batch: BatchView | None = None
    key: KeyView | None = None
    task: TaskHead | None = None


def runs() -> ResponseReturnValue:
    """Render a page of runs, filtered by the URL."""
    typed = typed_args(request.args)
    try:
        which = run_filter(request.args)
        before = cursor(request.args)
        limit = clamped(request.args, "limit", 50)
    except BadQuery as error:
        wrong = error.description
        return reader_page("runs", status=400, typed=typed, which=RunFilter(), wrong=wrong)
    order = sorting_of(which.status, which.overdue)
    with reading(state_of()) as reader:
        page = list_runs(reader, which, before, limit, order)
        counts = count_by_status(reader, which)
        heads = _heads(reader, which)
    return reader_page(
        "runs",
        page,
        typed=typed,
        which=which,
        wrong=None,
        heads=heads,
        counts=counts,
        before=before,
        following=None if page.next is None else cursor_text(page.next),
        column=order.column,
        offered=_offered(page),
        bulk=_bulk(which, counts, page),
        refresh=REFRESH_SECONDS if before is None else 0,
    )


def _heads(reader: Reader, which: RunFilter) -> Heads:
    return Heads(
        batch=which.batch and find_batch(reader, which.batch),  # type: ignore[arg-type]
        key=which.concurrency_key and find_key(reader, which.concurrency_key),  # type: ignore[arg-type]
        task=which.task and _task(reader, which.task),  # type: ignore[arg-type]
    )


def _task(reader: Reader, name: str) -> TaskHead:
    paused = (pause for pause in list_pauses(reader) if (pause.kind, pause.name) == ("task", name))
    code, (of, payload) = task_code(reader.state, name), read_arguments(reader, name) or ("", None)
    has_form = code is not None and of == name and HIDDEN not in json.dumps(payload)
    return TaskHead(name, code, next(paused, None), has_form)


def _offered(page: RunPage) -> list[Action]:
    """Return the actions that are possible on one or more of the shown runs."""
    statuses = {row.status for row in page.rows}
    return [action for action in ACTIONS.values() if statuses & set(action.allowed)]


def _bulk(which: RunFilter, counts: Mapping[Status, Count], page: RunPage) -> list[Action]:
    """Return the actions that are possible on all matching runs, if more match than are shown."""
    if which == RunFilter() or page.next is None:
        return []
    return [
        action
        for action in ACTIONS.values()
        if any(counts.get(status, True) for status in action.statuses(which))
    ]


def run(run_id: int) -> ResponseReturnValue:
    """Render one run with its attempts."""
    view = run_or_404(run_id)
    whole = flag(request.args, "frames")
    run = view if whole else _shortened(view)
    values: dict[str, Any] = {"run": run, "whole": whole, "hides_frames": run != view}
    values["refresh"] = _REFRESH_RUN_SECONDS.get(view.row.status, REFRESH_ENDED_SECONDS)
    return reader_page("run", view, run_tone(view), **values)


def _shortened(run: RunView) -> RunView:
    """Return *run* without our own frames in its stacks."""
    attempts = (
        replace(attempt, stack=attempt.stack and without_own_frames(attempt.stack))
        for attempt in run.attempts
    )
    return replace(run, attempts=tuple(attempts))
