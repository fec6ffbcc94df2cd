"""Commands that look at runs: ``list``, ``show`` and ``wait``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import click

from ..core.app_state import State, state_of
from ..errors import CronJobsError
from ..insights.run_actions import no_run
from ..insights.run_detail import Attempt, RunView, facts_of, find_run
from ..insights.run_filters import RunFilter
from ..insights.run_list import RunPage, list_runs
from ..insights.run_rows import RunRow
from ..insights.schedule_actions import no_definition
from ..insights.schedule_views import definition_names
from ..insights.step_views import StepView
from ..insights.wait_reasons import Wait
from ..text import cut, did_you_mean, one_line, printable
from ..text.humanize import duration
from ..text.redaction import without_own_frames
from ..types import JSON, TERMINAL
from .group import as_called, command, said
from .output import (
    Answer,
    admin_command,
    heading,
    indented,
    is_wide,
    listing,
    look,
    look_at_list,
    moment,
    print_facts,
    refuse_json,
    since,
)
from .params import Id, age, filtered
from .terminal import paint

#: The columns that ``--wide`` adds to `show_list`.
_WIDE = ("QUEUE", "DUE", "TOOK", "WORKER")
#: Seconds between two checks of the run.
POLL_SECONDS = 1.0
#: The exit status for each final status. For a timeout, it is that of the command ``timeout``.
STATUS_OF = {"succeeded": 0, "dead": 1, "cancelled": 3, "skipped": 4}
NOT_IN_TIME = 124
#: The exit status after Ctrl-C, as if SIGINT had ended the command. click's own would be that of a
#: dead run.
STOPPED = 130
#: Seconds that the search for a page may take.
_SEARCHED_SECONDS = 10.0
#: The maximum number of characters of a payload or a result that are printed; --json prints all.
_LONGEST_JSON = 20_000


@look_at_list(
    "list",
    "flask jobs admin list --status dead --newer-than 1d",
    "flask jobs admin list --task send_mail --error Timeout",
    "flask jobs admin list -q invoice:4711",
    limit=20,
)
@partial(filtered, several=True)
def show_list(which: RunFilter, limit: int, before: int | None) -> Answer:
    """List runs, newest first.

    With -q, the run whose id or key is TEXT comes first.

    With --wide, the list also has queues, workers, due times and durations.
    """
    state = state_of()
    page = _page(state, which, before, limit)
    none = "There are no runs yet."
    if not page.rows and which != RunFilter():
        none = f"No runs match.{advice_on(which, 'list')}"
    note = ""
    if which.search is not None:
        note = "Searched all runs by id, idempotency key, label and task."
        if page.next is not None:
            note = (
                "Searched all runs by id and idempotency key. "
                f"Searched labels and tasks back to run {page.next}."
            )
    labels = any(row.label is not None for row in page.rows)
    headers = ["ID", "STATUS", "TASK", *(["LABEL"] if labels else []), "ATTEMPT", "WHEN", "WHY"]
    if is_wide():
        headers += _WIDE
    cells = (_cells(page, row, labels) for row in page.rows)
    return listing("runs", page, headers, cells, none, note=note)


def _page(state: State, which: RunFilter, before: int | None, limit: int) -> RunPage:
    """Return a page, read until it is full or ten seconds are over; the next begins after it."""
    rows: list[RunRow] = []
    waits: dict[int, tuple[Wait, ...]] = {}
    until = time.monotonic() + _SEARCHED_SECONDS
    while True:
        page = list_runs(state, which, before, limit - len(rows))
        rows += page.rows
        waits |= page.waits
        if not page.partial or len(rows) >= limit or time.monotonic() >= until:
            return replace(page, rows=rows, waits=waits, next=page.before)
        before = page.before


def advice_on(which: RunFilter, verb: str) -> str:
    """Return advice if *verb* has found no run of *which*, since a name may be misspelled."""
    state = state_of()
    advice = [state.registry.advice(which.task)]
    if which.queue is not None and which.queue not in state.queues:
        hint = did_you_mean(which.queue, state.queues)
        advice.append(f"No task in this app's code uses the queue {which.queue}.{hint}")
    name = which.definition
    if name is not None and name not in definition_names(state):
        advice.append(str(no_definition(state, name, verb)))
    return printable(as_called("".join(f" {part}" for part in advice if part)))


def _cells(page: RunPage, row: RunRow, labels: bool) -> Sequence[object]:
    when = since(row.finished_at or row.started_at or row.run_at, page.now)
    if row.status in ("queued", "failed"):
        when = since(row.run_at, page.now)
    error = row.error_type if row.status != "skipped" else row.last_error
    if row.handed_to is not None:
        error = f"handed to {row.handed_to}"
    if row.is_stale(page.now):
        error = "worker lost"
    if waits := page.waits.get(row.id, ()):
        error = waits[0].short if waits[0].kind not in ("later", "worker") else error
    label = (row.label,) if labels else ()
    took = None if row.took is None else duration(row.took)
    more = (row.queue, moment(row.run_at), took, row.locked_by) if is_wide() else ()
    attempts = f"{row.attempts}/{row.max_attempts}"
    return row.id, row.status, row.task, *label, attempts, when, error, *more


@look("show", "flask jobs admin show 5")
@click.argument("run_id", metavar="ID", type=Id())
@click.option("--frames", is_flag=True, help="Also print the stack frames of Flask-CronJobs.")
@click.option("--output", is_flag=True, help="Print only the output of the latest attempt.")
def show(run_id: int, frames: bool, output: bool) -> Answer | None:
    """Show one run with its payload, attempts, errors and stacks."""
    view = find_run(state_of(), run_id)
    if view is None:
        raise no_run(run_id)
    if output:
        refuse_json()
        latest = view.attempts[0].output if view.attempts else None
        click.echo(printable(latest or ""), nl=False)
        return None
    return Answer(view, partial(_print, view, frames))


def whose(task: str, label: str | None) -> str:
    """Return the task of a run, with the run's label if it has one."""
    return one_line(f"{task} ({label})" if label else task)


