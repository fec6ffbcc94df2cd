"""``flask jobs tick --dry-run``: print what a tick would do."""

from __future__ import annotations

import json

import click

from ..report import reading
from ..report.due import Due, due, next_due
from ..report.humanize import plural
from ..state import State
from ..text import one_line
from .output import moment, since


def print_due(state: State, queues: tuple[str, ...], as_json: bool) -> None:
    """Print what is due now, or when something will be due."""
    with reading(state) as reader:
        found, soon, now = due(reader, queues), next_due(reader), reader.now
    if as_json:
        click.echo(json.dumps(_as_json(found)))
        return
    for name, slot in found.definitions:
        click.echo(f"would enqueue  {one_line(name)}  slot of {slot:%Y-%m-%d %H:%M} UTC")
    for task, queue, number in found.runs:
        known = "" if task in state.registry.tasks else "  (not in this code: would wait)"
        click.echo(
            f"would run      {one_line(task)}  {plural(number, 'run')}  queue {one_line(queue)}"
            f"{known}"
        )
    if found.expired:
        click.echo(f"would reclaim  {plural(found.expired, 'run')} whose worker was lost")
    if found == Due((), (), 0):
        then = "nothing is scheduled"
        if soon is not None:
            then = f"next: {moment(soon)} ({since(now, soon)})"
        elif state.registry.declarations:
            then = "a tick records the schedules that the code declares"
        click.echo(f"nothing is due; {then}")


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
