"""``batches``: list them, look at one, close it, cancel the rest, retry the dead ones."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..jobs.batches.views import BatchView, facts_of, find_batch, list_batches
from ..jobs.humanize import plural
from ..jobs.reader import reading
from ..jobs.runs.actions import BulkResult, cancel_batch, close_batch, retry_batch
from ..jobs.state import state_of
from ..text import one_line, printable
from .group import JobsGroup, examples
from .output import command, listing, print_facts, print_json, print_page, refuse_to_list, since
from .params import actor

#: How many characters a progress bar has.
_BAR = 20
#: What it shows of each status; ``-`` of other ends, ``.`` of what waits.
_PARTS = {"succeeded": "#", "dead": "x", "running": "~"}

group: JobsGroup = JobsGroup("batches")


@group.command(
    "batches",
    epilog=examples(
        "flask jobs admin batches",
        "flask jobs admin batches weekly:W47 --watch",
        "flask jobs admin batches weekly:W47 --retry --again",
        "flask jobs admin batches weekly:W47 --cancel",
    ),
)
@click.argument("key", required=False)
@click.option("--retry", is_flag=True, help="Queue its dead runs again.")
@click.option("--again", is_flag=True, help="With --retry: enqueue its then once more at the end.")
@click.option("--cancel", is_flag=True, help="Cancel all of it that has not ended.")
@click.option("--close", is_flag=True, help="Close it: nobody will fill it any more.")
@click.option("--all", "everything", is_flag=True, help="Also list those that have finished.")
@listing(25, most=200)
def batches(
    key: str | None,
    retry: bool,
    again: bool,
    cancel: bool,
    close: bool,
    everything: bool,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List the batches that have not finished; or show the batch KEY, or change it."""
    if (retry + cancel + close) > 1:
        raise click.UsageError("Give one of --retry, --cancel and --close.")
    if again and not retry:
        raise click.UsageError("Give --again with --retry.")
    if retry or cancel or close:
        refuse_to_list()
    if key is None:
        if retry or cancel or close:
            raise click.UsageError("Give the KEY of the batch, too.")
        _list(everything, limit, before, as_json)
    elif retry:
        _say(retry_batch(state_of(), key, actor(), again), key)
    elif cancel:
        _say(cancel_batch(state_of(), key, actor()), key)
    elif close:
        closed = close_batch(state_of(), key, actor())
        click.echo(f"Closed {one_line(key)}." if closed else f"{one_line(key)} is closed already.")
    else:
        _show(key, as_json)


def _list(everything: bool, limit: int, before: int | None, as_json: bool) -> None:
    found = list_batches(state_of(), unfinished=not everything, before=before, limit=limit)
    headers = ("KEY", "STATE", "PROGRESS", "ENDED", "DEAD", "LEFT", "OPENED")
    none = "No batches." if everything else "No batch is unfinished. See also --all."

    def cells(row: BatchView) -> Sequence[object]:
        dead, left, opened = row.whole["dead"], row.left(found.now), since(found.now, row.opened_at)
        return row.key, row.state, bar(row), row.progress.replace(" of ", "/"), dead, left, opened

    print_page("batches", found, as_json, headers, cells, none, flexible=0)


def _show(key: str, as_json: bool) -> None:
    with reading(state_of()) as reader:
        found = find_batch(reader, key)
        now = reader.now
    if found is None:
        raise click.ClickException(
            f"There is no batch {one_line(key)}; it may have been pruned. "
            f"To list them: {command('batches', '--all')}"
        )
    if as_json:
        print_json(found)
        return
    counts, whole = found.counts, found.whole.total()
    inside = ", with those inside" if whole > counts.total else ""
    click.echo(f"Batch {printable(found.key)}: {found.state}")
    click.echo(f"  {bar(found)} {found.fraction:.0%} of {plural(whole, 'member')}{inside}")
    if found.stop:
        click.echo(f"  {found.stop}")
    print_facts(facts_of(found, now), now)
    if found.dead_runs:
        click.echo(f"Its dead runs: {command('list', '--batch', key, '--status', 'dead')}")


def bar(batch: BatchView) -> str:
    """Return a progress bar in plain characters, in parts as on the page."""
    parts = ((_PARTS.get(name, "-"), begins + width) for name, begins, width in batch.segments)
    drawn = ""
    for sign, end in parts:
        drawn = drawn.ljust(int(end * _BAR), sign)
    return f"[{drawn.ljust(_BAR, '.')}]"


def _say(result: BulkResult, key: str) -> None:
    click.echo(result.sentence(one_line(key)))
