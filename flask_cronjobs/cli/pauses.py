"""``pause`` and ``resume``: a definition, a queue or a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..operations import pauses
from ..operations.pauses import Target, only, queues
from ..state import state_of
from ..text import one_line
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
    target = _only(name, queue, task)
    what = _named(target)
    if target.kind == "queue" and target.name not in queues(state_of()):
        click.echo(f"No task of this app's code has {what} by itself.", err=True)
    is_new = pauses.pause(state_of(), target, actor())
    done = f"Paused {what}" if is_new else f"{one_line(target.name)} is paused already"
    option = () if target.kind == "definition" else (f"--{target.kind}",)
    click.echo(f"{done}. To resume it: {command('resume', *option, target.name)}")


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
    target = _only(name, queue, task)
    resumed = pauses.resume(state_of(), target, actor())
    click.echo(f"Resumed {_named(target)}." if resumed else f"Not paused: {_named(target)}.")


def _only(name: str | None, queue: str | None, task: str | None) -> Target:
    target = only(name, queue, task)
    if target is None:
        raise click.UsageError("Give one: the NAME of a definition, --queue NAME or --task NAME.")
    return target


def _named(target: Target) -> str:
    name = one_line(target.name)
    return name if target.kind == "definition" else f"the {target.kind} {name}"
