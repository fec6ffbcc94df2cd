"""``definitions``, ``remove``, ``pause`` and ``resume``; what is due, for ``tick``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator

import click

from ..jobs.backlog import due, next_due
from ..jobs.definitions import actions
from ..jobs.definitions.actions import Target, only
from ..jobs.definitions.needs import NEEDS
from ..jobs.definitions.views import DefinitionFilter, DefinitionView, list_definitions
from ..jobs.humanize import duration, minute, plural
from ..jobs.reader import Page, Reader, plain_data, reading
from ..jobs.state import State, state_of
from ..text import did_you_mean, one_line, printable
from .group import command
from .output import Listing, admin_command, list_command, moment, since
from .params import F, actor
from .terminal import paint


@list_command("definitions", "flask jobs admin definitions", limit=50, most=200, by="NAME")
def definitions(limit: int, after: str | None) -> Listing:
    """List definitions, their last runs and next slots."""
    found = list_definitions(state_of(), DefinitionFilter(sort="name", after=after), limit=limit)
    is_last = found.total == len(found.rows)
    return Listing(
        "definitions",
        Page(found.rows, None if is_last else found.rows[-1].name, found.now),
        headers=(),
        cells=map(_described, found.rows),
        none=no_definitions(),
        below=list(_unscheduled()) if is_last else (),
    )


@admin_command("remove", "flask jobs admin remove old_report")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a definition that the code does not declare.

    Its runs stay. A tick of other code that declares it creates it again.
    """
    actions.remove(state_of(), name, actor())
    click.echo(f"Removed {one_line(name)}. Its runs stay.")


def no_definitions() -> str:
    """Return what to print where no tick has recorded a definition."""
    declared = len(state_of().registry.declarations)
    if declared:
        schedules, them = plural(declared, "schedule"), "it" if declared == 1 else "them"
        return (
            f"No definitions yet: this app's code declares {schedules}; "
            f"the next tick records {them}."
        )
    return "No definitions yet: add schedule= to a task; the next tick records it."


def _described(row: DefinitionView) -> str:
    name = click.style(printable(row.name), bold=True)
    statuses = Counter(cell.status for cell in row.cells)
    counts = ", ".join(f"{paint(status)} {number}" for status, number in statuses.items())
    took = "" if row.last_seconds is None else f"; the last took {duration(row.last_seconds)}"
    task = "" if row.task == row.name else f"task {printable(row.task)}; "
    return "\n  ".join(
        (
            f"{name}  {printable(row.schedule)}  {printable(row.timezone)}",
            f"{task}last ten: {counts or 'no runs yet'}{took}",
            *_notes(row),
        )
    )


def _unscheduled() -> Iterator[str]:
    jobs = state_of().registry
    scheduled = {declared.handler.name for declared in jobs.declarations.values()}
    names = sorted(jobs.tasks.keys() - scheduled)
    if names:
        yield f"Tasks without a schedule in the code: {printable(', '.join(names))}"


def _notes(row: DefinitionView) -> Iterator[str]:
    if row.needs:
        needs = ", ".join(NEEDS[need] for need in row.needs)
        yield paint("warning", f"needs a person: {needs}")
    if row.broken is not None:
        yield paint("error", f"broken: {printable(row.broken)}")
    if row.orphaned:
        yield paint("warning", "this app's code declares no task by that name")
    elif row.undeclared:
        yield paint("warning", "this app's code no longer declares it")
    if row.paused_at is not None:
        yield paint("warning", "paused")
    if row.next_slots and not (row.orphaned or row.undeclared):
        yield f"next: {', '.join(f'{slot:%a %Y-%m-%d %H:%M}' for slot in row.next_slots)}"
    if row.ping is not None:
        yield f"pings {printable(row.ping)}"


def _which(command: F) -> F:
    """Add ``NAME``, ``--queue`` and ``--task`` to *command*."""
    queue = click.option("--queue", metavar="NAME", help="All runs of this queue.")
    task = click.option(
        "--task",
        metavar="NAME",
        help="All runs of this task.",
    )
    name = click.argument("name", required=False)
    return name(queue(task(command)))


@admin_command(
    *("pause", "flask jobs admin pause nightly_report", "flask jobs admin pause --queue reports")
)
@_which
def pause(name: str | None, queue: str | None, task: str | None) -> None:
    """Pause a definition, a queue or a task.

    A paused definition enqueues no runs. Of a paused queue or task, runs are enqueued, but no
    worker begins them; those that run go on.
    """
    target = _only(name, queue, task)
    what = _named(target)
    if target.kind == "queue" and target.name not in state_of().queues:
        hint = did_you_mean(target.name, state_of().queues)
        click.echo(f"No task of this app's code has {what}.{hint}", err=True)
    is_new = actions.pause(state_of(), target, actor())
    done = f"Paused {what}" if is_new else f"{one_line(target.name)} is paused already"
    option = () if target.kind == "definition" else (f"--{target.kind}",)
    click.echo(f"{done}. To resume it: {command('resume', *option, target.name)}")


@admin_command(
    *("resume", "flask jobs admin resume nightly_report", "flask jobs admin resume --queue reports")
)
@_which
def resume(name: str | None, queue: str | None, task: str | None) -> None:
    """Resume a definition, a queue or a task.

    Slots that passed while a definition was paused are not run. Runs that waited for a queue or a
    task are.
    """
    target = _only(name, queue, task)
    if actions.resume(state_of(), target, actor()):
        click.echo(f"Resumed {_named(target)}.")
    else:
        click.echo(f"Not paused: {_named(target)}.")


def _only(name: str | None, queue: str | None, task: str | None) -> Target:
    target = only(name, queue, task)
    if target is None:
        raise click.UsageError("Give one: the NAME of a definition, --queue NAME or --task NAME.")
    return target


def _named(target: Target) -> str:
    name = one_line(target.name)
    return name if target.kind == "definition" else f"the {target.kind} {name}"


def print_due(state: State, queues: tuple[str, ...], as_json: bool) -> None:
    """Print which slots and how many runs are due now, or what will be due next."""
    with reading(state) as reader:
        found, following = due(reader, queues), _following(reader)
    if as_json:
        click.echo(json.dumps(plain_data(found)))
        return
    for slot in found.slots:
        click.echo(f"{one_line(slot.name)} is due: the slot of {minute(slot.at)}")
    if found.runs:
        click.echo(f"{found.runs.of('run')} due")
    if not (found.slots or found.runs):
        click.echo(f"Nothing is due; {following}")


def print_idle(state: State, queues: tuple[str, ...], put: Callable[[str], None]) -> None:
    """Print what will be due next, or how many due runs wait though a tick ran nothing."""
    with reading(state) as reader:
        number, following = due(reader, queues).runs, _following(reader)
    if number:
        why = command("list", "--status", "queued")
        put(f"Nothing was run, and {number.of('run')} due. To see why: {why}")
    else:
        put(f"Nothing was due; {following}")


def what_is_due(state: State, queues: tuple[str, ...]) -> str:
    """Return how many runs are due, or else what will be due next."""
    with reading(state) as reader:
        number = due(reader, queues).runs
        return f"{number.of('run')} due" if number else _following(reader)


def _following(reader: Reader) -> str:
    """Return what will be due next."""
    soon = next_due(reader)
    if soon is not None:
        return f"next: {one_line(soon.name)}, {moment(soon.at)} ({since(soon.at, reader.now)})"
    if reader.state.registry.declarations:
        return "a tick records the schedules that the code declares"
    return "nothing is scheduled"
