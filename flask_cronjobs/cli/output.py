"""Print tables, colors and JSON, on a terminal or into a pipe."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from typing import Any, cast

import click

from ..report.ages import print_age
from ..report.humanize import ago, seconds_since, utc
from ..text import one_line, printable

#: The width of a line, in characters, where there is no terminal.
WIDTH = 80
_GAP = "  "
_LEAST = 6

COLORS = {
    "succeeded": "green",
    "running": "cyan",
    "failed": "yellow",
    "dead": "red",
    "cancelled": "bright_black",
    "skipped": "bright_black",
    "ok": "green",
    "info": "blue",
    "warn": "yellow",
    "warning": "yellow",
    "error": "red",
    "late": "red",
    "never": "red",
    "overdue": "red",
    "in_doubt": "red",
    "begun": "cyan",
    "done": "green",
}


def paint(status: str, text: str | None = None) -> str:
    """Return *text* in the color of a status or level; `click.echo` strips colors in pipes."""
    text = status if text is None else text
    return click.style(text, fg=COLORS[status]) if status in COLORS else text


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


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], flexible: int = -1) -> None:
    """Print *rows* in columns.

    :param flexible: the index of the column that is cut first if the table is too wide.
    """
    if not rows:
        return
    cells = [[_plain(cell) for cell in row] for row in rows]
    widths = [max(len(line[at]) for line in [list(headers), *cells]) for at in range(len(headers))]
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
    padded = (
        paint(cell, _cut(cell, size).ljust(size)) for cell, size in zip(cells, widths, strict=True)
    )
    return _GAP.join(padded).rstrip()


def _cut(text: str, size: int) -> str:
    """Return *text* in at most *size* characters."""
    return text if len(text) <= size else f"{text[: max(0, size - 1)]}…"


def width() -> int:
    """Return the width of a line, in characters."""
    if sys.stdout.isatty():
        return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)
    return WIDTH


def command(*words: str) -> str:
    """Return an admin command to paste into a shell, with its words quoted."""
    return one_line(shlex.join(("flask", "jobs", "admin", *words)))


def this_command(**changed: object) -> str:
    """Return the current command as a shell line, with the options *changed*."""
    ctx = click.get_current_context()
    values = {**ctx.params, **changed}
    parts = ["flask", *ctx.command_path.split()[-3:]]
    for option in ctx.command.params:
        value = values.get(option.name or "")
        if value is True:
            parts.append(option.opts[0])
        elif value not in (None, False, option.default):
            parts += [option.opts[0], print_age(value) if isinstance(value, float) else str(value)]
    return one_line(shlex.join(parts))


def moment(value: datetime | None) -> str:
    """Return *value* as ``2026-01-31 09:30:00 UTC``; ``-`` for None."""
    return "-" if value is None else utc(value)


def since(now: datetime, value: datetime | None) -> str:
    """Return *value* as a distance from *now*, such as ``3 min ago``; ``-`` for None."""
    return "-" if value is None else ago(seconds_since(value, now))


def plain_data(value: Any) -> Any:
    """Return *value* for JSON: dataclasses as objects, times as ISO 8601 texts in UTC."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    if isinstance(value, (list, tuple)):
        return [plain_data(member) for member in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: plain_data(member) for key, member in members.items()}
    return value


def print_json(value: object) -> None:
    """Print *value* as JSON."""
    click.echo(json.dumps(plain_data(value), indent=2))
