"""``flask jobs work``: run jobs without cron."""

from __future__ import annotations

import click
from flask.cli import with_appcontext

from ..engine.resident import serve
from ..engine.tick import TickOptions
from ..state import state_of
from .tick import Printer, one_line_errors, print_warnings


@click.command("work")
@click.option("--workers", type=click.IntRange(1, 64), help="Processes. [CRONJOBS_WORKERS]")
@click.option("--queue", "queues", multiple=True, help="Only this queue; may be repeated.")
@with_appcontext
def work_command(workers: int | None, queues: tuple[str, ...]) -> None:
    """Run what is due until stopped: for containers without cron.

    Does each minute what a tick does, starts new runs soon, and stops gracefully at SIGTERM and
    SIGINT. Any number of these commands and of ticks may run at once.
    """
    printer = Printer(as_json=False)
    options = TickOptions(
        workers=workers,
        queues=queues,
        own_process=True,
        observer=printer,
    )
    print_warnings()
    with one_line_errors():
        try:
            serve(state_of(), options)
        finally:
            printer.flush()
