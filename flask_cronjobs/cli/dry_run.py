"""``flask jobs tick --dry-run``: what a tick would do, without doing it."""

from __future__ import annotations

import json

import click

from ..report.due import Due, due
from ..state import State


def print_due(state: State, queues: tuple[str, ...], as_json: bool) -> None:
    """Print what is due now; nothing if nothing is."""
    found = due(state, queues)
    if as_json:
        click.echo(json.dumps(_as_json(found)))
        return
    for name, since in found.definitions:
        click.echo(f"would enqueue  {name}  slot of {since:%Y-%m-%d %H:%M} UTC")
    for task, queue, number in found.runs:
        known = "" if task in state.registry.tasks else "  (no such task here: it would wait)"
        click.echo(f"would run      {task}  {number} run(s)  queue {queue}{known}")
    if found.expired:
        click.echo(f"would reclaim  {found.expired} run(s) whose worker was lost")


def _as_json(found: Due) -> dict[str, object]:
    return {
        "definitions": [
            {"name": name, "next_run_at": since.isoformat()} for name, since in found.definitions
        ],
        "runs": [
            {"task": task, "queue": queue, "count": number} for task, queue, number in found.runs
        ],
        "expired": found.expired,
    }
