"""``ticks`` and ``turns``: the latest ticks, when none came, and the keys in strict order."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
from sqlalchemy import Row

from ..jobs.humanize import ago, duration, seconds_since, utc
from ..jobs.orders import list_key_orders
from ..jobs.reader import reading
from ..jobs.state import state_of
from ..jobs.ticks import TICK_COUNTS, Gap, list_gaps, list_ticks
from ..text import one_line
from .group import JobsGroup, examples
from .output import command, moment, print_json, table, tell_next
from .params import Id, json_option, limit_option
from .terminal import paint
from .watch import watchable

group: JobsGroup = JobsGroup("ticks")


@group.command(
    "ticks",
    epilog=examples("flask jobs admin ticks", "flask jobs admin ticks --limit 100 --watch"),
)
@limit_option(20, most=500)
@click.option("--before", type=Id(), metavar="ID", help="Only ticks before this one.")
@json_option
@watchable
def ticks(limit: int, before: int | None, as_json: bool) -> None:
    """List the latest ticks, and when none came.

    Newest first, of all hosts. Ticks are kept for a day.
    """
    with reading(state_of()) as reader:
        ticks, gaps = list_ticks(reader, limit, before), list_gaps(reader)
    if as_json:
        print_json({"ticks": ticks.rows, "gaps": gaps, "before": ticks.next})
        return
    if not ticks.rows:
        none = f"No tick has run yet. To install one: {command('crontab')}"
        click.echo("There are no older ticks." if before else none)
    for gap in gaps if before is None else ():
        click.echo(paint("warn", _gap(gap, ticks.now)))
    table(
        ("ID", "STARTED", "HOST", "TOOK", "DID"),
        [
            (tick.id, moment(tick.started_at), tick.host, _took(tick, ticks.now), _did(tick))
            for tick in ticks.rows
        ],
    )
    tell_next(ticks)


def _gap(gap: Gap, now: datetime) -> str:
    took = duration(seconds_since(gap.start, gap.end or now))
    if gap.end is None:
        return f"No tick has done its work since {utc(gap.start)}: {took}."
    return f"No tick did its work from {utc(gap.start)} to {utc(gap.end)}: {took}."


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
@click.option("--after", default="", metavar="KEY", help="Only keys after this one.")
@limit_option(50, most=500)
@json_option
@watchable
def turns(stopped: bool, after: str, limit: int, as_json: bool) -> None:
    """List the concurrency keys with a strict order: how many runs wait, and why."""
    found = list_key_orders(state_of(), stopped=stopped, after=after, limit=limit)
    if as_json:
        print_json({"keys": found.rows, "after": found.next})
        return
    if not found.rows:
        click.echo("No key is stopped." if stopped else "No run of a strict order waits or runs.")
        return
    rows = [
        (
            *(each.key, each.waiting, each.first.id, each.first.task, each.first.status),
            each.why(found.now),
        )
        for each in found.rows
    ]
    table(("KEY", "WAITING", "FIRST", "TASK", "STATUS", "WHY"), rows, flexible=5)
    for each in found.rows:
        if each.stopped:
            first = str(each.first.id)
            click.echo(
                f"To go on with {one_line(each.key)}: {command('retry', first)} or "
                f"{command('discard', first)}"
            )
            break
    tell_next(found, "More", by="after")
