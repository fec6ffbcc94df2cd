"""Commands for the database: ``doctor``, ``init`` and ``prune``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from ..core.app_state import state_of
from ..db.create import are_tables_missing, create_tables, set_storage, set_wal
from ..db.engines import how_to_migrate, refuse_shared_memory
from ..insights.doctor import examine
from ..insights.health_checks import Finding
from ..insights.prune_actions import prune_all
from ..text.humanize import minute, plural
from .actions import progress_bar
from .output import Answer, look, print_finding, set_up
from .params import actor


@look("doctor", "flask jobs admin doctor", "flask jobs admin doctor --strict --json")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings, too.")
def doctor(strict: bool) -> Answer:
    """Find problems, and print what to do about them.

    Exits 1 if there is an error.
    """
    findings = examine(state_of())
    bad = {"error", "warning"} if strict else {"error"}
    failed = any(finding.level in bad for finding in findings)
    return Answer({"findings": findings}, partial(_print, findings), status=int(failed))


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        started = f" (since {minute(finding.since)})" if finding.since else ""
        what = finding.sentence if finding.level in ("warning", "error") else finding.what
        print_finding(finding, f"{finding.id}: {what}{started}")


@set_up("init", "flask jobs admin init")
@click.option("--force", is_flag=True, help="Create the tables even if the app uses migrations.")
def init(force: bool) -> Answer:
    """Create missing job tables, and set up the database for them.

    It sets SQLite to WAL mode, and tells PostgreSQL when to vacuum job_runs. If the app uses
    migrations, let them create the tables instead.
    """
    engine = state_of().engine
    refuse_shared_memory(engine)
    if not force and are_tables_missing(engine) and (migrate := how_to_migrate(engine)):
        raise click.ClickException(
            "This app uses migrations. If this command created the tables, the next migration "
            f"would find nothing to do. {migrate}. (--force creates them anyway.)"
        )
    wal = set_wal(engine)
    vacuum = not are_tables_missing(engine) and set_storage(engine)
    created = create_tables(engine)
    text = [f"Created {', '.join(created)}." if created else "All tables exist."]
    if wal:
        text.append("Set SQLite's journal mode to WAL.")
    if vacuum:
        text.append("Set how often PostgreSQL vacuums job_runs.")
    return Answer({"created": created}, "\n".join(text))


@set_up("prune", "flask jobs admin prune --dry-run")
@click.option("--dry-run", is_flag=True, help="Count the runs, but delete nothing.")
def prune(dry_run: bool) -> Answer:
    """Delete runs older than their retention. Ticks also delete them, a few at a time."""
    state = state_of()
    number = prune_all(state, dry_run=True)
    if not dry_run:
        with progress_bar("Prune", number) as advance:
            number = prune_all(state, actor=actor(), progress=advance)
    text = f"{'Would prune' if dry_run else 'Pruned'} {plural(number, 'run')}."
    return Answer({"runs": number, "dry_run": dry_run}, text)
