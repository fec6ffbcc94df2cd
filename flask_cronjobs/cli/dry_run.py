"""What is due, and what will be next: ``flask jobs tick --dry-run``, and a tick on a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from ..jobs.eligibility import Due, due, next_due
from ..jobs.humanize import plural
from ..jobs.reader import Reader, reading
from ..jobs.state import State
from ..text import one_line
from .output import moment, since


def print_due(state: State, queues: tuple[str, ...], as_json: bool) -> None:
    """Print what is due now, or when something will be due."""
    with reading(state) as reader:
        found, following = due(reader, queues), _following(reader)
    if as_json:
        click.echo(json.dumps(_as_json(found)))
        return
    for name, slot in found.definitions:
        click.echo(f"would enqueue  {one_line(name)}  slot of {slot:%Y-%m-%d %H:%M} UTC")
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
