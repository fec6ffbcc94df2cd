"""Print paragraphs, tables, times, JSON, pages of rows, and commands to paste into a shell."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from functools import partial, wraps
from io import StringIO
from typing import Any, TypeVar

import click
from flask.cli import FlaskGroup

from ..errors import CronJobsError
from ..jobs.humanize import Fact, ago, full, print_age, seconds_since
from ..jobs.reader import Page, plain_data
from ..text import did_you_mean, one_line, printable, similar_names
from .params import ALL_FIELDS, Id, json_option
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


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

#: How often a list is printed with ``--watch``, in seconds.
EVERY = 2.0

# To the screen that programs use which fill it, without a cursor and without wrapped lines; back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_TOP, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def listing(
    default: int, most: int, after: str | None = None, json: Callable[[Any], Any] = json_option
) -> Callable[[F], F]:
    """Return a decorator that adds ``--limit``, ``--before``, ``--json`` and ``--watch``.

    :param after: what ``--after`` takes, which the command has in place of ``--before``.
    :param json: adds ``--json``.
    """
    limit = click.option(
        "--limit",
        type=click.IntRange(1, most),
        metavar="N",
        default=default,
        show_default=True,
        help="Print at most N.",
    )
    if after is None:
        behind = click.option("--before", type=Id(), metavar="ID", help="Only smaller ids.")
    else:
        behind = click.option("--after", metavar=after, help=f"Only what comes after {after}.")
    return lambda command: limit(behind(json(watchable(command))))


def print_page(
    name: str,
    page: Page[T],
    as_json: bool | str | None,
    headers: Sequence[str],
    cells: Callable[[T], Sequence[object]],
    none: str,
    flexible: int = -1,
    uncut: bool = False,
    **data: object,
) -> None:
    """Print the rows of *page* as a table or as JSON, and the command for the next page.

    :param name: what the rows are in JSON.
    :param none: what to print if there are none.
    :param as_json: which fields of the rows JSON has, if not all; false: a table.
    :param flexible: see `table`.
    :param uncut: see `table`.
    :param data: what else JSON has.
    """
    if as_json:
        print_json({name: _chosen(page.rows, as_json), **data, _behind(): page.next})
        return
    if not page.rows:
        click.echo(none)
    table(headers, [cells(row) for row in page.rows], flexible, uncut)
    print_next(page)


def _chosen(rows: Sequence[object], fields: bool | str) -> Sequence[object]:
    """Return *rows* for JSON, with the *fields* that were asked for."""
    if fields in (True, ALL_FIELDS):
        return rows
    names = [name.strip() for name in str(fields).split(",")]
    whole: list[dict[str, object]] = plain_data(rows)
    for name in names:
        if whole and name not in whole[0]:
            raise click.UsageError(
                f"--json: there is no field {name!r}.{did_you_mean(name, whole[0])}"
            )
    return [{name: row[name] for name in names} for row in whole]


def print_next(page: Page[Any]) -> None:
    """Print the command that shows what comes behind *page*, if anything does."""
    by = _behind()
    if page.next is not None:
        word = "Older" if by == "before" else "More"
        click.echo(f"{word}: {this_command(**{by: page.next})}", err=True)


def print_cut(page: Page[Any], noun: str) -> None:
    """Print how many rows *page* shows, if it leaves some out."""
    if said := page.cut(noun):
        click.echo(f"These are {said}.")


def _behind() -> str:
    """Return the option of this command that takes where a page ended."""
    return "after" if "after" in click.get_current_context().params else "before"


def watchable(command: F) -> F:
    """Add ``--watch`` to *command*, which prints a list and takes ``as_json``."""

    @wraps(command)
    def call(*args: Any, watch: bool, as_json: bool | str | None, **kwargs: Any) -> None:
        repeat(partial(command, *args, **kwargs), watch, as_json)

    return watch_option(call)  # type: ignore[return-value]


def watch_option(command: F) -> F:
    """Add ``--watch`` to *command*, which gets ``watch``."""
    does = f"Print it every {EVERY:g} s, until Ctrl-C."
    return click.option("--watch", is_flag=True, help=does)(command)


def refuse_to_list() -> None:
    """Refuse ``--json`` and ``--watch`` where the current command changes something."""
    given = click.get_current_context().params
    if given["as_json"] or given["watch"]:
        raise click.UsageError("--json and --watch are for a list. Leave them out of a change.")


def repeat(command: Callable[..., object], watch: bool, as_json: bool | str | None) -> None:
    """Call *command*, which takes ``as_json``: once, or with *watch* until Ctrl-C."""
    if not watch:
        command(as_json=as_json)
        return
    if as_json or not sys.stdout.isatty():
        raise click.UsageError("--watch is for a terminal, without --json.")
    with _full_screen():
        while True:
            _show(_output(partial(command, as_json=False)))
            time.sleep(EVERY)


class _Page(StringIO):
    """What a command prints for a terminal."""

    def isatty(self) -> bool:
        return True


def _output(command: Callable[[], object]) -> str:
    page = _Page()
    with redirect_stdout(page), redirect_stderr(page):
        try:
            command()
        except CronJobsError as error:  # It may be gone the next time.
            click.echo(f"Error: {printable(as_called(str(error)))}")
    return page.getvalue()


def _show(output: str) -> None:
    """Show as many lines of *output* as there is room for."""
    head = f"{time.strftime('%H:%M:%S')}  every {EVERY:g} s: {this_command(watch=None)}"
    rows = shutil.get_terminal_size().lines
    lines = [head, "", *output.splitlines()][: max(1, rows - 1)]
    body = "".join(f"{line}{_REST_OF_LINE}\r\n" for line in lines)
    sys.stdout.write(f"{_TOP}{body}{_REST_OF_SCREEN}")
    sys.stdout.flush()


@contextmanager
def _full_screen() -> Generator[None]:
    """Use the whole screen; Ctrl-C ends it in good order."""
    sys.stdout.write(_ENTER)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
