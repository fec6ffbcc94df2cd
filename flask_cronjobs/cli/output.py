"""Declare admin commands, and print their paragraphs, tables, lists and JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial, wraps
from typing import Any, TypeAlias

import click

from ..insights.health_checks import Finding
from ..insights.reader import Page, plain_data
from ..text import one_line, printable
from ..text.humanize import Fact, ago, full, seconds_since
from .group import JobsGroup, as_called, examples, this_command
from .params import JSON_FLAG, WIDE, paging
from .terminal import paint

#: Characters in a line where there is no terminal.
WIDTH = 80
#: The space between two columns of a table.
_GAP = "  "
#: The least width to which a column is cut, in characters.
_LEAST_WIDTH = 6


def width() -> int:
    """Return the width of a line, in characters."""
    if sys.stdout.isatty():
        return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)
    return WIDTH


def heading(text: str) -> None:
    """Print a heading."""
    click.echo()
    click.secho(text, bold=True)


def indented(text: str) -> str:
    """Return foreign *text* with each line indented, so that no line looks like ours."""
    return textwrap.indent(printable(text).rstrip(), "  ", lambda _: True)


def paragraph(first: str, rest: str, text: str) -> None:
    """Print *text* with *first* before its first line and *rest* before the others.

    A terminal gets wrapped lines; a pipe gets one line, which is easy to search and copy.
    """
    if not sys.stdout.isatty():
        click.echo(first + one_line(text))
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


def moment(value: datetime | None) -> str:
    """Return *value* in full, such as ``2026-01-31 09:30:00 UTC``; ``-`` for None."""
    return "-" if value is None else full(value)


def since(value: datetime | None, now: datetime) -> str:
    """Return *value* as a distance from *now*, such as ``3 min ago``; ``-`` for None."""
    return "-" if value is None else ago(seconds_since(value, now))


def print_facts(facts: Sequence[Fact], now: datetime) -> None:
    """Print each of *facts* on its own line."""
    longest = max((len(fact.label) for fact in facts), default=0)
    for fact in facts:
        note = since(fact.note, now) if isinstance(fact.note, datetime) else fact.note
        after = f" ({note})" if note else ""
        click.echo(indented(f"{fact.label:<{longest}} {fact.text}{after}"))


def print_finding(finding: Finding, what: str) -> None:
    """Print the level of a finding, the text *what*, and the advice."""
    if what:
        paragraph(paint(finding.level, f"{finding.level:<8}"), " " * 8, as_called(what))
    if finding.todo:
        paragraph(" " * 8 + "-> ", " " * 11, as_called(finding.todo))


def is_wide() -> bool:
    """Return whether the command was called with ``--wide``."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.params.get("wide"))


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print *rows* in columns.

    On a terminal, the widest cells are cut until each row is one line, unless the command was
    called with ``--wide``. Elsewhere nothing is cut.
    """
    cells = [["" if cell is None else one_line(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    if sys.stdout.isatty() and not is_wide():
        room = width() - len(_GAP) * (len(widths) - 1)
        while sum(widths) > room and max(widths) > _LEAST_WIDTH:
            widths[widths.index(max(widths))] -= 1
    click.secho(_line(headers, widths), bold=True)
    for line in cells:
        click.echo(_line(line, widths))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut_cells = ((cell, _cut(cell, size), size) for cell, size in zip(cells, widths, strict=True))
    padded = (paint(cell, text) + " " * (size - len(text)) for cell, text, size in cut_cells)
    return _GAP.join(padded).rstrip()


def _cut(text: str, size: int) -> str:
    """Return *text* in at most *size* characters.

    A name, which has no space, is cut in the middle, since its end matters as much as its start.
    """
    if len(text) <= size:
        return text
    tail = 0 if " " in text else (size - 1) // 2
    return f"{text[: size - 1 - tail]}…{text[len(text) - tail :]}"


@dataclass(frozen=True)
class Answer:
    """The output of a command.

    :ivar data: the output for ``--json``.
    :ivar text: the output otherwise, or a function that prints it.
    :ivar status: the exit status.
    """

    data: object
    text: str | Callable[[], object]
    status: int = 0

    def print(self, as_json: bool) -> None:
        """Print the answer, and exit if the status is not 0."""
        if as_json:
            click.echo(json.dumps(plain_data(self.data), indent=2))
        elif callable(self.text):
            self.text()
        else:
            click.echo(self.text)
        if self.status:
            raise click.exceptions.Exit(self.status)


def listing(
    name: str,
    page: Page[Any],
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    none: str,
    *,
    above: Iterable[str] = (),
    below: Iterable[str] = (),
    note: str = "",
    **others: object,
) -> Answer:
    """Return the output of a list: the table of a page, and the command for the next page.

    :param name: the name of the rows in JSON.
    :param rows: the cells of each row of *page*.
    :param none: the text to print if there are no rows at all.
    :param above: the lines to print before the table.
    :param below: the lines to print after the table.
    :param note: a line for standard error.
    :param others: more values for JSON.
    """
    if click.get_current_context().params.get(_next_option()) is not None:
        none = f"There are no {'older' if _next_option() == 'before' else 'more'} {name}."

    def show() -> None:
        for line in (*above, *(() if page.rows else (none,))):
            click.echo(line)
        if page.rows:
            table(headers, rows)
        for line in below:
            click.echo(line)
        for line in filter(None, (_next(page), note)):
            click.echo(line, err=True)

    return Answer({name: page.rows, **others, _next_option(): page.next}, show)


def _next(page: Page[Any]) -> str:
    """Return the command for the next page, or the number of rows if only some are shown."""
    if page.next is not None:
        word = "Older" if _next_option() == "before" else "More"
        return f"{word}: {this_command(**{_next_option(): page.next})}"
    cut = page.cut("row")
    return f"These are {cut}." if cut else ""


def _next_option() -> str:
    """Return the option of this command that continues after a page: ``after`` or ``before``."""
    return "after" if "after" in click.get_current_context().params else "before"


Function: TypeAlias = Callable[..., Any]
#: The commands of ``admin``, which their modules declare, and the help section of each.
COMMANDS: JobsGroup = JobsGroup("admin")
SECTIONS: dict[str, str] = {}


def admin_command(
    section: str, options: Sequence[click.Parameter], name: str, *calls: str
) -> Callable[[Function], click.Command]:
    """Return a decorator that makes a function the command *name* of ``admin``.

    The function returns an `Answer`, or prints its output itself.

    :param options: options to add after the function's own.
    :param calls: examples for the help.
    """

    def make(function: Function) -> click.Command:
        command: click.Command = COMMANDS.command(name, epilog=examples(*calls))(
            _printing(function)
        )
        command.params += options
        SECTIONS[name] = section
        return command

    return make


def _printing(function: Function) -> Function:
    """Return a function that calls *function* and prints its `Answer`, if it returns one."""

    @wraps(function)
    def call(*args: Any, as_json: bool = False, wide: bool = False, **arguments: Any) -> None:
        answer = function(*args, **arguments)
        if answer is not None:
            answer.print(as_json)

    return call


_Decorated: TypeAlias = partial[Callable[[Function], click.Command]]
look: _Decorated = partial(admin_command, "Look", [JSON_FLAG])
act: _Decorated = partial(admin_command, "Act", [])
set_up: _Decorated = partial(admin_command, "Set up", [JSON_FLAG])


def look_at_list(
    name: str, *calls: str, limit: int = 0, by: str = "ID"
) -> Callable[[Function], click.Command]:
    """Return a decorator for a list, whose function returns the result of `listing`.

    :param limit: the default of ``--limit``; 0 for a list that always prints all rows.
    :param by: the placeholder of the option that continues the list: ``ID`` for ``--before``, or
        another name for ``--after``.
    """
    options = [*(paging(limit, by) if limit else ()), JSON_FLAG, WIDE]
    return admin_command("Look", options, name, *calls)


def refuse_json() -> None:
    """Refuse ``--json``, since this call of the command prints no data."""
    if click.get_current_context().params["as_json"]:
        raise click.UsageError("--json is only for lists and views. Leave it out.")
