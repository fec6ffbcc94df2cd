"""``list``, ``show``, ``retry``, ``cancel``, ``run``."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import click

from .. import operations, report
from ..errors import CronJobsError
from ..operations import Action, Progress
from ..report import Attempt, RunFilter, RunPage, RunRow, RunView
from ..report.humanize import duration, plural
from ..state import State, state_of
from ..text import cut, printable
from ..types import JSON
from .group import JobsGroup
from .output import heading, moment, paint, print_json, since, table, this_command
from .params import Payload, RunId, actor, filtered, json_option

#: Show a progress bar for this many runs or more.
_LONG = 500
#: How many characters of a payload or a result are printed; --json prints all.
_LONGEST_JSON = 20_000

group: JobsGroup = JobsGroup("runs")


@group.command("list")
@filtered
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True)
@click.option("--before", type=RunId(), metavar="ID", help="Only runs with smaller ids.")
@json_option
def list_runs(which: RunFilter, limit: int, before: int | None, as_json: bool) -> None:
    """List runs, newest first."""
    page = _page(state_of(), which, before, limit)
    if as_json:
        print_json({"runs": page.rows, "before": page.before})
        return
    if not page.rows:
        click.echo("No runs match." if which != RunFilter() else "There are no runs yet.")
        return
    table(
        ("ID", "STATUS", "TASK", "ATTEMPT", "WHEN", "ERROR"),
        [_row(row, page) for row in page.rows],
    )
    if page.before is not None:
        click.echo(f"Older: {this_command(before=page.before)}", err=True)


@group.command("show")
@click.argument("run_id", metavar="ID", type=RunId())
@json_option
def show(run_id: int, as_json: bool) -> None:
    """Show one run with its payload, attempts, errors and stacks."""
    view = report.run(state_of(), run_id)
    if view is None:
        raise operations.no_run(run_id)
    if as_json:
        print_json(view)
    else:
        _print(view)


@group.command("retry")
@click.argument("ids", metavar="[ID]...", nargs=-1, type=RunId())
@filtered
@click.option("--yes", is_flag=True, help="Do not ask.")
def retry(ids: tuple[int, ...], which: RunFilter, yes: bool) -> None:
    """Queue runs again, by id or by a filter.

    A filter without --status finds dead runs.
    """
    _act(operations.RETRY, "queued again", ids, which, yes)


@group.command("cancel")
@click.argument("ids", metavar="[ID]...", nargs=-1, type=RunId())
@filtered
@click.option("--yes", is_flag=True, help="Do not ask.")
def cancel(ids: tuple[int, ...], which: RunFilter, yes: bool) -> None:
    """Cancel runs, by id or by a filter.

    A filter without --status finds all unfinished runs.
    """
    _act(operations.CANCEL, "cancelled", ids, which, yes)


@group.command("run")
@click.argument("name")
@click.option("--payload", type=Payload(), metavar="JSON", help="The handler's arguments.")
@json_option
def run(name: str, payload: dict[str, JSON] | None, as_json: bool) -> None:
    """Queue a run of a definition or a task, due now."""
    try:
        run_id = operations.run_now(state_of(), name, payload, actor())
    except TypeError as error:
        raise click.ClickException(f"{error}. Give the arguments as --payload JSON.") from error
    if as_json:
        print_json({"id": run_id})
    else:
        click.echo(f"Queued run {run_id} of {printable(name)}. The next tick runs it.")


def _page(state: State, which: RunFilter, before: int | None, limit: int) -> RunPage:
    """Return a full page, in as many searches as it takes."""
    rows: tuple[RunRow, ...] = ()
    while True:
        page = report.runs(state, which, before, limit - len(rows))
        rows += page.rows
        if not page.partial or len(rows) >= limit:
            return replace(page, rows=rows)
        before = page.before


def _row(row: RunRow, page: RunPage) -> Sequence[object]:
    when = since(page.now, row.finished_at or row.started_at or row.run_at)
    if row.status in ("queued", "failed"):
        when = since(page.now, row.run_at)
    error = row.error_type if row.status != "skipped" else row.last_error
    if row.lost(page.now):
        error = "worker lost"
    return row.id, row.status, row.task, f"{row.attempts}/{row.max_attempts}", when, error


def _print(view: RunView) -> None:
    row = view.row
    lost = ", but its worker was lost" if row.lost(view.now) else ""
    click.echo(f"Run {row.id} of {printable(row.task)}: {paint(row.status)}{lost}")
    for label, value in _facts(view):
        if value not in (None, "-", ""):
            click.echo(f"  {label:<16} {printable(str(value))}")
    _print_json("Payload", view.payload)
    if view.result is not None:
        _print_json("Result", view.result)
    if view.last_error and not view.attempts:
        heading("Note")
        click.echo(printable(view.last_error))
    for attempt in view.attempts:
        _print_attempt(attempt)


def _facts(view: RunView) -> list[tuple[str, object]]:
    row = view.row
    progress = None if row.progress is None else f"{row.progress:.0%} {view.progress_message or ''}"
    return [
        ("definition", row.definition),
        ("queue", row.queue),
        ("priority", row.priority or None),
        ("attempts", f"{row.attempts} of {row.max_attempts}"),
        ("scheduled for", moment(row.scheduled_for)),
        ("due", f"{moment(row.run_at)} ({since(view.now, row.run_at)})"),
        ("started", moment(row.started_at)),
        ("finished", moment(row.finished_at)),
        ("held by", row.locked_by),
        ("lease until", moment(row.locked_until)),
        ("cancel asked", moment(view.cancel_requested_at)),
        ("progress", progress),
        ("idempotency key", view.idempotency_key),
        ("concurrency key", view.concurrency_key and f"{view.concurrency_key} "
         f"(at most {view.concurrency_limit} at once)"),
    ]  # fmt: skip


def _print_json(title: str, value: JSON) -> None:
    heading(title)
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(printable(cut(text, _LONGEST_JSON)))


def _print_attempt(attempt: Attempt) -> None:
    took = "" if attempt.seconds is None else f", took {duration(attempt.seconds)}"
    heading(f"Attempt {attempt.number}: {attempt.outcome}")
    click.echo(f"  {moment(attempt.started_at)} to {moment(attempt.ended_at)}{took}")
    if attempt.worker:
        click.echo(f"  worker {printable(attempt.worker)}")
    if attempt.error_type or attempt.error:
        error = ": ".join(part for part in (attempt.error_type, attempt.error) if part)
        click.echo(f"  {printable(error)}")
    if attempt.stack:
        click.echo(printable(attempt.stack).rstrip())


def _act(
    action: Action, result: str, ids: Sequence[int], which: RunFilter, confirmed: bool
) -> None:
    """Do *action* to the runs of *ids* or of the filter *which*, and print what came of it."""
    if bool(ids) == (which != RunFilter()):
        if ids:
            raise click.UsageError("Give ids or a filter, not both.")
        raise click.UsageError("Give ids, or a filter such as --task NAME. See --help.")
    if ids:
        _act_on_each(action, result, ids)
    else:
        _act_on_all(action, which, confirmed)


def _act_on_each(action: Action, result: str, ids: Sequence[int]) -> None:
    refused = False
    for run_id in ids:
        try:
            change = action.one(state_of(), run_id, actor())
        except CronJobsError as error:
            refused = True
            click.echo(f"Error: {printable(str(error))}", err=True)
        else:
            what = "asked its worker to stop" if change.status == "running" else result
            click.echo(f"Run {run_id} of {printable(change.task)}: {what}.")
    if refused:
        raise click.exceptions.Exit(1)


def _act_on_all(action: Action, which: RunFilter, confirmed: bool) -> None:
    ids = action.ids(state_of(), which)
    label = action.name.capitalize()
    if not ids:
        click.echo("No runs match.")
        return
    if not confirmed:
        click.confirm(f"{label} {plural(len(ids), 'run')}?", abort=True)
    with progress_bar(label, len(ids)) as advance:
        result = action.many(state_of(), ids, actor(), advance)
    asked = f", {result.asked:,} of them only asked to stop" if result.asked else ""
    left = f"; {result.left:,} had changed meanwhile" if result.left else ""
    click.echo(f"{label}: {plural(result.changed, 'run')} changed{asked}{left}.")


@contextmanager
def progress_bar(label: str, length: int) -> Generator[Progress | None, None, None]:
    """Show a progress bar for long work on a terminal; yield its update, or None."""
    if length < _LONG or not sys.stdout.isatty():
        yield None
        return
    with click.progressbar(length=length, label=label) as bar:
        yield bar.update
