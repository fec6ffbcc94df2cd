"""``definitions`` and ``remove``."""

from __future__ import annotations

from collections import Counter

import click

from .. import operations, report
from ..report import DefinitionView
from ..report.humanize import duration, plural
from ..state import state_of
from ..text import one_line, printable
from . import completion
from .command_text import this_command
from .group import JobsGroup, examples
from .output import print_json
from .params import actor, json_option, limit_option
from .terminal import paint
from .watch import watchable

group: JobsGroup = JobsGroup("definitions")


@group.command(
    "definitions",
    epilog=examples("flask jobs admin definitions", "flask jobs admin definitions --after backup"),
)
@limit_option(50, most=200)
@click.option("--after", metavar="NAME", help="Only names after this one.")
@json_option
@watchable
def definitions(limit: int, after: str | None, as_json: bool) -> None:
    """List definitions with their last runs and next slots."""
    page = report.definitions(state_of(), after, limit)
    if as_json:
        print_json({"definitions": page.rows, "after": page.after})
        return
    if not page.rows:
        click.echo(no_definitions())
    for row in page.rows:
        _print(row)
    if page.after is not None:
        click.echo(f"More: {this_command(after=page.after)}", err=True)
    else:
        _print_unscheduled()


@group.command("remove", epilog=examples("flask jobs admin remove old_report"))
@click.argument("name", shell_complete=completion.definitions)
def remove(name: str) -> None:
    """Remove a definition that the code does not declare.

    Its runs stay. A tick of other code that declares it creates it again.
    """
    operations.remove(state_of(), name, actor())
    click.echo(f"Removed {one_line(name)}. Its runs stay.")


def no_definitions() -> str:
    """Return what to print where no tick has recorded a definition."""
    declared = len(state_of().registry.declarations)
    if declared:
        schedules, them = plural(declared, "schedule"), "it" if declared == 1 else "them"
        return (
            f"No definitions yet: this app's code declares {schedules}; "
            f"the next tick records {them}."
        )
    return "No definitions yet: add schedule= to a task; the next tick records it."


def _print(row: DefinitionView) -> None:
    name = click.style(printable(row.name), bold=True)
    click.echo(f"{name}  {printable(row.schedule)}  {printable(row.timezone)}")
    statuses = Counter(cell.status for cell in row.cells)
    counts = ", ".join(f"{paint(status)} {number}" for status, number in statuses.items())
    took = "" if row.last_seconds is None else f"; the last took {duration(row.last_seconds)}"
    task = "" if row.task == row.name else f"task {printable(row.task)}; "
    click.echo(f"  {task}last ten: {counts or 'no runs yet'}{took}")
    for line in _notes(row):
        click.echo(f"  {line}")


def _print_unscheduled() -> None:
    jobs = state_of().registry
    scheduled = {declared.handler.name for declared in jobs.declarations.values()}
    names = sorted(jobs.tasks.keys() - scheduled)
    if names:
        click.echo(f"Tasks without a schedule in the code: {printable(', '.join(names))}")


def _notes(row: DefinitionView) -> list[str]:
    notes: list[str] = []
    if row.broken is not None:
        notes.append(paint("error", f"broken: {printable(row.broken)}"))
    if row.orphaned:
        notes.append(paint("warning", "this app's code declares no task by that name"))
    elif row.undeclared:
        notes.append(paint("warning", "this app's code no longer declares it"))
    if row.paused_at is not None:
        notes.append(paint("warning", "paused"))
    if row.next_slots and not (row.orphaned or row.undeclared):
        slots = ", ".join(f"{slot:%a %Y-%m-%d %H:%M}" for slot in row.next_slots)
        notes.append(f"next: {slots}")
    if row.ping is not None:
        notes.append(f"pings {printable(row.ping)}")
    return notes
