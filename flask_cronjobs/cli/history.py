"""What failed, and what operators did: ``errors operations``."""

from __future__ import annotations

from datetime import datetime
from typing import cast

import click

from ..jobs.error_groups import STATES, Decision, ErrorGroup, GroupState, decide, list_errors
from ..jobs.operations import list_operations
from ..jobs.state import state_of
from .output import (
    Listing,
    list_command,
    refuse_to_list,
    since,
)
from .params import actor

#: One letter a day, from none to many.
_BARS = " ▁▂▃▄▅▆▇█"


@list_command(
    "errors",
    "flask jobs admin errors",
    "flask jobs admin errors --resolve 9f86d081884c7d65",
    "flask jobs admin errors --mute 9f86d081884c7d65",
    "flask jobs admin retry --fingerprint 9f86d081884c7d65 --spread 10m",
    limit=20,
    most=200,
    by="",
)
@click.option("--resolve", "resolved", metavar="GROUP", help="It is mended, until seen again.")
@click.option("--mute", "muted", metavar="GROUP", help="Take it out of the open ones for a week.")
@click.option("--reopen", "reopened", metavar="GROUP", help="It is open, whatever was decided.")
@click.option("--state", type=click.Choice(STATES), default="open", help="Only groups of STATE.")
def errors(state: GroupState, limit: int, **decisions: str | None) -> Listing | None:
    """List errors in groups; resolve or mute a group.

    A group is a task, a type and a message without its numbers, hex and quoted text; the latest is
    first. LAST 14 DAYS has a bar a day.
    """
    given = [(what, group) for what, group in decisions.items() if group is not None]
    if len(given) > 1:
        raise click.UsageError("Give one of --resolve, --mute and --reopen.")
    if not given:
        return _list_errors(state, limit)
    refuse_to_list()
    ((what, fingerprint),) = given
    decide(state_of(), cast("Decision", what), fingerprint, actor())
    click.echo(f"{fingerprint}: {_BECAME[what]}.")
    return None


_BECAME = {
    "resolved": "resolved, until it is seen again",
    "muted": "muted for a week",
    "reopened": "open",
}


def _list_errors(state: GroupState, limit: int) -> Listing:
    found = list_errors(state_of(), state, limit)
    headers = ("GROUP", "LAST", "FIRST", "COUNT", "DEAD", "LAST 14 DAYS", "TASK", "ERROR")
    return Listing(
        "errors",
        found,
        headers,
        (_error_cells(row, found.now) for row in found.rows),
        none=f"No errors are {state}.",
        noun="group",
        spare=("FIRST", "LAST 14 DAYS", "COUNT"),
        others={"total": found.total, "numbers": found.numbers},
    )


def _error_cells(row: ErrorGroup, now: datetime) -> tuple[object, ...]:
    most = max(1, *row.days)
    bars = "".join(_BARS[-(-8 * day // most)] for day in row.days)
    said = f"{row.error_type}: {row.pattern}{' (came back)' if row.came_back else ''}"
    times = since(row.last, now), since(row.first, now)
    return row.fingerprint, *times, row.count, row.dead, bars, row.task, said


@list_command(
    *("operations", "flask jobs admin operations"),
    limit=20,
    most=100,
)
def operations(limit: int, before: int | None) -> Listing:
    """List what operators did, newest first.

    Each retry, cancel, discard, pause, resume, run, edit and prune is kept for a year.
    """
    found = list_operations(state_of(), before, limit)
    headers = ("ID", "WHEN", "BY", "WHAT", "RUNS", "BECAME", "TARGET")
    cells = (
        (
            *(row.id, since(row.started_at, found.now), row.actor, row.what),
            "" if row.done is None else f"{row.done:,}",
            "; ".join(filter(None, (row.progress, row.outcome))),
            row.target,
        )
        for row in found.rows
    )
    none = "No operation is recorded."
    return Listing("operations", found, headers, cells, none, spare=("RUNS",))
