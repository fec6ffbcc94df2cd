"""Print paragraphs, tables, times, JSON, and commands to paste into a shell."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click
from flask.cli import FlaskGroup

from ..jobs.humanize import Fact, ago, full, print_age, seconds_since
from ..jobs.reader import plain_data
from ..text import one_line, printable, similar_names
from .terminal import cut_to_width, paint, text_width


def command(*words: str) -> str:
    """Return an admin command."""
    return _line("jobs", "admin", *words)


def this_command(**changed: object) -> str:
    """Return the current command with the parameters *changed*."""
    ctx = click.get_current_context()
    values: dict[str, Any] = {**ctx.params, **changed}
    words = _path(ctx)
    for each in ctx.command.params:
        given = values.get(each.name or "")
        several = isinstance(each, click.Option) and each.multiple
        for value in given or () if several else (given,):
            if value in (None, False, each.default):
                continue
            if isinstance(each, click.Option):
                words.append(each.opts[0])
            if value is not True:
                words.append(print_age(value) if isinstance(value, float) else str(value))
    return _line(*words)


def as_called(text: str) -> str:
    """Return *text* with the ``flask jobs …`` in it as the user has to call it."""
    return text.replace("flask jobs ", f"{one_line(shlex.join(_program()))} jobs ")


def similar(ctx: click.Context, args: Sequence[str], ours: type[click.Group]) -> list[str]:
    """Return the commands that somebody may mean who wrote *args* after the group of *ctx*.

    :param ours: the class of our groups: those of Flask and of the app are left out.
    """
    top = ctx.parent if ctx.parent and isinstance(ctx.parent.command, ours) else ctx
    known = {path[-1]: path for path in _paths(top, [top.info_name or "jobs"], ours)}
    names = args[:1] if args[0] in known else similar_names(args[0], list(known), most=2)
    found = [known[name] for name in names]
    here = [path for path in found if len(path) == len(_path(ctx)) + 1]
    return [_line(*path, *args[1:]) for path in here or found]


def _paths(ctx: click.Context, path: list[str], ours: type[click.Group]) -> Iterator[list[str]]:
    """Yield the words of each command in the group of *ctx*, and in groups below it."""
    assert isinstance(ctx.command, click.Group)
    for name in ctx.command.list_commands(ctx):
        yield [*path, name]
        found = ctx.command.get_command(ctx, name)
        if isinstance(found, ours):
            yield from _paths(click.Context(found, ctx, name), [*path, name], ours)


def _path(ctx: click.Context) -> list[str]:
    """Return the words of the command of *ctx*, from ``jobs`` on."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return words


def _line(*words: str) -> str:
    return one_line(shlex.join((*_program(), *words)))


def _program() -> list[str]:
    """Return ``flask`` as it was called, with its own options, such as ``--app``."""
    ctx = click.get_current_context(silent=True)
    root = None if ctx is None else ctx.find_root()
    if root is None or not isinstance(root.command, FlaskGroup):
        return ["flask"]
    name = root.info_name or "flask"
    program = ["python", name] if name.endswith(".py") else name.split()
    try:
        _, rest, _ = root.command.make_parser(root).parse_args(sys.argv[1:])
    except click.UsageError:
        return program
    given = sys.argv[1 : len(sys.argv) - len(rest)]
    return [*program, *given] if rest[:1] == _path(ctx or root)[:1] else program


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
    """Return *value* in full, such as ``2026-01-31 09:30:00 UTC``; ``-`` for None."""
    return "-" if value is None else full(value)


def since(now: datetime, value: datetime | None) -> str:
    """Return *value* as a distance from *now*, such as ``3 min ago``; ``-`` for None."""
    return "-" if value is None else ago(seconds_since(value, now))


def print_facts(facts: Sequence[Fact], now: datetime) -> None:
    """Print *facts*, one a line."""
    for fact in facts:
        note = since(now, fact.note) if isinstance(fact.note, datetime) else fact.note
        after = f" ({note})" if note else ""
        click.echo(f"  {fact.label:<16} {printable(f'{fact.text}{after}')}")


def print_json(value: object) -> None:
    """Print *value* as JSON."""
    click.echo(json.dumps(plain_data(value), indent=2))


_GAP = "  "
#: A column is not cut to less than this, in cells of the terminal.
_LEAST = 6


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    flexible: int = -1,
    uncut: bool = False,
) -> None:
    """Print *rows* in columns.

    On a terminal, cells are cut so that each row is one line. Elsewhere nothing is cut.

    :param flexible: the index of the column that is cut first.
    :param uncut: cut nothing there either.
    """
    if not rows:
        return
    cells = [[_plain(cell) for cell in row] for row in rows]
    widths = [
        max(text_width(line[at]) for line in [list(headers), *cells]) for at in range(len(headers))
    ]
    if sys.stdout.isatty() and not uncut:
        widths = _fitted(widths, flexible % len(headers))
    click.secho(_cells(headers, widths), bold=True)
    for line in cells:
        click.echo(_cells(line, widths))


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


def _cells(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (_padded(cell, size) for cell, size in zip(cells, widths, strict=True))
    return _GAP.join(padded).rstrip()


def _padded(cell: str, size: int) -> str:
    shown = cut_to_width(cell, size)
    return paint(cell, shown) + " " * (size - text_width(shown))
