"""``operations``, ``effects``, ``prune``, ``init``, ``doctor``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..db.create import are_tables_missing, create_tables, set_storage, set_wal
from ..db.engines import how_to_migrate, refuse_shared_memory
from ..jobs.doctor import examine
from ..jobs.effects import Effect, effect_done, effect_redo, list_effects
from ..jobs.health import Finding
from ..jobs.humanize import minute, plural
from ..jobs.operations import OperationView, list_operations
from ..jobs.pruning import prune_all
from ..jobs.state import state_of
from ..text import one_line
from .group import JobsGroup, examples
from .lists import listing, print_page, refuse_to_list
from .output import as_called, paragraph, print_json, since
from .params import actor, json_option
from .runs import progress_bar
from .terminal import paint

group: JobsGroup = JobsGroup("maintenance")


@group.command(
    "operations",
    epilog=examples("flask jobs admin operations", "flask jobs admin operations --watch"),
)
@listing(20, most=100)
def operations(limit: int, before: int | None, as_json: bool) -> None:
    """List what operators did, newest first, and what became of the runs.

    Each retry, cancel, discard, pause, resume, run and edit is kept for a year.
    """
    found = list_operations(state_of(), before, limit)

    def cells(row: OperationView) -> Sequence[object]:
        runs = "" if row.done is None else f"{row.done:,}"
        became = "; ".join(filter(None, (row.progress, row.outcome)))
        return (
            row.id,
            since(found.now, row.started_at),
            row.actor,
            row.what,
            runs,
            became,
            row.target,
        )

    headers = ("ID", "WHEN", "BY", "WHAT", "RUNS", "BECAME", "TARGET")
    print_page("operations", found, as_json, headers, cells, "No operation is recorded.")


@group.command(
    "effects",
    epilog=examples(
        "flask jobs admin effects",
        "flask jobs admin effects --done mail:5",
        "flask jobs admin effects --redo mail:5",
    ),
)
@click.option("--done", metavar="KEY", help="It was done: do not do it again.")
@click.option("--redo", metavar="KEY", help="It was not done: do it again.")
@click.option("--all", "everything", is_flag=True, help="Also list those that are done.")
@listing(50, most=500)
def effects(
    done: str | None,
    redo: str | None,
    everything: bool,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List effects begun or in doubt, or resolve one in doubt."""
    if done is not None and redo is not None:
        raise click.UsageError("Give --done or --redo, not both.")
    if done is not None or redo is not None:
        refuse_to_list()
    if done is not None:
        effect_done(state_of(), done, actor())
        click.echo(f"{one_line(done)}: marked as done. It will not be done again.")
    elif redo is not None:
        effect_redo(state_of(), redo, actor())
        click.echo(f"{one_line(redo)}: marked as not done. The next call does it.")
    else:
        _list_effects(everything, limit, before, as_json)


@group.command("prune", epilog=examples("flask jobs admin prune --dry-run"))
@click.option("--dry-run", is_flag=True, help="Only count.")
@json_option
def prune(dry_run: bool, as_json: bool) -> None:
    """Delete runs older than their retention. Each tick deletes a few, too."""
    state = state_of()
    found = prune_all(state, dry_run=True)
    if not dry_run:
        with progress_bar("Prune", found) as advance:
            found = prune_all(state, actor=actor(), progress=advance)
    if as_json:
        print_json({"runs": found, "dry_run": dry_run})
    else:
        click.echo(f"{'Would prune' if dry_run else 'Pruned'} {plural(found, 'run')}.")


@group.command("init", epilog=examples("flask jobs admin init"))
@click.option("--force", is_flag=True, help="Create them even if the app uses migrations.")
@json_option
def init(force: bool, as_json: bool) -> None:
    """Create missing job tables, and set up old ones.

    It sets SQLite to WAL mode, and tells PostgreSQL when to vacuum job_runs. In an app with
    migrations, let those create the tables instead.
    """
    engine = state_of().engine
    refuse_shared_memory(engine)
    if not force and are_tables_missing(engine) and (migrate := how_to_migrate(engine)):
        raise click.ClickException(
            "This app uses migrations. If this command created the tables, the next migration "
            f"would find nothing to do. {migrate}. (--force creates them.)"
        )
    wal = set_wal(engine)
    old = [] if are_tables_missing(engine) else set_storage(engine)
    created = create_tables(engine)
    if as_json:
        print_json({"created": created})
    elif created:
        click.echo(f"Created {', '.join(created)}.")
    else:
        click.echo("All tables exist.")
    if wal and not as_json:
        click.echo("Set SQLite's journal mode to WAL.")
    if old and not as_json:
        click.echo(f"Set when to vacuum {', '.join(old)}.")


@group.command(
    "doctor", epilog=examples("flask jobs admin doctor", "flask jobs admin doctor --strict --json")
)
@click.option("--strict", is_flag=True, help="Exit 1 for a warning, too.")
@json_option
def doctor(strict: bool, as_json: bool) -> None:
    """Find what is wrong, and say what to do.

    Exits 1 if anything is an error.
    """
    findings = examine(state_of())
    if as_json:
        print_json({"findings": findings})
    else:
        for finding in findings:
            _print(finding)
    bad = ("error", "warning") if strict else ("error",)
    if any(finding.level in bad for finding in findings):
        raise click.exceptions.Exit(1)


def _list_effects(everything: bool, limit: int, before: int | None, as_json: bool) -> None:
    found = list_effects(state_of(), open_only=not everything, before=before, limit=limit)
    headers = ("ID", "STATE", "RUN", "SINCE", "KEY")
    none = "No effects." if everything else "No effect is being done or in doubt."

    def cells(row: Effect) -> Sequence[object]:
        return row.id, row.state, row.run_id, since(found.now, row.created_at), row.key

    print_page("effects", found, as_json, headers, cells, none)


def _print(finding: Finding) -> None:
    level = paint(finding.level, f"{finding.level:<8}")
    started = f" (since {minute(finding.since)})" if finding.since else ""
    paragraph(level, " " * 8, f"{finding.id}: {as_called(finding.what)}{started}")
    if finding.todo:
        paragraph(" " * 8 + "-> ", " " * 11, as_called(finding.todo))
