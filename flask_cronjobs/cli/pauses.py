"""``pause`` and ``resume``: a definition, a queue or a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..operations import definitions as definitions_operations
from ..operations.pauses import pause_work, queues, resume_work
from ..state import state_of
from ..text import one_line
from ..types import PauseKind
from . import completion
from .command_text import command
from .group import JobsGroup, examples
from .params import actor

F = TypeVar("F", bound=Callable[..., Any])
group: JobsGroup = JobsGroup("pauses")


def _which(command: F) -> F:
    """Add ``NAME``, ``--queue`` and ``--task`` to *command*."""
    queue = click.option("--queue", metavar="NAME", help="All runs of this queue.")
    task = click.option(
        "--task",
        metavar="NAME",
        shell_complete=completion.tasks,
        help="All runs of this task.",
    )
    name = click.argument("name", required=False, shell_complete=completion.definitions)
    return name(queue(task(command)))


@group.command(
    "pause",
    epilog=examples(
        "flask jobs admin pause nightly_report", "flask jobs admin pause --queue reports"
    ),
)
@_which
def pause(name: str | None, queue: str | None, task: str | None) -> None:
    """Pause the definition NAME, a queue or a task until it is resumed.

    A paused definition enqueues no runs. Of a paused queue or task, runs are enqueued, but no
    worker begins them; those that run go on.
    """
    kind, chosen = _only(name, queue, task)
    if kind is None:
        definitions_operations.pause(state_of(), chosen, actor())
        click.echo(f"Paused {one_line(chosen)}. To resume it: {command('resume', chosen)}")
        return
    what = f"the {kind} {one_line(chosen)}"
    if kind == "queue" and chosen not in queues(state_of()):
        click.echo(f"No task of this app's code has {what} by itself.", err=True)
    is_new = pause_work(state_of(), kind, chosen, actor())
    done = f"Paused {what}" if is_new else f"{one_line(chosen)} is paused already"
    click.echo(f"{done}. To resume it: {command('resume', f'--{kind}', chosen)}")


@group.command(
    "resume",
    epilog=examples(
        "flask jobs admin resume nightly_report", "flask jobs admin resume --queue reports"
    ),
)
@_which
def resume(name: str | None, queue: str | None, task: str | None) -> None:
    """Resume the definition NAME from its next slot, or a queue or a task.

    Slots that passed while a definition was paused are not run. Runs that waited for a queue or a
    task are.
    """
    kind, chosen = _only(name, queue, task)
    if kind is None:
        resumed = definitions_operations.resume(state_of(), chosen, actor())
    else:
        resumed = resume_work(state_of(), kind, chosen, actor())
    what = one_line(chosen) if kind is None else f"the {kind} {one_line(chosen)}"
    click.echo(f"Resumed {what}." if resumed else f"Not paused: {what}.")


def _only(name: str | None, queue: str | None, task: str | None) -> tuple[PauseKind | None, str]:
    """Return what was given; the kind is None for a definition."""
    given: list[tuple[PauseKind | None, str | None]] = [
        (None, name),
        ("queue", queue),
        ("task", task),
    ]
    (kind, chosen), *more = [each for each in given if each[1] is not None] or [(None, None)]
    if chosen is None or more:
        raise click.UsageError("Give one: the NAME of a definition, --queue NAME or --task NAME.")
    return kind, chosen
