"""``definitions``, ``remove``, ``pause``, ``resume``, ``agenda``; what is due, for ``tick``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ..jobs.agenda import Agenda, NextRun, Piece, next_runs, read_agenda, span_of
from ..jobs.backlog import Due, due, next_due
from ..jobs.definitions import actions
from ..jobs.definitions.actions import Target, only
from ..jobs.definitions.actions import remove as remove_definition
from ..jobs.definitions.needs import NEEDS
from ..jobs.definitions.views import DefinitionFilter, DefinitionView, list_definitions
from ..jobs.humanize import duration, late, minute, plural, seconds_since
from ..jobs.reader import Page, Reader, reading
from ..jobs.state import State, state_of
from ..text import one_line, printable
from .group import JobsGroup, examples
from .output import command, listing, moment, print_json, print_next, print_page, since, table
from .params import actor, complete_definitions, complete_tasks, json_option
from .terminal import paint

group: JobsGroup = JobsGroup("definitions")


@group.command(
    "definitions",
    epilog=examples("flask jobs admin definitions", "flask jobs admin definitions --next"),
)
@click.option("--next", "by_time", is_flag=True, help="List the next runs of all, soonest first.")
@listing(50, most=200, after="NAME")
def definitions(limit: int, after: str | None, by_time: bool, as_json: bool) -> None:
    """List definitions with their last runs and next slots; or what runs next."""
    if by_time:
        _print_next_runs(limit, after, as_json)
        return
    found = list_definitions(state_of(), DefinitionFilter(sort="name", after=after), limit=limit)
    is_last = found.total == len(found.rows)
    page = Page(found.rows, None if is_last else found.rows[-1].name, found.now)
    if as_json:
        print_json({"definitions": page.rows, "after": page.next})
        return
    if not page.rows:
        click.echo(no_definitions())
    for row in page.rows:
        _print(row)
    print_next(page)
    if is_last:
        _print_unscheduled()


def _print_next_runs(limit: int, after: str | None, as_json: bool) -> None:
    if after is not None:
        raise click.UsageError("--after goes on with the list by name. Leave out --next.")
    with reading(state_of()) as reader:
        page = Page(next_runs(reader, limit), None, reader.now)

    def cells(run: NextRun) -> Sequence[object]:
        return moment(run.at), late(seconds_since(run.at, page.now)), run.definition, run.task

    none = "No definition is scheduled."
    print_page("next", page, as_json, ("AT", "", "DEFINITION", "TASK"), cells, none, flexible=2)


@group.command("remove", epilog=examples("flask jobs admin remove old_report"))
@click.argument("name", shell_complete=complete_definitions)
def remove(name: str) -> None:
    """Remove a definition that the code does not declare.

    Its runs stay. A tick of other code that declares it creates it again.
    """
    remove_definition(state_of(), name, actor())
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


def _print(row: DefinitionView) -> None:
    name = click.style(printable(row.name), bold=True)
    click.echo(f"{name}  {printable(row.schedule)}  {printable(row.timezone)}")
    statuses = Counter(cell.status for cell in row.cells)
    counts = ", ".join(f"{paint(status)} {number}" for status, number in statuses.items())
    took = "" if row.last_seconds is None else f"; the last took {duration(row.last_seconds)}"
    task = "" if row.task == row.name else f"task {printable(row.task)}; "
    click.echo(f"  {task}last ten: {counts or 'no runs yet'}{took}")
    for line in _notes(row):
        click.echo(f"  {line}")


def _print_unscheduled() -> None:
    jobs = state_of().registry
    scheduled = {declared.handler.name for declared in jobs.declarations.values()}
    names = sorted(jobs.tasks.keys() - scheduled)
    if names:
        click.echo(f"Tasks without a schedule in the code: {printable(', '.join(names))}")


def _notes(row: DefinitionView) -> list[str]:
    notes: list[str] = []
    if row.needs:
        needs = ", ".join(NEEDS[need] for need in row.needs)
        notes.append(paint("warning", f"needs a person: {needs}"))
    if row.broken is not None:
        notes.append(paint("error", f"broken: {printable(row.broken)}"))
    if row.orphaned:
        notes.append(paint("warning", "this app's code declares no task by that name"))
    elif row.undeclared:
        notes.append(paint("warning", "this app's code no longer declares it"))
    if row.paused_at is not None:
        notes.append(paint("warning", "paused"))
    if row.next_slots and not (row.orphaned or row.undeclared):
        slots = ", ".join(f"{slot:%a %Y-%m-%d %H:%M}" for slot in row.next_slots)
        notes.append(f"next: {slots}")
    if row.ping is not None:
        notes.append(f"pings {printable(row.ping)}")
    return notes


F = TypeVar("F", bound=Callable[..., Any])


def _which(command: F) -> F:
    """Add ``NAME``, ``--queue`` and ``--task`` to *command*."""
    queue = click.option("--queue", metavar="NAME", help="All runs of this queue.")
    task = click.option(
        "--task",
        metavar="NAME",
        shell_complete=complete_tasks,
        help="All runs of this task.",
    )
    name = click.argument("name", required=False, shell_complete=complete_definitions)
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
    if target.kind == "queue" and target.name not in state_of().queues:
        click.echo(f"No task of this app's code has {what} by itself.", err=True)
    is_new = actions.pause(state_of(), target, actor())
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
    resumed = actions.resume(state_of(), target, actor())
    click.echo(f"Resumed {_named(target)}." if resumed else f"Not paused: {_named(target)}.")


def _only(name: str | None, queue: str | None, task: str | None) -> Target:
    target = only(name, queue, task)
    if target is None:
        raise click.UsageError("Give one: the NAME of a definition, --queue NAME or --task NAME.")
    return target


def _named(target: Target) -> str:
    name = one_line(target.name)
    return name if target.kind == "definition" else f"the {target.kind} {name}"


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
        _print_agenda(found, past=start is not None)


def _print_agenda(found: Agenda, past: bool) -> None:
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
    if found.number.value > len(found.lanes):
        click.echo(
            f"Only those that run next: {found.number.shown(len(found.lanes), 'definition')}."
        )


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
