"""``operations``: what operators did."""

from __future__ import annotations

from collections.abc import Sequence

from ..jobs.operations.views import OperationView, list_operations
from ..jobs.state import state_of
from .group import JobsGroup, examples
from .lists import listing, print_page
from .output import since

group: JobsGroup = JobsGroup("operations")


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
