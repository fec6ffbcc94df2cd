"""``queues``, ``workers``, ``ticks`` and ``turns``: what waits, who serves it, what ticks did."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from sqlalchemy import Row

from ..jobs.humanize import ago, duration, full, rate, seconds_since
from ..jobs.orders import KeyOrder, list_key_orders
from ..jobs.queues import HostView, QueueView, list_hosts, list_queues
from ..jobs.reader import reading
from ..jobs.state import state_of
from ..jobs.ticks import TICK_COUNTS, Gap, list_gaps, list_ticks
from ..text import one_line
from .group import JobsGroup, examples
from .lists import listing, print_cut, print_page, watchable
from .output import command, moment, since
from .params import json_option
from .terminal import paint

group: JobsGroup = JobsGroup("queues")


@group.command(
    "queues", epilog=examples("flask jobs admin queues", "flask jobs admin queues --watch")
)
@json_option
@watchable
def queues(as_json: bool) -> None:
    """List the queues: what waits, how fast runs come and end, and who serves each.

    Counted over the last ten minutes. Of the runs that ended, 95 % had waited no longer.
    """
    found = list_queues(state_of())
    headers = ("QUEUE", "WAITING", "DUE", "OLDEST", "IN/MIN", "OUT/MIN", "WAITED", "SERVED BY")

    def cells(row: QueueView) -> Sequence[object]:
        waited = "-" if row.waited is None else duration(row.waited)
        flow = rate(row.arrivals), rate(row.ends), waited
        oldest = since(found.now, row.oldest)
        return row.name, row.waiting, row.due, oldest, *flow, row.service(found.now)

    print_page("queues", found, as_json, headers, cells, "No task is declared, and nothing waits.")


@group.command(
    "workers", epilog=examples("flask jobs admin workers", "flask jobs admin workers --watch")
)
@json_option
@watchable
def workers(as_json: bool) -> None:
    """List the hosts that ticked within the last day, and what runs there now.

    First those that are silent, though they had ticked for long.
    """
    found = list_hosts(state_of())
    headers = ("HOST", "STATE", "SEEN", "BY", "QUEUES", "VERSION", "RUNNING", "TASKS")

    def cells(row: HostView) -> Sequence[object]:
        seen = ago(seconds_since(row.seen_at, found.now))
        queues = "all" if row.queues is None else ", ".join(row.queues)
        tasks = ", ".join(f"{run.task} ({run.id})" for run in row.runs)
        version = row.version or "-"
        state = row.host, row.state, seen, ", ".join(row.by), queues, version
        return *state, row.running, tasks

    print_page("workers", found, as_json, headers, cells, "No host has ticked within the last day.")
    if not as_json:
        print_cut(found, "host")


@group.command(
    "ticks",
    epilog=examples("flask jobs admin ticks", "flask jobs admin ticks --limit 100 --watch"),
)
@listing(20, most=500)
def ticks(limit: int, before: int | None, as_json: bool) -> None:
    """List the latest ticks, and when none came.

    Newest first, of all hosts. Ticks are kept for a day.
    """
    with reading(state_of()) as reader:
        found, gaps = list_ticks(reader, limit, before), list_gaps(reader)
    if before is None and not as_json:
        for gap in gaps.rows:
            click.echo(paint("warn", _gap(gap, found.now)))
        print_cut(gaps, "gap")
    headers = ("ID", "STARTED", "HOST", "TOOK", "DID")
    none = f"No tick has run yet. To install one: {command('crontab')}"

    def cells(tick: Row[Any]) -> Sequence[object]:
        return tick.id, moment(tick.started_at), tick.host, _took(tick, found.now), _did(tick)

    older = "There are no older ticks."
    print_page("ticks", found, as_json, headers, cells, older if before else none, gaps=gaps.rows)


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
    did = ", ".join(f"{number:,} {name}" for number, name in counts if number)
    return one_line(did or "nothing was due")


@group.command(
    "turns", epilog=examples("flask jobs admin turns", "flask jobs admin turns --stopped")
)
@click.option("--stopped", is_flag=True, help="Only keys that a dead run stops.")
@listing(50, most=500, after="PLACE")
def turns(stopped: bool, limit: int, after: str | None, as_json: bool) -> None:
    """List the concurrency keys with a strict order: how many runs wait, and why."""
    found = list_key_orders(state_of(), stopped=stopped, after=after or "", limit=limit)
    headers = ("KEY", "WAITING", "FIRST", "TASK", "STATUS", "WHY")
    none = "No key is stopped." if stopped else "No run of a strict order waits or runs."

    def cells(row: KeyOrder) -> Sequence[object]:
        first = row.first
        return row.key, row.waiting, first.id, first.task, first.status, row.why(found.now)

    print_page("keys", found, as_json, headers, cells, none, flexible=5)
    first = next((each for each in found.rows if each.stopped), None)
    if first is not None and not as_json:
        retry, discard = (command(verb, str(first.first.id)) for verb in ("retry", "discard"))
        click.echo(f"To go on with {one_line(first.key)}: {retry} or {discard}")
