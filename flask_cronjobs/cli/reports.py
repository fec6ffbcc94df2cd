"""What waits, who serves it, what failed, how long runs take: lists that only read, and marks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from sqlalchemy import Row

from ..errors import NotFound
from ..jobs.error_groups import (
    MUTED_FOR,
    STATES,
    Decision,
    ErrorGroup,
    ErrorList,
    GroupState,
    decide,
    list_errors,
)
from ..jobs.history import Mark, add_mark, list_marks, remove_mark
from ..jobs.humanize import ago, duration, full, printed_zone, rate, seconds_since
from ..jobs.orders import KeyOrder, list_key_orders
from ..jobs.queues import HostView, QueueView, list_hosts, list_queues
from ..jobs.reader import reading
from ..jobs.state import state_of
from ..jobs.ticks import TICK_COUNTS, Gap, list_gaps, list_ticks
from ..jobs.trends import BUSIEST, DAY, WEEK, Period, Trend, read_trend, read_trends
from ..text import did_you_mean, one_line
from .group import JobsGroup, examples
from .output import (
    command,
    listing,
    moment,
    print_cut,
    print_json,
    print_page,
    since,
    table,
    watchable,
)
from .params import actor, age, complete_tasks, json_option, time_in_zone
from .terminal import paint

group: JobsGroup = JobsGroup("reports")


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


#: One letter a day, from none to many.
_BARS = " ▁▂▃▄▅▆▇█"


@group.command(
    "errors",
    epilog=examples(
        "flask jobs admin errors",
        "flask jobs admin errors --resolve 9f86d081884c7d65",
        "flask jobs admin errors --mute 9f86d081884c7d65 --for 2d",
        "flask jobs admin retry --fingerprint 9f86d081884c7d65 --spread 10m",
    ),
)
@click.option("--resolve", "resolved", metavar="GROUP", help="It is mended, until seen again.")
@click.option("--mute", "muted", metavar="GROUP", help="Take it out of the open ones for a week.")
@click.option("--for", "seconds", type=age, metavar="AGE", help="Mute it for AGE instead.")
@click.option("--reopen", "reopened", metavar="GROUP", help="It is open, whatever was decided.")
@click.option("--state", type=click.Choice(STATES), default="open", help="Only groups of STATE.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, metavar="N", show_default=True)
@json_option
def errors(
    resolved: str | None,
    muted: str | None,
    seconds: float | None,
    reopened: str | None,
    state: GroupState,
    limit: int,
    as_json: bool,
) -> None:
    """List errors by task, type and message, the latest first; resolve or mute a group.

    Numbers, hex and what is quoted in messages do not count. LAST 14 DAYS has a bar a day.
    """
    asked: dict[Decision, str | None] = {"resolved": resolved, "muted": muted, "reopened": reopened}
    given: list[tuple[Decision, str]]
    given = [(what, group) for what, group in asked.items() if group is not None]
    if len(given) > 1:
        raise click.UsageError("Give one of --resolve, --mute and --reopen.")
    if seconds is not None and muted is None:
        raise click.UsageError("--for goes with --mute.")
    if not given:
        _list_errors(list_errors(state_of(), state, limit), state, as_json)
    for what, fingerprint in given:
        decide(state_of(), what, fingerprint, actor(), long := seconds or MUTED_FOR)
        click.echo(f"{fingerprint}: {_BECAME[what].format(duration(long))}.")


_BECAME = {
    "resolved": "resolved, until it is seen again",
    "muted": "muted for {}",
    "reopened": "open",
}


def _list_errors(found: ErrorList, state: GroupState, as_json: bool) -> None:
    if as_json:
        print_json({"errors": found.rows, "total": found.total, "numbers": found.numbers})
        return
    if not found.rows:
        click.echo(f"No errors are {state}.")
    headers = ("GROUP", "LAST", "FIRST", "COUNT", "DEAD", "LAST 14 DAYS", "TASK", "ERROR")
    table(headers, [_error_cells(found, row) for row in found.rows])
    if len(found.rows) < found.total.value:
        click.echo(f"{found.shown}. More: {command('errors', '--limit', '200')}", err=True)


def _error_cells(found: ErrorList, row: ErrorGroup) -> tuple[object, ...]:
    most = max(1, *row.days)
    bars = "".join(_BARS[-(-8 * day // most)] for day in row.days)
    notes = "(came back)" if row.came_back else "", f"(new since {row.new_since})"
    said = f"{row.error_type}: {row.pattern} {notes[0]}{notes[1] if row.new_since else ''}".strip()
    times = since(found.now, row.last), since(found.now, row.first)
    return row.fingerprint, *times, row.count, row.dead, bars, row.task, said


@group.command(
    "trend", epilog=examples("flask jobs admin trend", "flask jobs admin trend send_invoice")
)
@click.argument("task", required=False, shell_complete=complete_tasks)
@json_option
def trend(task: str | None, as_json: bool) -> None:
    """Compare this week with last: how many runs ended, and how long they took.

    All tasks, the slower first; or TASK, day by day. Numbers are of whole hours, within a tenth.
    """
    if task is not None:
        _print_task(task, as_json)
        return
    with reading(state_of()) as reader:
        found = read_trends(reader)
        marks = list_marks(reader, since=reader.now - 2 * WEEK).rows
    if as_json:
        print_json({"tasks": found, "marks": marks})
        return
    if not found:
        click.echo("No run has ended within two weeks, as far as whole hours are written.")
    headers = ("TASK", "RUNS", "DEAD", "MEDIAN", "95 %", "LAST WEEK", "DEAD", "MEDIAN", "95 %", "")
    cells = [
        (each.task, *_period_cells(each.this_week), *_period_cells(each.last_week), each.compared)
        for each in found
    ]
    table(headers, cells, flexible=0)
    for mark in marks:
        click.echo(f"Marked {one_line(mark.name)} at {moment(mark.at)}.")
    if len(found) == BUSIEST:
        click.echo(f"These are the {BUSIEST} tasks of which most runs ended.")


def _print_task(task: str, as_json: bool) -> None:
    zone = printed_zone.get(None)
    found = read_trend(state_of(), task, None if zone is None else str(zone))
    if not found.days:
        tasks = state_of().registry.tasks
        hint = "" if task in tasks else did_you_mean(task, tasks)
        raise NotFound(f"No run of the task {task!r} has ended within four weeks.{hint}")
    if as_json:
        print_json(found)
        return
    said = one_line(str(found))
    click.echo(paint("warn", said) if found.slower else said)
    headers = ("DAY", "RUNS", "DEAD", "MEDIAN", "95 %", "95 % WAITED", "MARKED")
    cells = [
        (f"{day.start:%a %Y-%m-%d}", *_period_cells(day), _seconds(day.waited), _marked(found, day))
        for day in reversed(found.days)
    ]
    table(headers, cells)


def _period_cells(period: Period) -> tuple[str, ...]:
    counts = (f"{number:,}" for number in (period.ended, period.dead))
    return *counts, _seconds(period.p50), _seconds(period.p95)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _marked(found: Trend, day: Period) -> str:
    end = day.start + DAY
    return ", ".join(mark.name for mark in reversed(found.marks) if day.start <= mark.at < end)


@group.command("mark", epilog=examples("flask jobs admin mark v812"))
@click.argument("name")
@click.option("--at", type=time_in_zone, metavar="TIME", help="When that was, else now.")
def mark(name: str, at: datetime | None) -> None:
    """Put a line into the charts: NAME is what changed now, such as a deploy."""
    if not name.strip():
        raise click.BadParameter("A mark needs a name, such as v812.")
    made = add_mark(state_of(), name, at, actor())
    undo = command("unmark", str(made.id))
    click.echo(f"Marked {one_line(made.name)} at {moment(made.at)}. To remove it: {undo}")


@group.command("marks", epilog=examples("flask jobs admin marks"))
@listing(20, most=500)
def marks(limit: int, before: int | None, as_json: bool) -> None:
    """List the marks, newest first."""
    found = list_marks(state_of(), limit, before)
    none = f"There are no {'older ' if before else ''}marks. To make one: {command('mark', 'v812')}"

    def cells(row: Mark) -> Sequence[object]:
        return row.id, moment(row.at), row.name, row.by

    print_page("marks", found, as_json, ("ID", "AT", "NAME", "BY"), cells, none, flexible=2)


@group.command("unmark", epilog=examples("flask jobs admin unmark 5"))
@click.argument("id", type=click.IntRange(1, 2**63 - 1))
def unmark(id: int) -> None:
    """Remove the mark ID."""
    click.echo(f"Removed the mark {one_line(remove_mark(state_of(), id, actor()))}.")
