"""``agenda``: what will run, soonest first."""

from __future__ import annotations

from datetime import datetime

import click

from ..jobs.agenda import Agenda, read_agenda
from ..jobs.humanize import duration
from ..jobs.state import state_of
from ..schedule import Schedule
from ..text import one_line
from .group import JobsGroup, examples
from .output import moment, print_json, table
from .params import json_option, time_in_zone
from .terminal import paint

group: JobsGroup = JobsGroup("agenda")


@group.command(
    "agenda", epilog=examples("flask jobs admin agenda", "flask jobs admin agenda --until 08:00")
)
@click.option("--until", metavar="TIME", help="08:00 in CRONJOBS_TIMEZONE, or 2026-11-20T06:00Z.")
@json_option
def agenda(until: str | None, as_json: bool) -> None:
    """List what definitions will run, soonest first, and what may collide.

    The next twelve hours, or until TIME, at most a week.
    """
    found = read_agenda(state_of(), None if until is None else _time(until))
    if as_json:
        print_json(found)
    else:
        _print(found)


def _time(value: str) -> datetime:
    """Return a time with its zone, or the next time that clocks show *value*, such as ``08:00``."""
    hour, colon, minute = value.partition(":")
    if not (colon and hour.isdigit() and minute.isdigit() and len(value) <= len("08:00")):
        return time_in_zone(value)
    if int(hour) > 23 or int(minute) > 59:
        raise click.BadParameter(f"{value!r} is not a time of day. Write 08:00.")
    zone = state_of().settings.timezone
    slot = Schedule(f"{int(minute)} {int(hour)} * * *", zone).next_after(_now())
    assert slot is not None
    return slot


def _now() -> datetime:
    return datetime.now().astimezone()


def _print(found: Agenda) -> None:
    rows = sorted(
        (piece.start, lane.name, piece.number, lane.expected)
        for lane in found.lanes
        for piece in lane.of("planned", "band")
    )
    for change in found.clock_changes:
        by = duration(abs(change.seconds))
        way = "forward" if change.seconds > 0 else "back"
        said = f"The clocks in {change.timezone} change by {by} {way} at {moment(change.at)}."
        click.echo(paint("warn", one_line(said)))
    if not rows:
        click.echo(f"No definition runs until {moment(found.end)}.")
    cells = [
        (moment(at), name, "" if number == 1 else f"{number:,} times",
         "" if expected is None else duration(expected)) for at, name, number, expected in rows
    ]  # fmt: skip
    table(("AT", "DEFINITION", "SLOTS", "TAKES"), cells, flexible=1)
    for each in found.collisions:
        names = ", ".join(each.names)
        said = f"At {moment(each.at)} {len(each.names)} begin: {names}"
        click.echo(one_line(said))
    for delayed in found.delayed:
        said = f"{delayed.count.of('delayed run')} of {delayed.task}, from {moment(delayed.first)}"
        click.echo(one_line(said))
    if found.more:
        click.echo(f"Only the {len(found.lanes)} definitions that run next are listed.")
