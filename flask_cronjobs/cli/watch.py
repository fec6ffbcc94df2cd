"""``--watch``: print a list again and again, in place."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial, wraps
from io import StringIO
from typing import Any, TypeVar

import click

from ..errors import CronJobsError
from ..text import printable
from .output import as_called, this_command

F = TypeVar("F", bound=Callable[..., Any])

#: How often the list is printed, in seconds.
EVERY = 2.0

# To the screen that programs use which fill it, without a cursor and without wrapped lines; back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_TOP, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def watchable(command: F) -> F:
    """Add ``--watch`` to *command*, which prints a list and takes ``as_json``."""

    @wraps(command)
    def call(*args: Any, watch: bool, as_json: bool, **kwargs: Any) -> None:
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


def repeat(command: Callable[..., object], watch: bool, as_json: bool) -> None:
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
