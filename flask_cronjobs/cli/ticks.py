"""``ticks``: the latest ticks, and when none came."""

from __future__ import annotations

from datetime import datetime

import click

from .. import report
from ..report import Gap
from ..report.activity import TickView
from ..report.humanize import ago, duration, seconds_since, utc
from ..state import state_of
from ..text import one_line
from .colors import paint
from .command_text import command, this_command
from .group import JobsGroup, examples
from .output import moment, print_json
from .params import Id, json_option, limit_option
from .table import table
from .watch import watchable

#: What a tick counts, in the order in which it does it.
_COUNTS = (
    *("recorded", "skipped", "reclaimed", "succeeded", "failed", "dead"),
    *("cancelled", "released", "snoozed", "lost", "pruned"),
)

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
        found, gaps, now = report.ticks(reader, limit + 1, before), report.gaps(reader), reader.now
    ticks, following = report.cut_page(found, limit)
    if as_json:
        print_json({"ticks": ticks, "gaps": gaps, "before": following})
        return
    if not ticks:
        none = f"No tick has run yet. To install one: {command('crontab')}"
        click.echo("There are no older ticks." if before else none)
    for gap in gaps if before is None else ():
        click.echo(paint("warn", _gap(gap, now)))
    table(
        ("ID", "STARTED", "HOST", "TOOK", "DID"),
        [
            (tick.id, moment(tick.started_at), tick.host, _took(tick, now), _did(tick))
            for tick in ticks
        ],
    )
    if following is not None:
        click.echo(f"Older: {this_command(before=following)}", err=True)


def _gap(gap: Gap, now: datetime) -> str:
    took = duration(seconds_since(gap.start, gap.end or now))
    if gap.end is None:
        return f"No tick has done its work since {utc(gap.start)}: {took}."
    return f"No tick did its work from {utc(gap.start)} to {utc(gap.end)}: {took}."


def _took(tick: TickView, now: datetime) -> str:
    if tick.finished_at is not None:
        return duration(seconds_since(tick.started_at, tick.finished_at))
    return f"seen {ago(seconds_since(tick.seen_at, now))}"


def _did(tick: TickView) -> str:
    counts = ((getattr(tick, name), name) for name in _COUNTS)
    did = ", ".join(f"{number:,} {name}" for number, name in counts if number)
    return one_line(did or "nothing was due")
