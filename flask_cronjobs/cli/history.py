"""What failed, how long runs take, what operators did: ``errors trend mark marks operations``."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import cast

import click

from ..errors import NotFound
from ..jobs.error_groups import STATES, Decision, ErrorGroup, GroupState, decide, list_errors
from ..jobs.history import add_mark, list_marks, remove_mark
from ..jobs.humanize import duration
from ..jobs.operations import list_operations
from ..jobs.reader import Page, reading
from ..jobs.state import state_of
from ..jobs.trends import BUSIEST, DAY, WEEK, Period, Trend, read_trend, read_trends
from ..text import did_you_mean, one_line
from .group import command
from .output import (
    Answer,
    Listing,
    admin_command,
    list_command,
    moment,
    refuse_to_list,
    since,
    table,
)
from .params import Id, actor, time_in_zone
from .terminal import paint

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
    headers = (
        "GROUP",
        "LAST",
        "FIRST",
        "COUNT",
        "DEAD",
        "LAST 14 DAYS",
        "NEW SINCE",
        "TASK",
        "ERROR",
    )
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
    return row.fingerprint, *times, row.count, row.dead, bars, row.new_since, row.task, said


@list_command(*("trend", "flask jobs admin trend", "flask jobs admin trend send_invoice"))
@click.argument("task", required=False)
def trend(task: str | None) -> Listing | Answer:
    """Compare this week with last: how many runs, how long.

    All tasks, the slower first; or TASK, day by day. Counted by whole hours; times are right within
    a tenth.
    """
    if task is not None:
        found = _trend_of(task)
        return Answer(found, partial(_print_trend, found))
    with reading(state_of()) as reader:
        tasks = Page(read_trends(reader), None, reader.now)
        marks = list_marks(reader, since=reader.now - 2 * WEEK).rows
    headers = ("TASK", "RUNS", "DEAD", "MEDIAN", "95 %", "LAST WEEK", "DEAD", "BEFORE", "95 %", "")
    below = [f"Marked {one_line(mark.name)} at {moment(mark.at)}." for mark in marks]
    if len(tasks.rows) == BUSIEST:
        below.append(f"These are the {BUSIEST} tasks of which most runs ended.")
    return Listing(
        "tasks",
        tasks,
        headers,
        (
            (row.task, *_period_cells(row.this_week), *_period_cells(row.last_week), row.compared)
            for row in tasks.rows
        ),
        none="No run has ended within two weeks; the hour under way does not count.",
        flexible=0,
        spare=("DEAD", "95 %", "LAST WEEK"),
        below=below,
        others={"marks": marks},
    )


def _trend_of(task: str) -> Trend:
    found = read_trend(state_of(), task, state_of().settings.timezone)
    if not found.days:
        tasks = state_of().registry.tasks
        hint = "" if task in tasks else did_you_mean(task, tasks)
        raise NotFound(f"No run of the task {task!r} has ended within four weeks.{hint}")
    return found


def _print_trend(found: Trend) -> None:
    said = one_line(str(found))
    click.echo(paint("warn", said) if found.slower else said)
    headers = ("DAY", "RUNS", "DEAD", "MEDIAN", "95 %", "95 % WAITED", "MARKED")
    cells: list[tuple[object, ...]] = []
    for day in reversed(found.days):
        end = day.start + DAY
        marks = ", ".join(each.name for each in reversed(found.marks) if day.start <= each.at < end)
        waited = _seconds(day.waited)
        cells.append((f"{day.start:%a %Y-%m-%d}", *_period_cells(day), waited, marks))
    table(headers, cells)


def _period_cells(period: Period) -> tuple[str, ...]:
    counts = (f"{number:,}" for number in (period.ended, period.dead))
    return *counts, _seconds(period.p50), _seconds(period.p95)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


@admin_command("mark", "flask jobs admin mark v812")
@click.argument("name")
@click.option("--at", type=time_in_zone, metavar="TIME", help="When that was, else now.")
def mark(name: str, at: datetime | None) -> None:
    """Mark in the charts what changed now, such as a deploy."""
    if not name.strip():
        raise click.BadParameter("A mark needs a name, such as v812.")
    made = add_mark(state_of(), name, at, actor())
    undo = command("unmark", str(made.id))
    click.echo(f"Marked {one_line(made.name)} at {moment(made.at)}. To remove it: {undo}")


@list_command("marks", "flask jobs admin marks", limit=20, most=500)
def marks(limit: int, before: int | None) -> Listing:
    """List the marks, newest first."""
    found = list_marks(state_of(), limit, before)
    none = f"There are no {'older ' if before else ''}marks. To make one: {command('mark', 'v812')}"
    cells = ((row.id, moment(row.at), row.name, row.by) for row in found.rows)
    return Listing("marks", found, ("ID", "AT", "NAME", "BY"), cells, none, flexible=2)


@admin_command("unmark", "flask jobs admin unmark 5")
@click.argument("id", type=Id())
def unmark(id: int) -> None:
    """Remove the mark ID."""
    click.echo(f"Removed the mark {one_line(remove_mark(state_of(), id, actor()))}.")


@list_command(
    *("operations", "flask jobs admin operations"),
    limit=20,
    most=100,
)
def operations(limit: int, before: int | None) -> Listing:
    """List what operators did, newest first.

    Each retry, cancel, discard, pause, resume, run, edit, mark and prune is kept for a year.
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
