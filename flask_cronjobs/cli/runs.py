"""``list``, ``show``, ``retry``, ``cancel``, ``discard``, ``again``, ``run``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

import click

from ..errors import CronJobsError
from ..jobs.definitions.actions import queue_run
from ..jobs.humanize import duration, plural
from ..jobs.reader import CAP
from ..jobs.runs.actions import CANCEL, DISCARD, RETRY, Action, Progress, no_run, retrying
from ..jobs.runs.detail import Attempt, RunView, facts_of, find_run, without_own_frames
from ..jobs.runs.filters import RunFilter
from ..jobs.runs.payloads import retry_with, run_again
from ..jobs.runs.preview import preview
from ..jobs.state import state_of
from ..jobs.step_views import StepView, go_on_from
from ..registry.options import EnqueueOptions
from ..text import cut, one_line, printable
from ..types import JSON
from .follow import follow
from .group import JobsGroup, examples
from .output import (
    as_called,
    command,
    heading,
    moment,
    print_facts,
    print_json,
    since,
    table,
)
from .params import (
    Id,
    actor,
    age,
    complete_names,
    filtered,
    json_object,
    json_option,
    time_in_zone,
)
from .run_list import advice_on
from .terminal import paint

#: Show a progress bar for this many runs or more.
_LONG = 500
#: How many characters of a payload or a result are printed; --json prints all.
_LONGEST_JSON = 20_000

group: JobsGroup = JobsGroup("runs")


@group.command("show", epilog=examples("flask jobs admin show 5"))
@click.argument("run_id", metavar="ID", type=Id())
@click.option("--frames", is_flag=True, help="Print the frames of Flask-CronJobs, too.")
@click.option("--output", is_flag=True, help="Print the output of its latest attempt alone.")
@click.option("--follow", "follows", is_flag=True, help="With --output: go on until it has ended.")
@json_option
def show(run_id: int, frames: bool, output: bool, follows: bool, as_json: bool) -> None:
    """Show one run with its payload, attempts, errors and stacks."""
    if (follows and not output) or (output and as_json):
        raise click.UsageError("--follow needs --output, which is without --json.")
    if follows:
        follow(state_of(), run_id)
        return
    view = find_run(state_of(), run_id)
    if view is None:
        raise no_run(run_id)
    if output:
        kept = view.attempts[0].output if view.attempts else None
        click.echo(printable(kept or ""), nl=False)
    elif as_json:
        print_json(view)
    else:
        _print(view, frames)


def _acts(action: Action, *calls: str) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator for a command that does *action* to runs, by id or by a filter."""
    ids = click.argument("ids", metavar="[ID]...", nargs=-1, type=Id())
    yes = click.option("--yes", is_flag=True, help="Do not ask.")
    add = group.command(action.name, epilog=examples(*calls))
    return lambda command: add(ids(filtered(yes(command))))


@_acts(
    RETRY, "flask jobs admin retry 5 6", "flask jobs admin retry --task send_mail --newer-than 2h"
)
@click.option("--payload", type=json_object, metavar="JSON", help="New arguments, for one ID.")
@click.option("--from-step", metavar="NAME", help="Do this step and those behind it again.")
@click.option("--spread", type=age, metavar="AGE", help="Due within AGE, evenly, not all at once.")
def retry(
    ids: tuple[int, ...],
    which: RunFilter,
    payload: dict[str, JSON] | None,
    from_step: str | None,
    spread: float | None,
    yes: bool,
) -> None:
    """Queue runs again, by id or by a filter.

    A filter without --status finds dead runs.
    """
    given = sum(each is not None for each in (payload, from_step))
    if given and (len(ids) != 1 or which != RunFilter() or given > 1):
        raise click.UsageError("--payload and --from-step are each for one run. Give one ID.")
    if from_step is not None:
        with _explained():
            click.echo(printable(str(go_on_from(state_of(), ids[0], from_step, actor()))))
        return
    if payload is not None:
        with _explained():
            change = retry_with(state_of(), ids[0], payload, actor())
        click.echo(f"Run {ids[0]} of {_whose(change.task, change.label)}: queued again.")
        return
    _act(retrying(spread or 0.0), ids, which, yes)


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

    They end cancelled: nobody is asked about them any more, and retry still queues them again.
    """
    _act(DISCARD, ids, which, yes)


@group.command("again", epilog=examples("flask jobs admin again 5"))
@click.argument("run_id", metavar="ID", type=Id())
@click.option("--payload", type=json_object, metavar="JSON", help="Other arguments.")
@json_option
def again(run_id: int, payload: dict[str, JSON] | None, as_json: bool) -> None:
    """Queue a new run like another one, whatever became of that, due now."""
    with _explained():
        new_id = run_again(state_of(), run_id, payload, actor())
    if as_json:
        print_json({"id": new_id})
    else:
        click.echo(f"Queued run {new_id}, like run {run_id}. The next tick runs it.")


@contextmanager
def _explained() -> Generator[None, None, None]:
    """Turn the error about arguments that a handler does not take into one of the command."""
    try:
        yield
    except TypeError as error:
        raise click.ClickException(f"{error}. Give the arguments as --payload JSON.") from error


def _whose(task: str, label: str | None) -> str:
    """Return the task of a run, with the run's label if it has one."""
    return printable(f"{task} ({label})" if label else task)


