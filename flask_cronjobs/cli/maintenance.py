"""``effects``, ``operations``, ``prune``, ``init`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from ..db.create import are_tables_missing, create_tables, set_storage, set_wal
from ..db.engines import how_to_migrate, refuse_shared_memory
from ..jobs.doctor import examine
from ..jobs.health import Finding
from ..jobs.humanize import minute, plural
from ..jobs.once_effects import effect_done, effect_redo, list_effects
from ..jobs.operations import list_operations
from ..jobs.pruning import prune_all
from ..jobs.state import state_of
from ..text import one_line
from .output import (
    Answer,
    Listing,
    admin_command,
    list_command,
    print_finding,
    refuse_to_list,
    since,
)
from .params import JSON_FLAG, actor
from .run_actions import progress_bar


@list_command(
    "effects",
    "flask jobs admin effects",
    "flask jobs admin effects --done mail:5",
    "flask jobs admin effects --redo mail:5",
    limit=50,
    most=500,
)
@click.option("--done", metavar="KEY", help="It was done: do not do it again.")
@click.option("--redo", metavar="KEY", help="It was not done: do it again.")
@click.option("--all", "everything", is_flag=True, help="Also list those that are done.")
def effects(
    done: str | None, redo: str | None, everything: bool, limit: int, before: int | None
) -> Listing | None:
    """List effects begun or in doubt, or resolve one in doubt."""
    if done is not None and redo is not None:
        raise click.UsageError("Give --done or --redo, not both.")
    key, settle, became = done, effect_done, "done. It will not be done again."
    if key is None:
        key, settle, became = redo, effect_redo, "not done. The next call does it."
    if key is None:
        return _list_effects(everything, limit, before)
    refuse_to_list()
    settle(state_of(), key, actor())
    click.echo(f"{one_line(key)}: marked as {became}")
    return None


def _list_effects(everything: bool, limit: int, before: int | None) -> Listing:
    found = list_effects(state_of(), open_only=not everything, before=before, limit=limit)
    headers = ("ID", "STATE", "RUN", "SINCE", "KEY")
    cells = (
        (row.id, row.state, row.run_id, since(row.created_at, found.now), row.key)
        for row in found.rows
    )
    none = "No effects." if everything else "No effect is being done or in doubt."
    return Listing("effects", found, headers, cells, none)


@list_command("operations", "flask jobs admin operations", limit=20, most=100)
def operations(limit: int, before: int | None) -> Listing:
    """List what operators did, newest first.

    Each retry, cancel, discard, pause, resume, run, edit and prune is kept for a year.
    """
    found = list_operations(state_of(), before, limit)
    headers = ("ID", "WHEN", "BY", "WHAT", "RUNS", "BECAME", "TARGET")
    cells = (
        (
            *(row.id, since(row.started_at, found.now), row.actor, row.what),
            "" if row.done is None else f"{row.done:,}",
            "; ".join(filter(None, (row.progress, row.outcome))),
            row.target,
        )
        for row in found.rows
    )
    none = "No operation is recorded."
    return Listing("operations", found, headers, cells, none, spare=("RUNS",))


@admin_command("prune", "flask jobs admin prune --dry-run", options=[JSON_FLAG])
@click.option("--dry-run", is_flag=True, help="Only count.")
def prune(dry_run: bool) -> Answer:
    """Delete runs older than their retention. Each tick deletes a few, too."""
    state = state_of()
    found = prune_all(state, dry_run=True)
    if not dry_run:
        with progress_bar("Prune", found) as advance:
            found = prune_all(state, actor=actor(), progress=advance)
    text = f"{'Would prune' if dry_run else 'Pruned'} {plural(found, 'run')}."
    return Answer({"runs": found, "dry_run": dry_run}, text)


@admin_command("init", "flask jobs admin init", options=[JSON_FLAG])
@click.option("--force", is_flag=True, help="Create them even if the app uses migrations.")
def init(force: bool) -> Answer:
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
    vacuum = not are_tables_missing(engine) and set_storage(engine)
    created = create_tables(engine)
    text = [f"Created {', '.join(created)}." if created else "All tables exist."]
    if wal:
        text.append("Set SQLite's journal mode to WAL.")
    if vacuum:
        text.append("Set when to vacuum job_runs.")
    return Answer({"created": created}, "\n".join(text))


@admin_command(
    *("doctor", "flask jobs admin doctor", "flask jobs admin doctor --strict --json"),
    options=[JSON_FLAG],
)
@click.option("--strict", is_flag=True, help="Exit 1 for a warning, too.")
def doctor(strict: bool) -> Answer:
    """Find what is wrong, and say what to do.

    Exits 1 if anything is an error.
    """
    findings = examine(state_of())
    bad = {"error", "warning"} if strict else {"error"}
    failed = any(finding.level in bad for finding in findings)
    return Answer({"findings": findings}, partial(_print, findings), status=int(failed))


def _print(findings: Sequence[Finding]) -> None:
    for each in findings:
        started = f" (since {minute(each.since)})" if each.since else ""
        what = each.sentence if each.level in ("warning", "error") else each.what
        print_finding(each, f"{each.id}: {what}{started}")