def _print(view: RunView, frames: bool) -> None:
    row = view.row
    lost = ", but its worker was lost" if row.is_stale(view.now) else ""
    if row.handed_to is not None:
        lost = f", handed to {row.handed_to} {since(row.started_at, view.now)}"
    click.echo(f"Run {row.id} of {whose(row.task, row.label)}: {paint(row.status)}{lost}")
    print_facts(facts_of(view), view.now)
    for pause in view.pauses:
        resume = command("resume", f"--{pause.kind}", pause.name)
        click.echo(one_line(f"{pause}; to resume it: {resume}"))
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
    click.echo(f"  {one_line(step.name)}: {step.state}{until}{ended}{took}{one_line(where)}")
    if step.result is not None:
        click.echo(printable(f"    {cut(json.dumps(step.result, ensure_ascii=False), 200)}"))


def _print_attempt(attempt: Attempt, frames: bool) -> None:
    took = "" if attempt.seconds is None else f", took {duration(attempt.seconds)}"
    heading(f"Attempt {attempt.number}: {attempt.outcome}")
    click.echo(f"  {moment(attempt.started_at)} to {moment(attempt.ended_at)}{took}")
    if attempt.worker:
        click.echo(indented(f"worker {attempt.worker}"))
    if attempt.error_type or attempt.error:
        error = ": ".join(part for part in (attempt.error_type, attempt.error) if part)
        click.echo(indented(error))
    if attempt.stack:
        stack = attempt.stack if frames else without_own_frames(attempt.stack)
        click.echo(indented(stack))
    if attempt.output:
        heading(f"Output of attempt {attempt.number}")
        click.echo(indented(attempt.output))


@admin_command(
    "Look", (), "wait", "flask jobs admin wait 5", "flask jobs admin wait 5 --timeout 10m"
)
@click.argument("run_id", metavar="ID", type=Id())
@click.option(
    "--timeout", type=age, metavar="DURATION", help="Wait for at most DURATION, such as 10m."
)
def wait(run_id: int, timeout: float | None) -> None:
    """Wait until a run has ended.

    The exit status is 0 if it succeeded, 1 if it is dead, 3 if cancelled, 4 if skipped, 124 after
    the timeout, 130 after Ctrl-C, and 2 if the run does not exist or cannot be read.
    """
    try:
        views = poll(state_of(), run_id, timeout)
        view = next(views)
        _say_what_it_waits_for(view)
        *_, view = view, *views
    except CronJobsError as failure:
        raise click.UsageError(said(failure)) from failure
    except KeyboardInterrupt:
        raise click.exceptions.Exit(STOPPED) from None
    row = view.row
    error = f": {row.last_error}" if row.last_error and row.status != "succeeded" else ""
    click.echo(
        f"Run {run_id} of {whose(row.task, row.label)}: {paint(row.status)}{one_line(error)}"
    )
    raise click.exceptions.Exit(STATUS_OF.get(row.status, NOT_IN_TIME))


def _say_what_it_waits_for(view: RunView) -> None:
    """Print to standard error why the run waits, since a pipe gets no output until the end."""
    if view.row.status not in TERMINAL:
        why = f": it waits {view.waits[0].what}" if view.waits else ""
        click.echo(
            printable(f"Waiting for run {view.row.id}, which is {view.row.status}{why}"), err=True
        )


def poll(state: State, run_id: int, timeout: float | None = None) -> Iterator[RunView]:
    """Yield the run repeatedly until it has ended or *timeout* seconds are over.

    :raises NotFound: there is no such run.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        view = find_run(state, run_id)
        if view is None:
            raise no_run(run_id)
        yield view
        left = POLL_SECONDS if until is None else min(POLL_SECONDS, until - time.monotonic())
        if view.row.status in TERMINAL or left <= 0:
            return
        time.sleep(left)
