"""Stay with one run until it ends: ``wait``, and ``show --follow``."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from ..jobs.runs.actions import no_run
from ..jobs.runs.detail import RunView, find_run
from ..jobs.state import State, state_of
from ..text import printable
from ..types import TERMINAL
from .group import JobsGroup, examples
from .params import Id, age
from .terminal import paint

#: How often the run is looked at, in seconds.
EVERY = 1.0
#: The exit status for each outcome, and for none in time, as of ``timeout``.
STATUS_OF = {"succeeded": 0, "dead": 1, "cancelled": 3, "skipped": 4}
NOT_IN_TIME = 124
#: By how many of its last characters what was printed is found again in a longer output.
_TAIL = 200

group: JobsGroup = JobsGroup("follow")


@group.command(
    "wait",
    epilog=examples("flask jobs admin wait 5", "flask jobs admin wait 5 --timeout 10m"),
)
@click.argument("run_id", metavar="ID", type=Id())
@click.option("--timeout", type=age, metavar="AGE", help="Wait no longer than AGE: 10m.")
def wait(run_id: int, timeout: float | None) -> None:
    """Wait until a run has ended.

    The exit status says how: 0 succeeded, 1 dead, 3 cancelled, 4 skipped, 124 not in time.
    """
    *_, view = looks(state_of(), run_id, timeout)
    row = view.row
    label = f" ({row.label})" if row.label else ""
    error = f": {row.last_error}" if row.last_error and row.status != "succeeded" else ""
    click.echo(
        f"Run {run_id} of {printable(row.task + label)}: {paint(row.status)}{printable(error)}"
    )
    raise click.exceptions.Exit(STATUS_OF.get(row.status, NOT_IN_TIME))


def follow(state: State, run_id: int) -> None:
    """Print the output of the latest attempt, and what is added, until the run has ended."""
    printed, attempt = "", 0
    for view in looks(state, run_id):
        latest = view.attempts[0] if view.attempts else None
        if latest is None or latest.output is None:
            continue
        if latest.number != attempt:
            printed, attempt = "", latest.number
        click.echo(printable(added(printed, latest.output)), nl=False)
        printed = latest.output


def looks(state: State, run_id: int, timeout: float | None = None) -> Iterator[RunView]:
    """Yield the run, again and again, until it has ended or *timeout* seconds are over.

    :raises NotFound: there is no such run.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        view = find_run(state, run_id)
        if view is None:
            raise no_run(run_id)
        yield view
        left = EVERY if until is None else min(EVERY, until - time.monotonic())
        if view.row.status in TERMINAL or left <= 0:
            return
        time.sleep(left)


def added(printed: str, output: str) -> str:
    """Return what *output*, of which only the end is kept, has after what was *printed*."""
    if output.startswith(printed):
        return output[len(printed) :]
    tail = printed[-_TAIL:]
    at = output.rfind(tail)
    return output if at < 0 else output[at + len(tail) :]
