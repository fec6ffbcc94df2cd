"""``flask jobs tick``: the command that cron runs each minute."""

from __future__ import annotations

import logging
import math
import os
import random
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from typing import Any, TextIO, TypeAlias

import click
from flask.cli import with_appcontext

from ..core.app_state import State, state_of
from ..core.tick import TickOptions, tick
from ..errors import DatabaseTrouble
from ..log import LEASE_LOST, logger
from ..text import did_you_mean, similar_names
from .group import examples
from .printer import Printer, Stamped, is_idle, is_log
from .terminal import Warnings


@contextmanager
def handlers_print_to_stderr() -> Generator[None]:
    """Send handlers' output to standard error, so that standard output has only our JSON.

    This includes the output of forked workers and subprocesses, and logs to standard output.
    """
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()  # Its buffer holds what handlers printed.
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)


def _print_warnings(stamped: bool) -> None:
    """Print warnings if the app does not configure logging, except those that `Printer` prints.

    :param stamped: whether each line begins with the time.
    """
    if logger.hasHandlers():
        return
    handler = Warnings()
    if stamped:
        handler.setFormatter(Stamped())
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: getattr(record, "cronjobs_event", LEASE_LOST) == LEASE_LOST)
    logger.addHandler(handler)


class Seconds(click.FloatRange):
    """A number of seconds. click's own type would accept ``nan``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds. Write 50 or 2.5.", param, ctx)
        return float(super().convert(number, param, ctx))


def _warn_of_queues(state: State, queues: tuple[str, ...]) -> None:
    """Warn about *queues* that no code uses if their names are close to a queue in use.

    Other names cause no warning, since cron would mail it each minute, and `using` may name any
    queue.
    """
    tasks = state.registry.tasks.values()
    known_queues = {*(task.options.queue for task in tasks), *state.settings.executors}
    for queue in set(queues) - known_queues:
        if not queue.strip():
            raise click.UsageError(
                f"--queue is {queue!r}, and no queue can have that name. Name one, or leave the "
                "option out to run all queues."
            )
        parts = [part for part in map(str.strip, queue.split(",")) if part]
        if known_queues.intersection(parts):
            raise click.UsageError(
                f"No task in this app's code uses the queue {queue!r}. Give the option once for "
                f"each queue: {' '.join(f'--queue {part}' for part in parts)}"
            )
        if similar_names(queue, sorted(known_queues)):
            logger.warning(
                "No task in this app's code uses the queue %r.%s Only runs that were enqueued "
                "with using(queue=%r) are claimed from it.",
                *(queue, did_you_mean(queue, known_queues), queue),
            )


def printing(
    state: State,
    workers: int | None,
    queues: tuple[str, ...],
    is_stamped: Callable[[TextIO], bool],
    as_json: bool = False,
) -> tuple[Printer, TickOptions]:
    """Prepare the output; return the printer and the options of a tick.

    :param is_stamped: whether each line in a stream begins with the time.
    """
    printer = Printer(as_json, stamped=is_stamped(sys.stdout))
    _print_warnings(stamped=is_stamped(sys.stderr))
    _warn_of_queues(state, queues)
    return printer, TickOptions(
        workers=workers,
        queues=queues,
        own_process=True,
        news=printer,
    )


Command: TypeAlias = Callable[..., Any]
workers_option: Callable[[Command], Command] = click.option(
    "--workers", type=click.IntRange(1, 64), metavar="N", help="Use N processes. [CRONJOBS_WORKERS]"
)
queues_option: Callable[[Command], Command] = click.option(
    "--queue", "queues", metavar="NAME", multiple=True, help="Run only this queue; may be repeated."
)


@click.command(
    "tick",
    epilog=examples(
        "flask jobs tick",
        "flask jobs tick --dry-run",
        "flask jobs tick --workers 4 --queue mail",
    ),
)
@workers_option
@click.option(
    "--budget",
    type=Seconds(0.1, 86400),
    metavar="SECONDS",
    help="Claim no more runs after SECONDS. [CRONJOBS_TICK_BUDGET]",
)
@click.option(
    "--max-runs",
    type=click.IntRange(1),
    metavar="N",
    help="Perform at most N runs, and hand at most N over to Celery.",
)
@queues_option
@click.option(
    "--jitter",
    type=Seconds(0, 59),
    metavar="SECONDS",
    default=0.0,
    help="Wait up to SECONDS first, so that hosts do not all start together.",
)
@click.option("--dry-run", is_flag=True, help="Print what is due, and change nothing.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object; what handlers print goes to standard error.",
)
@with_appcontext
def tick_command(
    workers: int | None,
    budget: float | None,
    max_runs: int | None,
    queues: tuple[str, ...],
    jitter: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run what is due, once.

    Prints nothing if nothing was due, since cron mails all output; on a terminal, it prints what is
    due next. Exits 0 if the tick did its work, 1 if it could not, 2 for wrong usage. Failed runs do
    not change the exit status. To print the line for a crontab: flask jobs admin crontab
    """
    state = state_of()
    if dry_run:
        from .due import print_due

        _warn_of_queues(state, queues)
        print_due(state, queues, as_json)
        return
    time.sleep(random.uniform(0, jitter))
    printer, options = printing(state, workers, queues, is_log, as_json)
    options = options._replace(budget=budget, max_runs=max_runs)
    try:
        with handlers_print_to_stderr() if as_json else nullcontext():
            report = tick(state, options)
        printer.summary(report)
        if printer.on_terminal and is_idle(report):
            from .due import print_idle

            with suppress(DatabaseTrouble):  # The tick has done its work.
                print_idle(state, queues, printer.put)
    finally:
        printer.end()
