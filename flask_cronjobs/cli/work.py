"""``flask jobs work``: run jobs without cron."""

from __future__ import annotations

import sys

import click
from flask.cli import with_appcontext

from ..engine.resident import serve
from ..engine.tick import TickOptions
from ..errors import DatabaseTrouble
from ..state import State, state_of
from .group import examples
from .printer import Printer
from .tick import one_line_errors, print_warnings, queues_option, workers_option


@click.command(
    "work", epilog=examples("flask jobs work", "flask jobs work --workers 4 --queue mail")
)
@workers_option
@queues_option
@with_appcontext
def work_command(workers: int | None, queues: tuple[str, ...]) -> None:
    """Run what is due until stopped: for containers without cron.

    Does each minute what a tick does, starts new runs soon, and stops gracefully at SIGTERM,
    SIGINT and SIGHUP. Any number of these commands and of ticks may run at once.
    """
    state = state_of()
    printer = Printer(as_json=False, stamped=not sys.stdout.isatty())
    options = TickOptions(
        workers=workers,
        queues=queues,
        own_process=True,
        observer=printer,
    )
    print_warnings(stamped=not sys.stderr.isatty())
    with one_line_errors():
        try:
            if printer.on_terminal:
                _greet(state, queues, printer)
            serve(state, options)
        finally:
            printer.flush()


def _greet(state: State, queues: tuple[str, ...], printer: Printer) -> None:
    """Say to a person that the command works, and what it is waiting for."""
    from .dry_run import what_is_due

    try:
        printer.put(f"Working until Ctrl-C; {what_is_due(state, queues)}")
    except DatabaseTrouble:  # The worker tries again, and says so.
        printer.put("Working until Ctrl-C")
    state.engine.dispose()  # No connection may be open while workers fork.
