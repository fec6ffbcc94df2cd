"""Print paragraphs, times and JSON, on a terminal or into a pipe."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from datetime import datetime
from typing import Any

import click

from ..report.humanize import ago, seconds_since, utc
from ..report.paging import Page
from ..report.plain import plain_data
from ..text import printable
from .command_text import this_command

#: The width of a line, in characters, where there is no terminal.
WIDTH = 80


def paragraph(first: str, rest: str, text: str) -> None:
    """Print *text* with *first* before its first line and *rest* before the others.

    A terminal gets wrapped lines; a pipe gets one line, which is easy to search and copy.
    """
    if not sys.stdout.isatty():
        click.echo(first + printable(text))
        return
    # Colors would count as characters.
    plain = click.unstyle(first)
    lines = textwrap.wrap(
        printable(text),
        width(),
        initial_indent=plain,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    click.echo("\n".join(lines).replace(plain, first, 1))


def heading(text: str) -> None:
    """Print a heading."""
    click.echo()
    click.secho(text, bold=True)


def width() -> int:
    """Return the width of a line, in characters."""
    if sys.stdout.isatty():
        return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)
    return WIDTH


def moment(value: datetime | None) -> str:
    """Return *value* as ``2026-01-31 09:30:00 UTC``; ``-`` for None."""
    return "-" if value is None else utc(value)


def since(now: datetime, value: datetime | None) -> str:
    """Return *value* as a distance from *now*, such as ``3 min ago``; ``-`` for None."""
    return "-" if value is None else ago(seconds_since(value, now))


def tell_older(page: Page[Any]) -> None:
    """Print the command that shows what is older than *page*, if anything is."""
    if page.next is not None:
        click.echo(f"Older: {this_command(before=page.next)}", err=True)


def print_json(value: object) -> None:
    """Print *value* as JSON."""
    click.echo(json.dumps(plain_data(value), indent=2))
