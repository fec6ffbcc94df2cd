"""``flask jobs admin``: the group of the admin commands, and the overview that it prints."""

from __future__ import annotations

from functools import partial

import click
from flask.cli import with_appcontext

from ..core.app_state import state_of
from ..insights.overview import Overview, read_overview
from ..schedule.cron_text import parse_zone
from ..text import one_line
from ..text.humanize import late, printed_zone, seconds_since

# Each module declares its commands, in the order in which ``--help`` lists them.
from . import runs, definitions, lists, actions, crontab, database  # isort: skip
from .definitions import legend_of, no_definitions, obstacle_to, outcomes_of, schedule_of
from .group import JobsGroup, command, examples
from .output import COMMANDS, SECTIONS, Answer, heading, print_finding, since, table
from .params import JSON_FLAG, WIDE
from .terminal import paint

_MODULES = (runs, definitions, lists, actions, database, crontab)


class _AdminGroup(JobsGroup):
    """The group of ``flask jobs admin``, whose help lists the commands by purpose."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the sections."""
        order = ("Look", "Act", "Set up")
        return sorted(self.commands, key=lambda name: order.index(SECTIONS[name]))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each purpose."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        names = self.list_commands(ctx)
        for title in dict.fromkeys(SECTIONS[name] for name in names):
            own = [name for name in names if SECTIONS[name] == title]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(limit)) for name in own]
                )


@click.group(
    "admin",
    cls=_AdminGroup,
    invoke_without_command=True,
    epilog=examples(
        "flask jobs admin", "flask jobs admin list --status dead", "flask jobs admin show 5"
    ),
)
@click.pass_context
@with_appcontext
def admin(ctx: click.Context, as_json: bool, wide: bool) -> None:
    """Show and manage the jobs.

    Without a command, print what needs attention, then the schedules.
    """
    token = printed_zone.set(partial(parse_zone, state_of().settings.timezone))
    ctx.call_on_close(partial(printed_zone.reset, token))
    name = ctx.invoked_subcommand
    if name is None:
        overview = read_overview(state_of())
        Answer(overview, partial(_print, overview)).print(as_json)
    elif as_json or wide:
        option = "--json" if as_json else "--wide"
        raise click.UsageError(f"Write {option} after {name}: {ctx.command_path} {name} {option}")


admin.commands = COMMANDS.commands
admin.params += [JSON_FLAG, WIDE]


def _print(overview: Overview) -> None:
    _print_verdict(overview)
    _print_dead(overview)
    _print_schedules(overview)


def _print_verdict(overview: Overview) -> None:
    """Print the verdict, in the color that the page gives it, and the findings."""
    verdict = overview.verdict
    word = "warn" if verdict.tone == "warn" else verdict.word
    click.echo(f"{paint(word, word.upper())}  {verdict.headline}")
    if verdict.ticks:
        click.echo(one_line(verdict.ticks))
    for finding in verdict.findings:
        started = f" ({since(finding.since, verdict.now)})" if finding.since else ""
        print_finding(finding, f"{finding.sentence}{started}")


def _print_dead(overview: Overview) -> None:
    if not overview.dead:
        return
    number, total = len(overview.dead), overview.dead_groups
    heading(f"Dead, by task and error ({total.shown(number, 'group')})")
    rows = (
        (
            *(group.task, group.count, since(group.newest, overview.verdict.now), group.sample_id),
            ": ".join(part for part in (group.error_type, group.message) if part),
            ", ".join(group.labels),
        )
        for group in overview.dead
    )
    table(("TASK", "COUNT", "LATEST", "RUN", "ERROR", "LABELS"), rows)


def _print_schedules(overview: Overview) -> None:
    rows, now = overview.definitions.rows, overview.verdict.now
    if not rows:
        heading(no_definitions())
        return
    heading("Schedules")
    cells = (
        (
            *(row.name, schedule_of(row), outcomes_of(row)),
            obstacle_to(row, now) or late(seconds_since(row.next_slots[0], now)),
        )
        for row in rows
    )
    table(("NAME", "SCHEDULE", "LAST TEN", "NEXT"), cells)
    for line in legend_of(rows):
        click.echo(line)
    if overview.definitions.pages > 1:
        click.echo(f"All {overview.definitions.total:,}: {command('definitions')}")
