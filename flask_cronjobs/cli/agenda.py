"""What is due and what will be: ``agenda``, ``tick --dry-run``, and a tick on a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from ..jobs.agenda import Agenda, Piece, read_agenda, span_of
from ..jobs.eligibility import Due, due, next_due
from ..jobs.humanize import duration, minute, plural, seconds_since
from ..jobs.reader import Reader, reading
from ..jobs.state import State, state_of
from ..text import one_line
from .group import JobsGroup, examples
from .output import moment, print_json, since, table
from .params import json_option
from .terminal import paint

group: JobsGroup = JobsGroup("agenda")


@group.command(
    "agenda",
    epilog=examples(
        "flask jobs admin agenda",
        "flask jobs admin agenda --until 08:00",
        "flask jobs admin agenda --from 22:00 --until 08:00",
    ),
)
@click.option("--from", "start", metavar="TIME", help="22:00, 2h (ago) or 2026-11-20T22:00.")
@click.option("--until", "end", metavar="TIME", help="08:00, 24h or 2026-11-20T08:00. [12h]")
@json_option
def agenda(start: str | None, end: str | None, as_json: bool) -> None:
    """List what definitions will run, soonest first, and what may collide.

    The next twelve hours, or until TIME, at most a week; --from lists what ran since then, too.
    Times without a zone are in CRONJOBS_TIMEZONE.
    """
    with reading(state_of()) as reader:
        zone = reader.state.settings.timezone
        try:
            span = span_of(reader.now, zone, start, end)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        found = read_agenda(reader, span)
    if as_json:
        print_json(found)
    else:
        _print(found, past=start is not None)


def _print(found: Agenda, past: bool) -> None:
    shown = [
        (lane, piece)
        for lane in found.lanes
        for piece in lane.pieces
        if past or piece.kind in ("planned", "band")
    ]
    shown.sort(key=lambda each: (each[1].start, each[0].name))
    for change in found.clock_changes:
        by = duration(abs(change.seconds))
        way = "forward" if change.seconds > 0 else "back"
        said = f"The clocks in {change.timezone} change by {by} {way} at {moment(change.at)}."
        click.echo(paint("warn", one_line(said)))
    if not shown:
        click.echo(f"No definition runs until {moment(found.end)}.")
    cells = [
        (moment(piece.start), lane.name, *_about(piece, lane.expected)) for lane, piece in shown
    ]
    table(("AT", "DEFINITION", "WHAT", "TAKES"), cells, flexible=1)
    for each in found.collisions:
        names = ", ".join(each.names)
        said = f"At {moment(each.at)} {len(each.names)} begin: {names}"
        click.echo(one_line(said))
    for delayed in found.delayed:
        said = f"{delayed.count.of('delayed run')} of {delayed.task}, from {moment(delayed.first)}"
        click.echo(one_line(said))
    if found.more:
        click.echo(f"Only the {len(found.lanes)} definitions that run next are listed.")


def _about(piece: Piece, expected: float | None) -> tuple[str, str]:
    """Return what a piece is, and how long it took or will take."""
    if piece.kind == "older":
        return f"older runs are not shown, until {moment(piece.end)}", ""
    if piece.kind in ("planned", "band"):
        took, what = expected, "planned" if piece.number == 1 else f"{piece.number:,} times"
    else:
        took, what = seconds_since(piece.start, piece.end), piece.kind
    return what, "" if took is None else duration(took)


def print_due(state: State, queues: tuple[str, ...], as_json: bool) -> None:
    """Print what is due now, or when something will be due."""
    with reading(state) as reader:
        found, following = due(reader, queues), _following(reader)
    if as_json:
        click.echo(json.dumps(_as_json(found)))
        return
    for name, slot in found.definitions:
        click.echo(f"would enqueue  {one_line(name)}  slot of {minute(slot)}")
    for line in _runs(state, found, "(not in this code: would wait)"):
        click.echo(f"would run      {line}")
    if found.expired:
        click.echo(f"would reclaim  {plural(found.expired, 'run')} whose worker was lost")
    if found == Due((), (), 0):
        click.echo(f"nothing is due; {following}")


def print_idle(state: State, queues: tuple[str, ...], put: Callable[[str], None]) -> None:
    """Print why a tick ran nothing: which due runs wait all the same, and what will be due next."""
    with reading(state) as reader:
        found, following = due(reader, queues), _following(reader)
    for line in _runs(state, found, "(this app's code does not declare the task)"):
        put(f"waits      {line}")
    put(f"Nothing was {'run' if found.runs else 'due'}; {following}")


def what_is_due(state: State, queues: tuple[str, ...]) -> str:
    """Return how many runs are due, or else what will be due next."""
    with reading(state) as reader:
        number = sum(number for _, _, number in due(reader, queues).runs)
        return f"{plural(number, 'run')} due" if number else _following(reader)


def _following(reader: Reader) -> str:
    """Return what will be due next."""
    soon = next_due(reader)
    if soon is not None:
        return f"next: {one_line(soon.name)}, {moment(soon.at)} ({since(reader.now, soon.at)})"
    if reader.state.registry.declarations:
        return "a tick records the schedules that the code declares"
    return "nothing is scheduled"


def _runs(state: State, found: Due, unknown: str) -> list[str]:
    """Return a line for each task and queue with due runs."""
    return [
        f"{one_line(task)}  {plural(number, 'run')}  queue {one_line(queue)}"
        + ("" if task in state.registry.tasks else f"  {unknown}")
        for task, queue, number in found.runs
    ]


def _as_json(found: Due) -> dict[str, object]:
    return {
        "definitions": [
            {"name": name, "next_run_at": slot.isoformat()} for name, slot in found.definitions
        ],
        "runs": [
            {"task": task, "queue": queue, "count": number} for task, queue, number in found.runs
        ],
        "expired": found.expired,
    }
