"""``flask jobs tick``: the command that cron runs each minute."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict

import click
from flask.cli import with_appcontext

from ..engine.observer import Observer
from ..engine.tick import TickOptions, tick
from ..errors import CronJobsError
from ..log import LOST, logger
from ..state import state_of
from ..text import one_line
from ..types import Outcome, RecordedSlot, TickReport
from .lines import Lines, Warnings, buffer_lines, leave


@contextmanager
def handlers_print_to_stderr() -> Generator[None]:
    """Send what handlers print to standard error, so that standard output has our JSON alone.

    This includes what forked workers and subprocesses print, and logs to standard output.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()  # Its buffer holds what handlers printed.
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def one_line_errors() -> Generator[None]:
    """Turn an error of ours into one line on standard error, and exit status 1."""
    try:
        yield
    except CronJobsError as error:
        raise click.ClickException(one_line(" ".join(str(error).split()))) from error


def print_warnings() -> None:
    """If the app does not configure logging, print warnings, except those that `Printer` prints."""
    if logger.hasHandlers():
        return
    handler = Warnings()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: getattr(record, "cronjobs_event", LOST) == LOST)
    logger.addHandler(handler)


class Printer(Observer):
    """Print a line for each run, or collect all for ``--json``. Nobody waits for the lines."""

    def __init__(self, as_json: bool) -> None:
        buffer_lines()
        self.as_json = as_json
        self.lines: Lines = Lines(sys.stdout)
        self.runs: list[dict[str, object]] = []
        self.slots: list[dict[str, object]] = []

    def outcome(self, outcome: Outcome) -> None:
        """Print the outcome of an attempt."""
        if self.as_json:
            self.runs.append(_run(outcome))
            return
        error = f"{outcome.error_type}: {_first_line(outcome.error or '')}"
        why = f"  {one_line(error)}" if outcome.error else ""
        self.lines.put(
            f"{outcome.kind:<9}  {one_line(outcome.job_type)}  run {outcome.id}  "
            f"attempt {outcome.attempt}  "
            f"{outcome.seconds * 1000:.0f} ms{why}"
        )

    def slot(self, slot: RecordedSlot) -> None:
        """Print a skipped slot; a run is printed when it has run."""
        if self.as_json:
            self.slots.append({**asdict(slot), "at": slot.at.isoformat()})
        elif slot.skipped:
            from ..report.humanize import plural

            skipped = plural(slot.skipped, "slot")
            self.lines.put(f"skipped    {one_line(slot.job_type)}  {skipped}  {slot.reason}")

    def hold(self) -> None:
        """End the thread that prints, because the process is about to fork."""
        self.lines.hold()

    def go_on(self) -> None:
        """Go on printing."""
        self.lines.go_on()

    def flush(self) -> None:
        """Wait until all is printed, but not long for somebody who does not read."""
        if not self.lines.flush():
            logger.warning("Nobody read the standard output, and the rest of it was dropped")
            leave(sys.stdout)

    def summary(self, report: TickReport) -> None:
        """Print the last line; nothing if nothing was due."""
        if self.as_json:
            everything = {"tick": asdict(report), "slots": self.slots, "runs": self.runs}
            self.lines.put(json.dumps(everything))
        elif report.attempts or report.skipped or report.reclaimed or report.lost:
            names = ("succeeded", "failed", "dead", "cancelled", "released", "lost")
            counts = [f"{getattr(report, name)} {name}" for name in names if getattr(report, name)]
            self.lines.put(f"tick: {', '.join(counts) or 'no runs'} in {report.seconds:.1f} s")


@click.command("tick")
@click.option("--workers", type=click.IntRange(1, 64), help="Processes. [CRONJOBS_WORKERS]")
@click.option(
    "--budget",
    type=click.FloatRange(0.1, 86400),
    help="Seconds after which no more runs are claimed. [CRONJOBS_TICK_BUDGET]",
)
@click.option("--max-runs", type=click.IntRange(1), help="Claim at most this many runs.")
@click.option("--queue", "queues", multiple=True, help="Only this queue; may be repeated.")
@click.option(
    "--jitter",
    type=click.FloatRange(0, 59),
    default=0.0,
    help="Wait up to this many seconds first, so that hosts do not start at once.",
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
    """Run what is due, once. To install it in crontab: flask jobs admin crontab

    Prints nothing if nothing was due, since cron mails what is printed. Exits 0 if the tick did its
    work, 1 if it could not, 2 for wrong usage. Failed runs do not change the exit status.
    """
    state = state_of()
    if dry_run:
        from .dry_run import print_due

        with one_line_errors():
            print_due(state, queues, as_json)
        return
    time.sleep(random.uniform(0, jitter))
    printer = Printer(as_json)
    options = TickOptions(
        workers=workers,
        budget=budget,
        max_runs=max_runs,
        queues=queues,
        own_process=True,
        observer=printer,
    )
    print_warnings()
    with one_line_errors():
        try:
            with handlers_print_to_stderr() if as_json else nullcontext():
                report = tick(state, options)
            printer.summary(report)
        finally:
            printer.flush()


def _run(outcome: Outcome) -> dict[str, object]:
    return {
        "run_id": outcome.id,
        "task": outcome.job_type,
        "attempt": outcome.attempt,
        "outcome": outcome.kind,
        "ms": round(outcome.seconds * 1000, 1),
        "error_type": outcome.error_type,
        "error": outcome.error,
    }


def _first_line(text: str) -> str:
    lines = text.splitlines()
    return lines[0][:200] if lines else ""