def _print(view: RunView, frames: bool) -> None:
    row = view.row
    lost = ", but its worker was lost" if row.is_stale(view.now) else ""
    if row.handed_to is not None:
        lost = f", handed to {row.handed_to} {since(view.now, row.started_at)}"
    click.echo(f"Run {row.id} of {_whose(row.task, row.label)}: {paint(row.status)}{lost}")
    print_facts(facts_of(view), view.now)
    if view.stopped:
        first = str(view.waits_for)
        click.echo(f"To go on: {command('retry', first)}, or: {command('discard', first)}")
    for pause in view.pauses:
        resume = command("resume", f"--{pause.kind}", pause.name)
        click.echo(printable(f"{pause}; to resume it: {resume}"))
    _print_json("Payload", view.payload)
    if view.result is not None:
        _print_json("Result", view.result)
    if view.steps:
        heading("Steps")
    for step in view.steps:
        _print_step(step)
    for attempt in view.attempts:
        _print_attempt(attempt, frames)


def _print_json(title: str, value: JSON) -> None:
    heading(title)
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(printable(cut(text, _LONGEST_JSON)))


def _print_step(step: StepView) -> None:
    took = "" if step.seconds is None else f", took {duration(step.seconds)}"
    where = f", attempt {step.attempt} on {step.worker}" if step.attempt else ""
    until = f" until {moment(step.due_at)}" if step.finished_at is None and step.due_at else ""
    ended = f", {moment(step.finished_at)}" if step.finished_at else ""
    click.echo(printable(f"  {step.name}: {step.state}{until}{ended}{took}{where}"))
    if step.result is not None:
        click.echo(printable(f"    {cut(json.dumps(step.result, ensure_ascii=False), 200)}"))


def _print_attempt(attempt: Attempt, frames: bool) -> None:
    took = "" if attempt.seconds is None else f", took {duration(attempt.seconds)}"
    heading(f"Attempt {attempt.number}: {attempt.outcome}")
    click.echo(f"  {moment(attempt.started_at)} to {moment(attempt.ended_at)}{took}")
    if attempt.worker:
        click.echo(f"  worker {printable(attempt.worker)}")
    if attempt.error_type or attempt.error:
        error = ": ".join(part for part in (attempt.error_type, attempt.error) if part)
        click.echo(f"  {printable(error)}")
    if attempt.stack:
        stack = attempt.stack if frames else without_own_frames(attempt.stack)
        click.echo(printable(stack).rstrip())
    if attempt.output:
        heading(f"Output of attempt {attempt.number}")
        click.echo(printable(attempt.output).rstrip())


def _act(action: Action, ids: Sequence[int], which: RunFilter, confirmed: bool) -> None:
    """Do *action* to the runs of *ids* or of the filter *which*, and print what came of it."""
    if bool(ids) == (which != RunFilter()):
        if ids:
            raise click.UsageError("Give ids or a filter, not both.")
        raise click.UsageError("Give ids, or a filter such as --task NAME. See --help.")
    if ids:
        _act_on_each(action, ids)
    else:
        _act_on_all(action, which, confirmed)


def _act_on_each(action: Action, ids: Sequence[int]) -> None:
    refused = False
    for run_id in ids:
        try:
            change = action.one(state_of(), run_id, actor())
        except CronJobsError as error:
            refused = True
            click.echo(f"Error: {printable(as_called(str(error)))}", err=True)
        else:
            what = "asked its worker to stop" if change.status == "running" else action.result
            click.echo(f"Run {run_id} of {_whose(change.task, change.label)}: {what}.")
    if refused:
        raise click.exceptions.Exit(1)


