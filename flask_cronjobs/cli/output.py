"""Print paragraphs, tables, times and JSON; make commands of functions that list something."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, TypeAlias

import click

from ..jobs.health import Finding
from ..jobs.humanize import Fact, ago, full, seconds_since
from ..jobs.reader import Page, plain_data
from ..text import one_line, printable
from .group import JobsGroup, as_called, examples, this_command
from .params import JSON_FLAG, WIDE, Id
from .terminal import paint

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


def since(value: datetime | None, now: datetime) -> str:
    """Return *value* as a distance from *now*, such as ``3 min ago``; ``-`` for None."""
    return "-" if value is None else ago(seconds_since(value, now))


def print_facts(facts: Sequence[Fact], now: datetime) -> None:
    """Print *facts*, one a line."""
    longest = max((len(fact.label) for fact in facts), default=0)
    for fact in facts:
        note = since(fact.note, now) if isinstance(fact.note, datetime) else fact.note
        after = f" ({note})" if note else ""
        click.echo(printable(f"  {fact.label:<{longest}} {fact.text}{after}"))


def print_finding(found: Finding, what: str) -> None:
    """Print *what* a finding says, with its level, and what to do."""
    if what:
        paragraph(paint(found.level, f"{found.level:<8}"), " " * 8, as_called(what))
    if found.todo:
        paragraph(" " * 8 + "-> ", " " * 11, as_called(found.todo))


_GAP = "  "
#: A column is not cut to less than this, in characters.
_LEAST = 6
#: Before the column that is cut first has less than this, those that can be spared are left out.
_ENOUGH = 20


def is_wide() -> bool:
    """Return whether the command was called with ``--wide``."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.params.get("wide"))


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    flexible: int = -1,
    spare: Sequence[str] = (),
) -> None:
    """Print *rows* in columns.

    On a terminal, columns are left out and cells cut so that each row is one line, unless the
    command was called with ``--wide``. Elsewhere nothing is.

    :param flexible: the index of the column that is cut first.
    :param spare: the headers of those that are left out before that, the first one first; and
        before those, columns without any value.
    """
    if not rows:
        return
    # One line each, without control characters.
    cells = [[one_line("" if cell is None else str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[at]) for line in [list(headers), *cells]) for at in range(len(headers))]
    shown = list(range(len(headers)))
    if sys.stdout.isatty() and not is_wide():
        flexible %= len(headers)
        can_go = [at for at in shown if not any(line[at] for line in cells)]
        can_go += [at for name in spare for at in reversed(shown) if headers[at] == name]
        shown = _spared(widths, flexible, can_go)
        widths = _fitted([widths[at] for at in shown], shown.index(flexible))
    click.secho(_cells([headers[at] for at in shown], widths), bold=True)
    for line in cells:
        click.echo(_cells([line[at] for at in shown], widths))


def _spared(widths: Sequence[int], flexible: int, can_go: Sequence[int]) -> list[int]:
    """Return the indexes of the columns for which there is room."""
    shown = list(range(len(widths)))
    for at in can_go:
        taken = sum(widths[each] for each in shown) + len(_GAP) * (len(shown) - 1)
        if taken - max(0, widths[flexible] - _ENOUGH) <= width():
            break
        if at in shown and at != flexible:
            shown.remove(at)
    return shown


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
    shown = _cut(cell, size)
    return paint(cell, shown) + " " * (size - len(shown))


def _cut(text: str, size: int) -> str:
    """Return *text* in at most *size* characters.

    A name, which has no space, is cut in the middle: its end tells as much as its beginning.
    """
    if len(text) <= size:
        return text
    tail = 0 if " " in text else (size - 1) // 2
    return f"{text[: size - 1 - tail]}…{text[len(text) - tail :]}"


@dataclass(frozen=True)
class Answer:
    """What a command prints.

    :ivar data: for ``--json``.
    :ivar text: what to print without; or what prints it.
    :ivar status: the exit status.
    """

    data: object
    text: str | Callable[[], object]
    status: int = 0

    def json(self) -> object:
        """Return what ``--json`` prints."""
        return self.data

    def show(self) -> None:
        """Print it for a person."""
        if callable(self.text):
            self.text()
        else:
            click.echo(self.text)


