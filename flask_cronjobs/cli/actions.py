"""Commands that act on runs, definitions, queues and tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime

import click

from ..core.app_state import state_of
from ..core.tasks.options import EnqueueOptions
from ..errors import CronJobsError
from ..insights import schedule_actions as actions
from ..insights.run_actions import CANCEL, DISCARD, RETRY, Action, Progress
from ..insights.run_detail import start_of
from ..insights.run_filters import RunFilter
from ..insights.run_payloads import retry_with, run_again
from ..insights.run_preview import preview
from ..insights.schedule_actions import Target, only, queue_run
from ..text import did_you_mean, one_line, printable
from ..text.humanize import duration, plural
from ..types import JSON
from .group import command, said
from .output import Answer, act, admin_command, moment, table
from .params import JSON_FLAG, F, Id, actor, age, filtered, json_object, time_in_zone
from .runs import advice_on, whose

#: Fewest runs for which a progress bar is shown.
_LONG = 500


def _acts(action: Action, *calls: str) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator for a command that applies *action* to runs, by id or by a filter."""
    ids = click.argument("ids", metavar="[ID]...", nargs=-1, type=Id())
    yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    add = act(action.name, *calls)
    return lambda function: add(ids(filtered(yes(function))))


@_acts(
    RETRY, "flask jobs admin retry 5 6", "flask jobs admin retry --task send_mail --newer-than 2h"
)
@click.option("--payload", type=json_object, metavar="JSON", help="Give one run new arguments.")
def retry(
    ids: tuple[int, ...],
    which: RunFilter,
    payload: dict[str, JSON] | None,
    yes: bool,
) -> None:
    """Queue runs again, by id or by a filter.

    A filter without --status finds dead runs.
    """
    if payload is not None:
        if len(ids) != 1 or which != RunFilter():
            raise click.UsageError("--payload changes one run. Give exactly one ID, and no filter.")
        with _explained():
            change = retry_with(state_of(), ids[0], payload, actor())
        click.echo(f"Run {ids[0]} of {whose(change.task, change.label)}: queued again.")
        return
    _act(RETRY, ids, which, yes)


@_acts(
    CANCEL,
    "flask jobs admin cancel 5",
    "flask jobs admin cancel --queue mail --status queued --yes",
)
def cancel(ids: tuple[int, ...], which: RunFilter, yes: bool) -> None:
    """Cancel runs, by id or by a filter.

    A filter without --status finds all unfinished runs.
    """
    _act(CANCEL, ids, which, yes)


@_acts(DISCARD, "flask jobs admin discard 41 42", "flask jobs admin discard --task weekly_report")
def discard(ids: tuple[int, ...], which: RunFilter, yes: bool) -> None:
    """Discard dead runs, by id or by a filter.

    They end as cancelled and need no more attention, but can still be retried.
    """
    _act(DISCARD, ids, which, yes)


@admin_command("Act", [JSON_FLAG], "again", "flask jobs admin again 5")
@click.argument("run_id", metavar="ID", type=Id())
@click.option("--payload", type=json_object, metavar="JSON", help="Give it other arguments.")
def again(run_id: int, payload: dict[str, JSON] | None) -> Answer:
    """Queue a new run like run ID, due now."""
    with _explained():
        new_id = run_again(state_of(), run_id, payload, actor())
    text = f"Queued run {new_id}, like run {run_id}. {one_line(start_of(state_of(), new_id))}"
    return Answer({"id": new_id}, text)


@contextmanager
def _explained() -> Generator[None, None, None]:
    """Turn a handler's error about unexpected arguments into an error of the command."""
    try:
        yield
    except TypeError as error:
        raise click.ClickException(f"{error}. Give the arguments as --payload JSON.") from error


def _act(action: Action, ids: Sequence[int], which: RunFilter, confirmed: bool) -> None:
    """Apply *action* to the runs of *ids* or of the filter *which*, and print the results."""
    if bool(ids) == (which != RunFilter()):
        if ids:
            raise click.UsageError("Give ids or a filter, not both.")
        raise click.UsageError("Give ids, or a filter such as --task NAME. See --help.")
    if ids:
        _act_on_each(action, ids)
        return
    ids = action.ids(state_of(), which)
    label = action.name.capitalize()
    if not ids:
        advice = advice_on(which, action.name) or _others(action, which)
        click.echo(f"No {' or '.join(action.statuses(which))} runs match.{advice}")
        return
    if not confirmed:
        _print_preview(ids)
        click.confirm(f"{label} {plural(len(ids), 'run')}?", abort=True)
    with progress_bar(label, len(ids)) as advance:
        result = action.many(state_of(), ids, actor(), advance, found_by=which)
    click.echo(result.sentence())


def _act_on_each(action: Action, ids: Sequence[int]) -> None:
    refused = False
    for run_id in dict.fromkeys(ids):
        try:
            change = action.one(state_of(), run_id, actor())
        except CronJobsError as error:
            refused = True
            click.echo(f"Error: {said(error)}", err=True)
        else:
            what = (
                "its worker was asked to stop it" if change.status == "running" else action.result
            )
            click.echo(f"Run {run_id} of {whose(change.task, change.label)}: {what}.")
    if refused:
        raise click.exceptions.Exit(1)


