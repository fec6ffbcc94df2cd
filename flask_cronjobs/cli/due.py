"""Print what is due now or next, for ``tick`` and ``work``."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

import click

from ..core.app_state import State
from ..insights.backlog import due, next_due
from ..insights.reader import Reader, plain_data, reading
from ..insights.schedule_needs import unrecorded
from ..schedule.cron_text import parse_zone
from ..text import one_line
from ..text.humanize import minute, printed_zone
from .group import command
from .output import moment, since


@contextmanager
def _printing_in_zone_of(state: State) -> Generator[None]:
    """Print the times of this block in ``CRONJOBS_TIMEZONE``, as the admin commands do."""
    token = printed_zone.set(partial(parse_zone, state.settings.timezone))
    try:
        yield
    finally:
        printed_zone.reset(token)


def print_due(state: State, queues: tuple[str, ...], as_json: bool) -> None:
    """Print the due slots and the number of due runs, or else what will be due next."""
    with _printing_in_zone_of(state), reading(state) as reader:
        due_now, following = due(reader, queues), _following(reader)
        slots = [
            f"{one_line(slot.name)} is due: the slot of {minute(slot.at)}" for slot in due_now.slots
        ]
    if as_json:
        click.echo(json.dumps(plain_data(due_now)))
        return
    for slot in slots:
        click.echo(slot)
    if due_now.runs:
        click.echo(f"{due_now.runs.of('run')} due")
    if not (due_now.slots or due_now.runs):
        click.echo(f"Nothing is due; {following}")


def print_idle(state: State, queues: tuple[str, ...], put: Callable[[str], None]) -> None:
    """Print what will be due next, or how many due runs an idle tick left."""
    with _printing_in_zone_of(state), reading(state) as reader:
        number, following = due(reader, queues).runs, _following(reader)
    if number:
        why = command("list", "--status", "queued")
        put(f"Nothing was run; {number.of('run')} due. To see why: {why}")
    else:
        put(f"Nothing was due; {following}")


def what_is_due(state: State, queues: tuple[str, ...]) -> str:
    """Return the number of due runs, or else what will be due next."""
    with _printing_in_zone_of(state), reading(state) as reader:
        number = due(reader, queues).runs
        return f"{number.of('run')} due" if number else _following(reader)


def _following(reader: Reader) -> str:
    """Return what will be due next."""
    soon = next_due(reader)
    if soon is not None:
        return f"next: {one_line(soon.name)}, {moment(soon.at)} ({since(soon.at, reader.now)})"
    if unrecorded(reader):
        return "the next tick records the schedules that this app's code declares"
    return "nothing is scheduled"
