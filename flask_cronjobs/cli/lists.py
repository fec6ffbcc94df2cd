"""What the commands that list have in common: their options, a page of rows, and ``--watch``."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial, wraps
from io import StringIO
from typing import Any, TypeVar

import click

from ..errors import CronJobsError
from ..jobs.reader import Page, plain_data
from ..text import did_you_mean, printable
from .output import as_called, print_json, table, this_command
from .params import ALL_FIELDS, Id, json_option

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