def _print_preview(ids: Sequence[int]) -> None:
    """Print the first runs that are about to be changed, and how many have each error."""
    summary = preview(state_of(), ids)
    labels = any(row.label for row in summary.first)
    first = [
        (row.id, row.status, row.task, *((row.label,) if labels else ()), row.error_type)
        for row in summary.first
    ]
    table(("ID", "STATUS", "TASK", *(("LABEL",) if labels else ()), "ERROR"), first)
    click.echo(f"{summary.heading(len(ids))}:")
    for line in summary.split():
        click.echo(f"  {one_line(line)}")


def _others(action: Action, which: RunFilter) -> str:
    """Return advice about the statuses that *action* changes only with ``--status``."""
    chosen = action.statuses(which)
    others = [status for status in action.allowed if status not in chosen]
    # A filter such as --stale finds runs of its own statuses alone.
    if which.status is not None or chosen != list(action.default) or not others:
        return ""
    return f" To include others, add --status with one of: {', '.join(others)}."


@contextmanager
def progress_bar(label: str, length: int) -> Generator[Progress, None, None]:
    """Count the finished runs, with a progress bar on a terminal; print the number after Ctrl-C."""
    counts: list[int] = []
    try:
        if length < _LONG or not sys.stdout.isatty():
            yield counts.append
            return
        with click.progressbar(length=length, label=label) as bar:

            def advance(steps: int) -> None:
                counts.append(steps)
                bar.update(steps)

            yield advance
    except KeyboardInterrupt:
        runs = plural(length, "run")
        click.echo(f"\nStopped: at least {sum(counts):,} of {runs} are done.", err=True)
        raise


@admin_command(
    *("Act", [JSON_FLAG], "run"),
    "flask jobs admin run nightly_report",
    "flask jobs admin run send_mail --payload '{\"user_id\": 1}'",
    "flask jobs admin run send_mail --delay 10m --key mail-1",
)
@click.argument("name")
@click.option(
    "--payload", type=json_object, metavar="JSON", help="Give the handler these arguments."
)
@click.option(
    *("--at", "run_at"),
    type=time_in_zone,
    metavar="TIME",
    help="Run it at TIME, such as 2026-11-20T06:00Z.",
)
@click.option("--delay", type=age, metavar="DURATION", help="Run it after DURATION, such as 10m.")
@click.option("--queue", metavar="NAME", help="Use this queue instead of the task's own.")
@click.option("--key", metavar="KEY", help="Do nothing if a run already has this idempotency key.")
def run(
    name: str,
    payload: dict[str, JSON] | None,
    run_at: datetime | None,
    delay: float | None,
    queue: str | None,
    key: str | None,
) -> Answer:
    """Queue a run of a definition or a task, due now or later.

    A definition with overlap="skip" skips its slots until this run has ended.
    """
    if run_at is not None and delay is not None:
        raise click.UsageError("Give --at or --delay, not both.")
    options = EnqueueOptions(run_at=run_at, delay=delay, idempotency_key=key, queue=queue)
    with _explained():
        queued = queue_run(state_of(), name, payload, actor(), options=options)
    whose = f"run {queued.id} of {printable(name)}"
    if not queued.is_new:
        text = f"Queued nothing: {whose} already has the key."
    elif run_at is not None:
        text = f"Queued {whose}, due {moment(run_at)}."
    elif delay:
        text = f"Queued {whose}, due in {duration(delay)}."
    else:
        text = f"Queued {whose}. {one_line(start_of(state_of(), queued.id))}"
    return Answer(queued._asdict(), text)


def _which(function: F) -> F:
    """Add ``NAME``, ``--queue`` and ``--task`` to *function*."""
    queue = click.option("--queue", metavar="NAME", help="Act on all runs of this queue.")
    task = click.option(
        "--task",
        metavar="NAME",
        help="Act on all runs of this task.",
    )
    name = click.argument("name", required=False)
    return name(queue(task(function)))


@act("pause", "flask jobs admin pause nightly_report", "flask jobs admin pause --queue reports")
@_which
def pause(name: str | None, queue: str | None, task: str | None) -> None:
    """Pause a definition, a queue or a task.

    A paused definition enqueues no runs. Runs of a paused queue or task are still enqueued, but no
    worker begins them. Runs that are running continue.
    """
    target = _only(name, queue, task)
    what = _named(target)
    if target.kind == "queue" and target.name not in state_of().queues:
        hint = did_you_mean(target.name, state_of().queues)
        click.echo(f"No task in this app's code uses {what}.{hint}", err=True)
    is_new = actions.pause(state_of(), target, actor())
    result = f"Paused {what}" if is_new else f"{one_line(target.name)} is already paused"
    option = () if target.kind == "definition" else (f"--{target.kind}",)
    if not option and target.name.startswith("-"):
        option = ("--",)  # Otherwise the name would be taken for an option.
    click.echo(f"{result}. To resume it: {command('resume', *option, target.name)}")


@act("resume", "flask jobs admin resume nightly_report", "flask jobs admin resume --queue reports")
@_which
def resume(name: str | None, queue: str | None, task: str | None) -> None:
    """Resume a definition, a queue or a task.

    Slots that passed while a definition was paused are not run. Runs that waited for a queue or a
    task can begin.
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


@act("remove", "flask jobs admin remove old_report")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a definition that the code does not declare.

    Its runs stay. If other code declares it, the next tick of that code creates it again.
    """
    actions.remove(state_of(), name, actor())
    click.echo(f"Removed {one_line(name)}. Its runs stay.")
