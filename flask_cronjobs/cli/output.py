"""Print paragraphs, tables, times and JSON, on a terminal or into a pipe."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from ..jobs.humanize import Fact, ago, seconds_since, utc
from ..jobs.reader import Page, plain_data
from ..text import one_line, printable
from .command_text import this_command
from .terminal import cut_to_width, paint, text_width

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


def print_facts(facts: Sequence[Fact], now: datetime) -> None:
    """Print *facts*, one a line."""
    for fact in facts:
        note = since(now, fact.note) if isinstance(fact.note, datetime) else fact.note
        after = f" ({note})" if note else ""
        click.echo(f"  {fact.label:<16} {printable(f'{fact.text}{after}')}")


def tell_next(page: Page[Any], word: str = "Older", by: str = "before") -> None:
    """Print the command that shows what comes behind *page*, if anything does.

    :param by: the option of the command that takes where *page* ended.
    """
    if page.next is not None:
        click.echo(f"{word}: {this_command(**{by: page.next})}", err=True)


def print_json(value: object) -> None:
    """Print *value* as JSON."""
    click.echo(json.dumps(plain_data(value), indent=2))


_GAP = "  "
#: A column is not cut to less than this, in cells of the terminal.
_LEAST = 6


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], flexible: int = -1) -> None:
    """Print *rows* in columns.

    On a terminal, cells are cut so that each row is one line. Elsewhere nothing is cut.

    :param flexible: the index of the column that is cut first.
    """
    if not rows:
        return
    cells = [[_plain(cell) for cell in row] for row in rows]
    widths = [
        max(text_width(line[at]) for line in [list(headers), *cells]) for at in range(len(headers))
    ]
    if sys.stdout.isatty():
        widths = _fitted(widths, flexible % len(headers))
    click.secho(_line(headers, widths), bold=True)
    for line in cells:
        click.echo(_line(line, widths))


def _plain(cell: object) -> str:
    """Return a cell as one line without control characters."""
    return one_line("" if cell is None else str(cell))


def _fitted(widths: list[int], flexible: int) -> list[int]:
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width()
    order = [flexible, *sorted(range(len(widths)), key=lambda at: -widths[at])]
    for at in order:
        if over <= 0:
            break
        taken = min(over, max(0, widths[at] - _LEAST))
        widths[at] -= taken
        over -= taken
    return widths


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (_padded(cell, size) for cell, size in zip(cells, widths, strict=True))
    return _GAP.join(padded).rstrip()


def _padded(cell: str, size: int) -> str:
    shown = cut_to_width(cell, size)
    return paint(cell, shown) + " " * (size - text_width(shown))
