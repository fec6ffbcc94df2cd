"""``errors``: groups of failed attempts, and what to do about them."""

from __future__ import annotations

import click

from ..jobs.error_groups import (
    MUTED_FOR,
    STATES,
    Decision,
    ErrorGroup,
    ErrorList,
    GroupState,
    decide,
    list_errors,
)
from ..jobs.humanize import duration
from ..jobs.state import state_of
from .group import JobsGroup, examples
from .output import command, print_json, since, table
from .params import actor, age, json_option

group: JobsGroup = JobsGroup("errors")

#: One letter a day, from none to many.
_BARS = " ▁▂▃▄▅▆▇█"


@group.command(
    "errors",
    epilog=examples(
        "flask jobs admin errors",
        "flask jobs admin errors --resolve 9f86d081884c7d65",
        "flask jobs admin errors --mute 9f86d081884c7d65 --for 2d",
        "flask jobs admin retry --fingerprint 9f86d081884c7d65 --spread 10m",
    ),
)
@click.option("--resolve", "resolved", metavar="GROUP", help="It is mended, until seen again.")
@click.option("--mute", "muted", metavar="GROUP", help="Take it out of the open ones for a week.")
@click.option("--for", "seconds", type=age, metavar="AGE", help="Mute it for AGE instead.")
@click.option("--reopen", "reopened", metavar="GROUP", help="It is open, whatever was decided.")
@click.option("--state", type=click.Choice(STATES), default="open", help="Only groups of STATE.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, metavar="N", show_default=True)
@json_option
def errors(
    resolved: str | None,
    muted: str | None,
    seconds: float | None,
    reopened: str | None,
    state: GroupState,
    limit: int,
    as_json: bool,
) -> None:
    """List errors by task, type and message, the latest first; resolve or mute a group.

    Numbers, hex and what is quoted in messages do not count. LAST 14 DAYS has a bar a day.
    """
    asked: dict[Decision, str | None] = {"resolved": resolved, "muted": muted, "reopened": reopened}
    given: list[tuple[Decision, str]]
    given = [(what, group) for what, group in asked.items() if group is not None]
    if len(given) > 1:
        raise click.UsageError("Give one of --resolve, --mute and --reopen.")
    if seconds is not None and muted is None:
        raise click.UsageError("--for goes with --mute.")
    if not given:
        _list(list_errors(state_of(), state, limit), state, as_json)
    for what, fingerprint in given:
        decide(state_of(), what, fingerprint, actor(), long := seconds or MUTED_FOR)
        click.echo(f"{fingerprint}: {_BECAME[what].format(duration(long))}.")


_BECAME = {
    "resolved": "resolved, until it is seen again",
    "muted": "muted for {}",
    "reopened": "open",
}


def _list(found: ErrorList, state: GroupState, as_json: bool) -> None:
    if as_json:
        print_json({"errors": found.rows, "total": found.total, "numbers": found.numbers})
        return
    if not found.rows:
        click.echo(f"No errors are {state}.")
    headers = ("GROUP", "LAST", "FIRST", "COUNT", "DEAD", "LAST 14 DAYS", "TASK", "ERROR")
    table(headers, [_cells(found, row) for row in found.rows])
    if len(found.rows) < found.total.value:
        click.echo(f"{found.shown}. More: {command('errors', '--limit', '200')}", err=True)


def _cells(found: ErrorList, row: ErrorGroup) -> tuple[object, ...]:
    most = max(1, *row.days)
    bars = "".join(_BARS[-(-8 * day // most)] for day in row.days)
    notes = "(came back)" if row.came_back else "", f"(new since {row.new_since})"
    said = f"{row.error_type}: {row.pattern} {notes[0]}{notes[1] if row.new_since else ''}".strip()
    times = since(found.now, row.last), since(found.now, row.first)
    return row.fingerprint, *times, row.count, row.dead, bars, row.task, said
