"""``trend``: this week against last. ``mark``, ``marks`` and ``unmark``: what changed when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from ..errors import NotFound
from ..jobs.history import Mark, add_mark, list_marks, remove_mark
from ..jobs.humanize import duration, printed_zone
from ..jobs.reader import reading
from ..jobs.state import state_of
from ..jobs.trends import BUSIEST, DAY, WEEK, Period, Trend, read_trend, read_trends
from ..text import did_you_mean, one_line
from .group import JobsGroup, examples
from .lists import listing, print_page
from .output import command, moment, print_json, table
from .params import actor, complete_tasks, json_option, time_in_zone
from .terminal import paint

group: JobsGroup = JobsGroup("trends")


@group.command(
    "trend", epilog=examples("flask jobs admin trend", "flask jobs admin trend send_invoice")
)
@click.argument("task", required=False, shell_complete=complete_tasks)
@json_option
def trend(task: str | None, as_json: bool) -> None:
    """Compare this week with last: how many runs ended, and how long they took.

    All tasks, the slower first; or TASK, day by day. Numbers are of whole hours, within a tenth.
    """
    if task is not None:
        _print_task(task, as_json)
        return
    with reading(state_of()) as reader:
        found = read_trends(reader)
        marks = list_marks(reader, since=reader.now - 2 * WEEK).rows
    if as_json:
        print_json({"tasks": found, "marks": marks})
        return
    if not found:
        click.echo("No run has ended within two weeks, as far as whole hours are written.")
    headers = ("TASK", "RUNS", "DEAD", "MEDIAN", "95 %", "LAST WEEK", "DEAD", "MEDIAN", "95 %", "")
    cells = [
        (each.task, *_cells(each.this_week), *_cells(each.last_week), each.compared)
        for each in found
    ]
    table(headers, cells, flexible=0)
    for mark in marks:
        click.echo(f"Marked {one_line(mark.name)} at {moment(mark.at)}.")
    if len(found) == BUSIEST:
        click.echo(f"These are the {BUSIEST} tasks of which most runs ended.")


def _print_task(task: str, as_json: bool) -> None:
    zone = printed_zone.get(None)
    found = read_trend(state_of(), task, None if zone is None else str(zone))
    if not found.days:
        tasks = state_of().registry.tasks
        hint = "" if task in tasks else did_you_mean(task, tasks)
        raise NotFound(f"No run of the task {task!r} has ended within four weeks.{hint}")
    if as_json:
        print_json(found)
        return
    said = one_line(str(found))
    click.echo(paint("warn", said) if found.slower else said)
    headers = ("DAY", "RUNS", "DEAD", "MEDIAN", "95 %", "95 % WAITED", "MARKED")
    cells = [
        (f"{day.start:%a %Y-%m-%d}", *_cells(day), _seconds(day.waited), _marked(found, day))
        for day in reversed(found.days)
    ]
    table(headers, cells)


def _cells(period: Period) -> tuple[str, ...]:
    counts = (f"{number:,}" for number in (period.ended, period.dead))
    return *counts, _seconds(period.p50), _seconds(period.p95)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _marked(found: Trend, day: Period) -> str:
    end = day.start + DAY
    return ", ".join(mark.name for mark in reversed(found.marks) if day.start <= mark.at < end)


@group.command("mark", epilog=examples("flask jobs admin mark v812"))
@click.argument("name")
@click.option("--at", type=time_in_zone, metavar="TIME", help="When that was, else now.")
def mark(name: str, at: datetime | None) -> None:
    """Put a line into the charts: NAME is what changed now, such as a deploy."""
    if not name.strip():
        raise click.BadParameter("A mark needs a name, such as v812.")
    made = add_mark(state_of(), name, at, actor())
    undo = command("unmark", str(made.id))
    click.echo(f"Marked {one_line(made.name)} at {moment(made.at)}. To remove it: {undo}")


@group.command("marks", epilog=examples("flask jobs admin marks"))
@listing(20, most=500)
def marks(limit: int, before: int | None, as_json: bool) -> None:
    """List the marks, newest first."""
    found = list_marks(state_of(), limit, before)
    none = f"There are no {'older ' if before else ''}marks. To make one: {command('mark', 'v812')}"

    def cells(row: Mark) -> Sequence[object]:
        return row.id, moment(row.at), row.name, row.by

    print_page("marks", found, as_json, ("ID", "AT", "NAME", "BY"), cells, none, flexible=2)


@group.command("unmark", epilog=examples("flask jobs admin unmark 5"))
@click.argument("id", type=click.IntRange(1, 2**63 - 1))
def unmark(id: int) -> None:
    """Remove the mark ID."""
    click.echo(f"Removed the mark {one_line(remove_mark(state_of(), id, actor()))}.")
