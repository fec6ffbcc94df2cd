"""``flask jobs work``: run jobs without cron."""

from __future__ import annotations

import os
import subprocess
import sys

import click
from flask.cli import with_appcontext
from werkzeug.serving import is_running_from_reloader

from ..engine.resident import serve
from ..engine.tick import TickOptions
from ..errors import DatabaseTrouble
from ..jobs.state import State, state_of
from ..log import logger
from .group import examples
from .printer import Printer
from .tick import one_line_errors, print_warnings, queues_option, warn_of_queues, workers_option

#: How Werkzeug ends a process whose code has changed.
_CHANGED = 3


@click.command(
    "work", epilog=examples("flask jobs work", "flask jobs work --workers 4 --queue mail")
)
@workers_option
@queues_option
@click.option("--reload", is_flag=True, help="Start again when code has changed.")
@with_appcontext
def work_command(workers: int | None, queues: tuple[str, ...], reload: bool) -> None:
    """Run what is due until stopped: for containers without cron.

    Does each minute what a tick does, starts new runs soon, and stops gracefully at SIGTERM,
    SIGINT and SIGHUP. Any number of these commands and of ticks may run at once.
    """
    if reload:
        _start_again_and_again()
        return
    state = state_of()
    printer = Printer(as_json=False, stamped=not sys.stdout.isatty())
    options = TickOptions(
        workers=workers,
        queues=queues,
        own_process=True,
        news=printer,
        watch_every=printer.watch_every,
    )
    print_warnings(stamped=not sys.stderr.isatty())
    warn_of_queues(state, queues)
    if state.app.debug and not is_running_from_reloader():
        logger.warning(
            "Debug mode: this command goes on with the code as it is now. To start it again when "
            "that changes: flask jobs work --reload"
        )
    with one_line_errors():
        try:
            if printer.on_terminal:
                _greet(state, queues, printer)
            serve(state, options)
        finally:
            printer.flush()


def _start_again_and_again() -> None:
    """Let another process work, and replace it and this one when a module has changed.

    The other one gets SIGTERM, so its handlers may end as they do when it is stopped.
    """
    from werkzeug._reloader import run_with_reloader  # What app.run(use_reloader=True) calls.

    os.environ["WERKZEUG_RUN_MAIN"] = "true"  # So that Werkzeug watches here, and starts nothing.
    this = [sys.executable, *sys.orig_argv[1:]]
    worker = subprocess.Popen([each for each in this if each != "--reload"])

    def wait() -> None:
        worker.wait()

    changed = False
    try:
        run_with_reloader(wait)  # It returns at Ctrl-C, which the worker has got as well.
    except SystemExit as ended:
        worker.terminate()
        changed = ended.code == _CHANGED
    finally:
        worker.wait()
    if changed:
        os.execv(sys.executable, this)


def _greet(state: State, queues: tuple[str, ...], printer: Printer) -> None:
    """Say to a person that the command works, and what it is waiting for."""
    from .dry_run import what_is_due

    try:
        printer.put(f"Working until Ctrl-C; {what_is_due(state, queues)}")
    except DatabaseTrouble:  # The worker tries again, and says so.
        printer.put("Working until Ctrl-C")
    state.engine.dispose()  # No connection may be open while workers fork.
