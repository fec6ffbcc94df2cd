"""Commands that list ``queues``, ``ticks``, ``batches``, ``effects`` and ``operations``."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import click
from sqlalchemy import Row

from ..core.app_state import state_of
from ..core.ticks import TICK_COUNTS
from ..insights.batch_actions import cancel_batch, close_batch, retry_batch
from ..insights.batch_views import BatchView, batch_facts, find_batch, list_batches
from ..insights.effects import effect_done, effect_redo, list_effects
from ..insights.operations import list_operations
from ..insights.queues import list_hosts, list_queues
from ..insights.reader import reading
from ..insights.tick_views import Gap, list_gaps, list_ticks
from ..text import one_line
from ..text.humanize import ago, duration, full, seconds_since
from .group import command
from .output import Answer, listing, look_at_list, moment, print_facts, refuse_json, since
from .params import actor
from .terminal import paint


@look_at_list("queues", "flask jobs admin queues")
def queues() -> Answer:
    """List the queues with their waiting runs and the hosts that serve them."""
    page = list_queues(state_of(), limit=None)
    headers = ("QUEUE", "WAITING", "DUE", "OLDEST", "SERVED BY")
    cells = (
        (
            *(row.name, row.waiting, row.due, since(row.oldest, page.now)),
            row.service(page.now),
        )
        for row in page.rows
    )
    none = "No task is declared, and nothing waits."
    return listing("queues", page, headers, cells, none)


@look_at_list("ticks", "flask jobs admin ticks", limit=20)
def ticks(limit: int, before: int | None) -> Answer:
    """List the ticks of the last day, the gaps between them, and the hosts.

    The newest tick comes first. The last lines say when each host was seen.
    """
    with reading(state_of()) as reader:
        page = list_ticks(reader, limit, before)
        gaps, hosts = list_gaps(reader), list_hosts(reader).rows
    cells = (
        (tick.id, moment(tick.started_at), tick.host, _took(tick, page.now), _did(tick))
        for tick in page.rows
    )
    none = f"No tick has run yet. To print the line for the crontab: {command('crontab')}"
    above = [paint("warn", _gap(gap, page.now)) for gap in gaps.rows]
    if cut := gaps.cut("gap"):
        above.append(f"These are {cut}.")
    headers = ("ID", "STARTED", "HOST", "TOOK", "DID")
    sightings = (
        f"{one_line(host.host)} was seen {since(host.seen_at, page.now)}" for host in hosts
    )
    return listing(
        *("ticks", page, headers, cells, none),
        above=() if before else above,
        below=sightings,
        gaps=gaps.rows,
        hosts=hosts,
    )


def _gap(gap: Gap, now: datetime) -> str:
    took = duration(seconds_since(gap.start, gap.end or now))
    if gap.end is None:
        return f"No tick has done its work since {full(gap.start)}: {took}."
    return f"No tick did its work from {full(gap.start)} to {full(gap.end)}: {took}."


def _took(tick: Row[Any], now: datetime) -> str:
    if tick.finished_at is not None:
        return duration(seconds_since(tick.started_at, tick.finished_at))
    return f"seen {ago(seconds_since(tick.seen_at, now))}"


def _did(tick: Row[Any]) -> str:
    counts = ((getattr(tick, name), name) for name in TICK_COUNTS)
    none = "nothing yet" if tick.finished_at is None else "nothing was due"
    return ", ".join(f"{number:,} {name}" for number, name in counts if number) or none


@look_at_list(
    "batches",
    "flask jobs admin batches",
    "flask jobs admin batches weekly:W47 --retry",
    "flask jobs admin batches weekly:W47 --cancel",
    limit=25,
)
@click.argument("key", required=False)
@click.option("--retry", is_flag=True, help="Retry the batch's dead runs.")
@click.option("--cancel", is_flag=True, help="Cancel its unfinished runs.")
@click.option("--close", is_flag=True, help="Close it, so that no run can join it.")
@click.option("--all", "everything", is_flag=True, help="Also list finished batches.")
def batches(
    key: str | None,
    retry: bool,
    cancel: bool,
    close: bool,
    everything: bool,
    limit: int,
    before: int | None,
) -> Answer | None:
    """List unfinished batches, or show or change the batch KEY."""
    if (retry + cancel + close) > 1:
        raise click.UsageError("Give only one of --retry, --cancel and --close.")
    if not (retry or cancel or close):
        return _list(everything, limit, before) if key is None else _one(key)
    refuse_json()
    if key is None:
        raise click.UsageError("Give the KEY of the batch, too.")
    if close:
        closed = close_batch(state_of(), key, actor())
        click.echo(f"Closed {one_line(key)}." if closed else f"{one_line(key)} is already closed.")
        return None
    change = retry_batch if retry else cancel_batch
    click.echo(change(state_of(), key, actor()).sentence(one_line(key)))
    return None


def _list(everything: bool, limit: int, before: int | None) -> Answer:
    page = list_batches(state_of(), unfinished=not everything, before=before, limit=limit)
    headers = ("KEY", "STATE", "ENDED", "DEAD", "OPENED")
    cells = (
        (row.key, row.state, row.progress, row.counts.dead, since(row.opened_at, page.now))
        for row in page.rows
    )
    none = "No batches." if everything else "No unfinished batches. To list all: --all."
    return listing("batches", page, headers, cells, none)


def _one(key: str) -> Answer:
    with reading(state_of()) as reader:
        batch, now = find_batch(reader, key), reader.now
    if batch is None:
        raise click.ClickException(
            f"There is no batch {one_line(key)}; it may have been pruned. "
            f"To list them: {command('batches', '--all')}"
        )
    return Answer(batch, partial(_show, batch, now))


def _show(batch: BatchView, now: datetime) -> None:
    click.echo(f"Batch {one_line(batch.key)}: {batch.state}, {batch.progress} runs ended")
    print_facts(batch_facts(batch), now)
    if batch.counts.dead:
        click.echo(f"Its dead runs: {command('list', '--batch', batch.key, '--status', 'dead')}")


@look_at_list(
    "effects",
    "flask jobs admin effects",
    "flask jobs admin effects --done mail:5",
    "flask jobs admin effects --redo mail:5",
    limit=50,
)
@click.option("--done", metavar="KEY", help="Mark the effect as done.")
@click.option(
    "--redo", metavar="KEY", help="Mark the effect as not done, so that the next call does it."
)
@click.option("--all", "everything", is_flag=True, help="Also list effects that are done.")
def effects(
    done: str | None, redo: str | None, everything: bool, limit: int, before: int | None
) -> Answer | None:
    """List effects that are being done or in doubt, or resolve one in doubt."""
    if done is not None and redo is not None:
        raise click.UsageError("Give --done or --redo, not both.")
    key, settle, became = done, effect_done, "done. It will not be done again."
    if key is None:
        key, settle, became = redo, effect_redo, "not done. The next call does it."
    if key is None:
        return _list_effects(everything, limit, before)
    refuse_json()
    settle(state_of(), key, actor())
    click.echo(f"{one_line(key)}: marked as {became}")
    return None


def _list_effects(everything: bool, limit: int, before: int | None) -> Answer:
    page = list_effects(state_of(), open_only=not everything, before=before, limit=limit)
    headers = ("ID", "STATE", "RUN", "SINCE", "KEY")
    cells = (
        (row.id, row.state, row.run_id, since(row.created_at, page.now), row.key)
        for row in page.rows
    )
    none = "No effects." if everything else "No effect is being done or in doubt."
    return listing("effects", page, headers, cells, none)


@look_at_list("operations", "flask jobs admin operations", limit=20)
def operations(limit: int, before: int | None) -> Answer:
    """List the changes that operators made, newest first.

    Each change is recorded, and kept for a year.
    """
    page = list_operations(state_of(), before, limit)
    headers = ("ID", "WHEN", "BY", "WHAT", "RUNS", "TARGET")
    cells = (
        (
            *(row.id, since(row.started_at, page.now), row.actor, row.what),
            row.progress or ("" if row.done is None else f"{row.done:,}"),
            row.target,
        )
        for row in page.rows
    )
    none = "No operations have been recorded."
    return listing("operations", page, headers, cells, none)
