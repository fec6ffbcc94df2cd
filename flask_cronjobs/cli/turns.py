"""``turns``: the keys in strict order, and which run has the turn of each."""

from __future__ import annotations

import click

from .. import report
from ..state import state_of
from ..text import one_line
from .command_text import command
from .group import JobsGroup, examples
from .output import print_json
from .params import json_option, limit_option
from .table import table
from .watch import watchable

group: JobsGroup = JobsGroup("turns")


@group.command(
    "turns", epilog=examples("flask jobs admin turns", "flask jobs admin turns --stopped")
)
@click.option("--stopped", is_flag=True, help="Only keys that a dead run stops.")
@click.option("--after", default="", metavar="KEY", help="Only keys after this one.")
@limit_option(50, most=500)
@json_option
@watchable
def turns(stopped: bool, after: str, limit: int, as_json: bool) -> None:
    """List the concurrency keys with a strict order: how many runs wait, and why."""
    found = report.key_orders(state_of(), stopped=stopped, after=after, limit=limit)
    if as_json:
        print_json({"keys": found.rows, "after": found.next})
        return
    if not found.rows:
        click.echo("No key is stopped." if stopped else "No run of a strict order waits or runs.")
        return
    rows = [
        (
            *(each.key, each.waiting, each.first.id, each.first.task, each.first.status),
            each.why(found.now),
        )
        for each in found.rows
    ]
    table(("KEY", "WAITING", "FIRST", "TASK", "STATUS", "WHY"), rows, flexible=5)
    for each in found.rows:
        if each.stopped:
            first = str(each.first.id)
            click.echo(
                f"To go on with {one_line(each.key)}: {command('retry', first)} or "
                f"{command('discard', first)}"
            )
            break
    if found.next is not None:
        click.echo(f"More: {command('turns', '--after', found.next)}")
