"""``flask jobs work``: run jobs without cron."""

from __future__ import annotations

import os

import click
from flask.cli import with_appcontext
from werkzeug.serving import is_running_from_reloader

from ..core.app_state import State, state_of
from ..core.resident import serve
from ..core.worker.work_options import Limits
from ..errors import DatabaseTrouble
from ..log import logger
from .group import examples
from .printer import Printer
from .tick import printing, queues_option, workers_option


@click.command(
    "work",
    epilog=examples(
        "flask jobs work",
        "flask jobs work --workers 4 --queue mail",
        "flask jobs work --max-memory 512 --max-runs 5000",
    ),
)
@workers_option
@queues_option
@click.option(
    "--max-memory",
    type=click.IntRange(1),
    metavar="MB",
    help="Replace a worker once its resident memory has exceeded MB megabytes.",
)
@click.option(
    "--max-runs", type=click.IntRange(1), metavar="N", help="Replace a worker after N runs."
)
@click.option(
    "--parent",
    type=click.IntRange(1),
    metavar="PID",
    help="Stop when the parent process PID has ended.",
)
@click.option(
    "--started-by",
    metavar="NAME",
    default="",
    help="Name the server that started this command, for the doctor to print.",
)
@with_appcontext
def work_command(
    workers: int | None,
    queues: tuple[str, ...],
    max_memory: int | None,
    max_runs: int | None,
    parent: int | None,
    started_by: str,
) -> None:
    """Run what is due until stopped, for containers without cron.

    Each minute, it does the work of a tick. It starts new runs promptly, and stops gracefully on
    SIGTERM, SIGINT and SIGHUP. Any number of workers and ticks may run at once.

    A worker that has reached a limit (--max-…) ends after its current run, and a fresh one takes
    its place.
    """
    limits = _limits(max_runs, max_memory)
    state = state_of()
    printer, options = printing(state, workers, queues, lambda stream: not stream.isatty())
    if state.app.debug and not is_running_from_reloader():
        logger.warning(
            "Debug mode: this command keeps running the current code. To get a worker that "
            "restarts when the code changes, set CRONJOBS_WORK_IN_DEBUG, and run `flask run "
            "--debug` instead."
        )
    try:
        if printer.on_terminal:
            _greet(state, queues, printer)
        serve(state, options._replace(started_by=started_by), limits, parent)
    finally:
        printer.end()


def _limits(runs: int | None, memory: int | None) -> Limits | None:
    """Return the limits of each worker; None if there are none."""
    limits = Limits(runs, memory)
    if limits == Limits():
        return None
    if not hasattr(os, "fork"):
        raise click.UsageError(
            "--max-memory and --max-runs need a system that can fork, and this one cannot. Leave "
            "them out, and let a service manager restart the command."
        )
    return limits


def _greet(state: State, queues: tuple[str, ...], printer: Printer) -> None:
    """Tell a person that the command is working, and what is due next."""
    from .due import what_is_due

    try:
        printer.put(f"Working until Ctrl-C; {what_is_due(state, queues)}")
    except DatabaseTrouble:  # The worker retries, and logs it.
        printer.put("Working until Ctrl-C")
    state.engine.dispose()  # No connection may be open while workers fork.
