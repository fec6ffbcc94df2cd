"""The list of runs, newest first or by a search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import click

from ..jobs.definitions.actions import no_definition
from ..jobs.definitions.views import definition_names
from ..jobs.humanize import duration
from ..jobs.runs.filters import RunFilter
from ..jobs.runs.list import RunPage, RunRow, list_runs
from ..jobs.runs.search import SEARCH_ALL_FOR, scope
from ..jobs.state import State, state_of
from ..text import printable
from ..types import Status
from .group import JobsGroup, examples
from .lists import listing, print_page
from .output import as_called, moment, since
from .params import fields_option, filtered_by_several

#: The columns of `show_list` with ``--wide``, beside the others.
_WIDE = ("QUEUE", "DUE", "TOOK", "WORKER")

group: JobsGroup = JobsGroup("run list")


@group.command(
    "list",
    epilog=examples(
        "flask jobs admin list --status dead --newer-than 1d",
        "flask jobs admin list --task send_mail --error Timeout",
        "flask jobs admin list --status running --watch",
        "flask jobs admin list -q customer_id:4711 --json id,status,label",
    ),
)
@filtered_by_several
@click.option("--wide", is_flag=True, help="Print more columns, and cut none.")
@listing(20, most=500, json=fields_option)
def show_list(
    which: RunFilter,
    statuses: Sequence[Status],
    limit: int,
    before: int | None,
    wide: bool,
    as_json: str | None,
) -> None:
    """List runs, newest first; of a search, those first that match exactly."""
    state = state_of()
    found = _page(state, which, before, limit, statuses)
    none = "There are no runs yet."
    if not found.rows and (statuses or which != RunFilter()):
        none = f"No runs match.{advice_on(which, 'list')}"
    headers = ["ID", "STATUS", "TASK", "ATTEMPT", "WHEN", "ERROR"]
    if _has_labels(found):
        headers.insert(3, "LABEL")
    if wide:
        headers += _WIDE
    cells = partial(_cells, found, wide=wide)
    print_page("runs", found, as_json, headers, cells, none, uncut=wide)
    if which.search is not None and not as_json:
        _tell_scope(state, which.search, found)


def _tell_scope(state: State, search: str, found: RunPage) -> None:
    """Say where the search has looked, and how far back."""
    where = scope(search, state.settings.show_payload)
    back = "" if found.next is None else f" back to run {found.next}"
    click.echo(f"Searched ids and keys of all runs; {where}{back}.", err=True)


def _page(
    state: State, which: RunFilter, before: int | None, limit: int, statuses: Sequence[Status]
) -> RunPage:
    """Return a full page, in as many searches as it takes; the next one begins after an id.

    What takes longer than `SEARCH_ALL_FOR` is left to the next one.
    """
    rows: list[RunRow] = []
    until = time.monotonic() + SEARCH_ALL_FOR
    while True:
        page = list_runs(state, which, before, limit - len(rows), statuses=statuses)
        rows += page.rows
        if not page.partial or len(rows) >= limit or time.monotonic() >= until:
            return replace(page, rows=rows, next=page.before)
        before = page.before


def advice_on(which: RunFilter, verb: str) -> str:
    """Return what to say where *verb* has found no run of *which*: a name may be misspelled."""
    state = state_of()
    advice = [state.registry.advice(which.task)]
    name = which.definition
    if name is not None and name not in definition_names(state):
        advice.append(str(no_definition(state, name, verb)))
    return printable(as_called("".join(f" {each}" for each in advice if each)))


def _cells(page: RunPage, row: RunRow, wide: bool) -> Sequence[object]:
    when = since(page.now, row.finished_at or row.started_at or row.run_at)
    if row.status in ("queued", "failed"):
        when = since(page.now, row.run_at)
    error = row.error_type if row.status != "skipped" else row.last_error
    if row.handed_to is not None:
        error = f"handed to {row.handed_to}"
    if row.is_stale(page.now):
        error = "worker lost"
    if waits := page.waits.get(row.id, ()):
        error = waits[0].short if waits[0].kind not in ("later", "worker") else error
    label = (row.label,) if _has_labels(page) else ()
    took = None if row.took is None else duration(row.took)
    more = (row.queue, moment(row.run_at), took, row.locked_by) if wide else ()
    attempts = f"{row.attempts}/{row.max_attempts}"
    return row.id, row.status, row.task, *label, attempts, when, error, *more


def _has_labels(page: RunPage) -> bool:
    return any(row.label is not None for row in page.rows)
