"""``mark``, ``marks`` and ``unmark``: what changed at one moment, such as a deploy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from ..jobs.history import Mark, add_mark, list_marks, remove_mark
from ..jobs.state import state_of
from ..text import one_line
from .group import JobsGroup, examples
from .lists import listing, print_page
from .output import command, moment
from .params import actor, time_in_zone

group: JobsGroup = JobsGroup("trends")


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