def _act_on_all(action: Action, which: RunFilter, confirmed: bool) -> None:
    ids = action.ids(state_of(), which)
    label = action.name.capitalize()
    if not ids:
        advice = _others(action, which) + advice_on(which, action.name)
        click.echo(f"No {' or '.join(action.statuses(which))} runs match.{advice}")
        return
    if not confirmed:
        _print_preview(ids)
        click.confirm(f"{label} {plural(len(ids), 'run')}?", abort=True)
    with progress_bar(label, len(ids)) as advance:
        result = action.many(state_of(), ids, actor(), advance, found_by=which)
    click.echo(result.sentence())


def _print_preview(ids: Sequence[int]) -> None:
    """Print which runs are about to be changed: the first of them, and the split by error."""
    seen = preview(state_of(), ids)
    labels = any(row.label for row in seen.first)
    first = [
        (row.id, row.status, row.task, *((row.label,) if labels else ()), row.error_type)
        for row in seen.first
    ]
    table(("ID", "STATUS", "TASK", *(("LABEL",) if labels else ()), "ERROR"), first)
    click.echo(f"{seen.heading(len(ids))}:")
    for line in seen.split():
        click.echo(f"  {one_line(line)}")


def _others(action: Action, which: RunFilter) -> str:
    """Return how to do *action* to runs of *which* that have a status it was not asked for."""
    if which.status is not None:
        return ""
    found = {
        status: action.count(state_of(), replace(which, status=status), CAP)
        for status in action.allowed
        if status not in action.statuses(which)
    }
    return "".join(
        f" To {action.name} {count.of(f'{status} run')}, add --status {status}."
        for status, count in found.items()
        if count
    )


@contextmanager
def progress_bar(label: str, length: int) -> Generator[Progress, None, None]:
    """Count the runs that are done, with a progress bar on a terminal; say it after Ctrl-C."""
    done: list[int] = []
    try:
        if length < _LONG or not sys.stdout.isatty():
            yield done.append
            return
        with click.progressbar(length=length, label=label) as bar:

            def advance(steps: int) -> None:
                done.append(steps)
                bar.update(steps)

            yield advance
    except KeyboardInterrupt:
        runs = plural(length, "run")
        click.echo(f"\nStopped: at least {sum(done):,} of {runs} are done.", err=True)
        raise


@group.command(
    "run",
    epilog=examples(
        "flask jobs admin run nightly_report",
        "flask jobs admin run send_mail --payload '{\"user_id\": 1}'",
        "flask jobs admin run send_mail --delay 10m --key mail-1",
    ),
)
@click.argument("name", shell_complete=complete_names)
@click.option("--payload", type=json_object, metavar="JSON", help="The handler's arguments.")
@click.option(
    "--at", "run_at", type=time_in_zone, metavar="TIME", help="Not before TIME: 2026-11-20T06:00Z."
)
@click.option("--delay", type=age, metavar="AGE", help="Not before AGE from now: 10m.")
@click.option("--queue", metavar="NAME", help="Instead of the task's own queue.")
@click.option("--key", metavar="KEY", help="Idempotency key: do nothing if a run has it.")
@json_option
def run(
    name: str,
    payload: dict[str, JSON] | None,
    run_at: datetime | None,
    delay: float | None,
    queue: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Queue a run of a definition or a task, due now or later.

    Until it has ended, a definition with overlap="skip" skips its slots.
    """
    if run_at is not None and delay is not None:
        raise click.UsageError("Give --at or --delay, not both.")
    options = EnqueueOptions(run_at=run_at, delay=delay, idempotency_key=key, queue=queue)
    with _explained():
        queued = queue_run(state_of(), name, payload, actor(), options=options)
    if as_json:
        print_json(queued._asdict())
        return
    whose = f"run {queued.id} of {printable(name)}"
    if not queued.is_new:
        click.echo(f"Queued nothing: {whose} has the key already.")
    elif run_at is not None:
        click.echo(f"Queued {whose}, due {moment(run_at)}.")
    elif delay:
        click.echo(f"Queued {whose}, due in {duration(delay)}.")
    else:
        click.echo(f"Queued {whose}. The next tick runs it.")
