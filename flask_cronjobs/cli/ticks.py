"""``ticks``: the latest ticks, and when none came."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
from sqlalchemy import Row

from .. import report
from ..report import Gap
from ..report.activity import TICK_COUNTS
from ..report.humanize import ago, duration, seconds_since, utc
from ..state import state_of
from ..text import one_line
from .command_text import command
from .group import JobsGroup, examples
from .output import moment, print_json, tell_older
from .params import Id, json_option, limit_option
from .table import table
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
def list_ticks(limit: int, before: int | None, as_json: bool) -> None:
    """List the latest ticks, and when none came.

    Newest first, of all hosts. Ticks are kept for a day.
    """
    with report.reading(state_of()) as reader:
        ticks, gaps = report.ticks(reader, limit, before), report.gaps(reader)
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
    tell_older(ticks)


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