@dataclass(frozen=True)
class Listing:
    """What a list prints: a line for each row of a page, and how to go on.

    :ivar name: what the rows are in JSON.
    :ivar headers: of the columns; empty: each of the *cells* is printed as it is.
    :ivar cells: of each row.
    :ivar none: what to print if there are no rows.
    :ivar flexible: see `table`; *spare* likewise.
    :ivar noun: what a row is, for a list that has one page and may be cut.
    :ivar above: lines to print before the table; *below*: after it.
    :ivar note: a line for standard error.
    :ivar others: what else JSON has.
    """

    name: str
    page: Page[Any]
    headers: Sequence[str]
    cells: Iterable[Any]
    none: str
    flexible: int = -1
    spare: Sequence[str] = ()
    noun: str = "row"
    above: Sequence[str] = ()
    below: Sequence[str] = ()
    note: str = ""
    others: Mapping[str, object] = field(default_factory=dict[str, object])
    status = 0

    def json(self) -> object:
        """Return what ``--json`` prints."""
        return {self.name: self.page.rows, **self.others, _behind(): self.page.next}

    def show(self) -> None:
        """Print the table, the command for the next page, or how many rows there are."""
        cells = list(self.cells)
        for line in (*self.above, *(() if cells else (self.none,))):
            click.echo(line)
        if self.headers:
            table(self.headers, cells, self.flexible, self.spare)
        for line in (*(() if self.headers else cells), *self.below):
            click.echo(line)
        if self.page.next is not None:
            word = "Older" if _behind() == "before" else "More"
            click.echo(f"{word}: {this_command(**{_behind(): self.page.next})}", err=True)
        elif cut := self.page.cut(self.noun):
            click.echo(f"These are {cut}.", err=True)
        if self.note:
            click.echo(self.note, err=True)


def _behind() -> str:
    """Return the option of this command that takes where a page ended."""
    return "after" if "after" in click.get_current_context().params else "before"


#: The commands of ``admin``, as their modules declare them.
COMMANDS: JobsGroup = JobsGroup("admin")

Function: TypeAlias = Callable[..., Any]


def admin_command(
    name: str, *calls: str, options: Sequence[click.Parameter] = ()
) -> Callable[[Function], click.Command]:
    """Return a decorator that makes the command *name* of ``admin`` of a function.

    :param calls: examples for its help.
    :param options: options after its own ones. With `JSON_FLAG` it returns an `Answer`.
    """

    def make(function: Function) -> click.Command:
        is_json = JSON_FLAG in options
        call = _answering(function) if is_json else function
        made: click.Command = COMMANDS.command(name, epilog=examples(*calls))(call)
        made.params += options
        return made

    return make


def list_command(
    name: str,
    *calls: str,
    limit: int = 0,
    most: int = 0,
    by: str = "ID",
) -> Callable[[Function], click.Command]:
    """Return a decorator that makes the list *name* of ``admin`` of a function.

    It returns a `Listing`; an `Answer`, if it shows one thing instead; or None, after a change.

    :param limit: how many rows it prints without ``--limit``; 0: all, without that option.
    :param most: how many at most with it.
    :param by: what a page ends with, which ``--before`` takes for ids, else ``--after``; empty:
        there is one page.
    """
    return admin_command(name, *calls, options=(*_paging(limit, most, by), JSON_FLAG, WIDE))


def _paging(limit: int, most: int, by: str) -> Iterator[click.Option]:
    if not limit:
        return
    yield click.Option(
        ["--limit"],
        type=click.IntRange(1, most),
        metavar="N",
        default=limit,
        show_default=True,
        help="Print at most N.",
    )
    if by == "ID":
        yield click.Option(["--before"], type=Id(), metavar=by, help="Only smaller ids.")
    elif by:
        yield click.Option(["--after"], metavar=by, help=f"Only what comes after {by}.")


def _answering(function: Function) -> Function:
    """Return a function that prints what *function* returns."""

    @wraps(function)
    def call(*args: Any, as_json: bool, wide: bool = False, **given: Any) -> None:
        print_answer(function(*args, **given), as_json)

    return call


def refuse_to_list() -> None:
    """Refuse ``--json`` where the current command changes something."""
    if click.get_current_context().params["as_json"]:
        raise click.UsageError("--json is for a list. Leave it out of a change.")


def print_answer(found: Answer | Listing | None, as_json: bool) -> None:
    if found is None:
        return
    if as_json:
        click.echo(json.dumps(plain_data(found.json()), indent=2))
    else:
        found.show()
    if found.status:
        raise click.exceptions.Exit(found.status)
