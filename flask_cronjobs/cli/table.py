"""Tables: they fit a terminal, and are whole in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from ..text import one_line
from .output import width
from .terminal import cut_to_width, paint, text_width

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
