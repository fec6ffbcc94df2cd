"""``flask jobs admin``: the overview, and the group of the other admin commands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click
from flask.cli import with_appcontext

from ..jobs.definitions.views import Cell, DefinitionView
from ..jobs.health import headline_of, verdict_tone
from ..jobs.humanize import duration, late, plural, printed_zone, seconds_since
from ..jobs.overview import Overview, read_overview
from ..jobs.reader import Count
from ..jobs.state import state_of
from ..schedule.cron_text import parse_zone
from ..text import one_line
from . import crontab, maintenance, queues, run_actions, run_list
from .definitions import no_definitions
from .group import JobsGroup, command, examples
from .output import COMMANDS, Answer, heading, print_answer, print_finding, since, table
from .params import JSON_FLAG, WIDE
from .terminal import paint

#: Each declares its commands, as does `definitions`.
_MODULES = (crontab, maintenance, queues, run_actions, run_list)

#: The commands to look with, in the order of ``--help``. Those of no section are acts.
_LOOK = (
    *("doctor", "list", "show", "definitions", "queues"),
    *("ticks", "batches", "effects", "operations"),
)
_SET_UP = ("init", "crontab", "prune")

_CELLS = {
    "succeeded": ".",
    "running": "r",
    "queued": "q",
    "failed": "f",
    "dead": "D",
    "cancelled": "c",
    "skipped": "-",
}


class _AdminGroup(JobsGroup):
    """The group of ``flask jobs admin``, whose help lists the commands by purpose."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the sections."""
        return [name for names in self._sections().values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each purpose."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        for title, names in self._sections().items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(limit)) for name in names]
                )

    def _sections(self) -> dict[str, Sequence[str]]:
        others = sorted(self.commands.keys() - {*_LOOK, *_SET_UP})
        return {"Look": _LOOK, "Act": others, "Set up": _SET_UP}


@click.group(
    "admin",
    cls=_AdminGroup,
    invoke_without_command=True,
    epilog=examples(
        "flask jobs admin",
        "flask jobs admin list --status dead",
        "flask jobs admin show 5",
    ),
)
@click.pass_context
@with_appcontext
def admin(ctx: click.Context, as_json: bool, wide: bool) -> None:
    """Show and manage the jobs; without a command, print an overview."""
    token = printed_zone.set(parse_zone(state_of().settings.timezone))
    ctx.call_on_close(lambda: printed_zone.reset(token))
    command = ctx.invoked_subcommand
    if command is None:
        print_answer(_overview(), as_json)
        return
    for option, given in (("--json", as_json), ("--wide", wide)):
        if given:
            raise click.UsageError(
                f"Write {option} after {command}: {ctx.command_path} {command} {option}"
            )


admin.commands = COMMANDS.commands
admin.params += [JSON_FLAG, WIDE]


def _overview() -> Answer:
    seen = read_overview(state_of())
    return Answer(seen, partial(_print, seen))


def _print(seen: Overview) -> None:
    now = seen.verdict.now
    _print_verdict(seen)
    _print_figures(seen)
    paused = [(e.kind, e.name, since(e.paused_at, now), e.paused_by) for e in seen.verdict.pauses]
    _print_table("Paused", ("KIND", "NAME", "SINCE", "BY"), paused, flexible=1)
    _print_definitions(seen)
    dead = [(e.task, e.error_type, e.count, since(e.newest, now), e.sample_id) for e in seen.dead]
    shown = _cut(len(dead), seen.dead_groups, "group")
    headers = ("TASK", "ERROR", "COUNT", "LATEST", "RUN")
    _print_table(f"Dead, by task and error{shown}", headers, dead)
    orphans = [(e.task, e.count, since(e.oldest, now)) for e in seen.orphans]
    shown = _cut(len(orphans), seen.orphan_tasks, "task")
    title = f"Waiting runs of tasks that this app's code does not declare{shown}"
    _print_table(title, ("TASK", "COUNT", "OLDEST"), orphans)


def _print_verdict(seen: Overview) -> None:
    """Print the verdict in the color that the page has, and what needs a person."""
    verdict, findings, several = seen.verdict, seen.findings, len(seen.findings) > 1
    tone = verdict_tone(verdict, findings)
    word = "warn" if tone == "warn" else verdict.word
    said = verdict.sentence
    if several or tone == "warn":
        said = headline_of(verdict, findings)
    click.echo(f"{paint(word, word.upper())}  {one_line(said)}")
    if said != verdict.sentence and verdict.ticks:
        click.echo(one_line(verdict.ticks))
    for found in findings:
        started = f" ({since(found.since, verdict.now)})" if found.since else ""
        print_finding(found, f"{found.sentence}{started}" if several else "")


def _print_figures(seen: Overview) -> None:
    figures = seen.figures
    waited = figures.oldest
    oldest = "nothing is due" if waited is None else f"the oldest has waited {duration(waited)}"
    ran = sum(bucket.succeeded for bucket in seen.activity)
    ticked = sum(bucket.ticks for bucket in seen.activity)
    # A dead run's last attempt failed, too.
    failed = sum(bucket.failed + bucket.dead for bucket in seen.activity)
    click.echo(f"overdue {figures.overdue} ({oldest})")
    handed = "" if figures.handed is None else f", handed on {figures.handed}"
    click.echo(f"running {figures.running} (stale {figures.stale}{handed})")
    click.echo(f"dead in 24 h {figures.dead}")
    click.echo(
        f"last 24 h: {plural(ticked, 'tick')}, {ran:,} succeeded, "
        f"{plural(failed, 'failed attempt')}"
    )


def _print_table(
    title: str, headers: Sequence[str], rows: Sequence[Sequence[object]], flexible: int = 0
) -> None:
    """Print *rows* below a heading, if there are any."""
    if rows:
        heading(title)
        table(headers, rows, flexible)


def _print_definitions(seen: Overview) -> None:
    rows = seen.definitions.rows
    if not rows:
        heading(no_definitions())
        return
    shown = [
        (row.name, f"{row.schedule} {row.timezone}", cells(row.cells), _next(row, seen))
        for row in rows
    ]
    _print_table("Definitions", ("NAME", "SCHEDULE", "LAST TEN", "NEXT"), shown)
    _print_legend(rows)
    if seen.definitions.pages > 1:
        click.echo(f"All {seen.definitions.total:,}: {command('definitions')}")


def _print_legend(rows: tuple[DefinitionView, ...]) -> None:
    seen = {cell.status for row in rows for cell in row.cells}
    if seen:
        click.echo(
            "  ".join(f"{mark} {status}" for status, mark in _CELLS.items() if status in seen)
        )


def cells(shown: tuple[Cell, ...]) -> str:
    """Return the last outcomes, one letter each, oldest first."""
    return "".join(_CELLS.get(cell.status, "?") for cell in shown)


def _next(row: DefinitionView, seen: Overview) -> str:
    if row.broken:
        return "broken"
    if row.paused_at is not None:
        return "paused"
    if row.due_since is not None:
        return late(seconds_since(row.due_since, seen.verdict.now))
    if row.orphaned and not row.elsewhere:
        return "no task"
    if row.undeclared and not row.elsewhere:
        return "not declared"
    if not row.next_slots:
        return "never"
    return late(seconds_since(row.next_slots[0], seen.verdict.now))


def _cut(shown: int, total: Count, noun: str) -> str:
    """Say how many are shown, if those are not all."""
    return f" ({total.shown(shown, noun)})" if shown < total.value else ""
