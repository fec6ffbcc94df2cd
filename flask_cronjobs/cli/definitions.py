"""The table of definitions, which ``definitions`` and ``admin`` print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from ..core.app_state import state_of
from ..insights.reader import Page
from ..insights.schedule_views import DefinitionView, list_definitions
from ..text import printable
from ..text.humanize import duration, late, plural, seconds_since
from .output import Answer, listing, look_at_list

#: The letter of each outcome.
_LETTERS = {
    "succeeded": ".",
    "running": "r",
    "queued": "q",
    "failed": "f",
    "dead": "D",
    "cancelled": "c",
    "skipped": "-",
}


@look_at_list("definitions", "flask jobs admin definitions", limit=50, by="NAME")
def definitions(limit: int, after: str | None) -> Answer:
    """List definitions with their last runs and next slots."""
    page = list_definitions(state_of(), "name", limit=limit, after=after)
    is_last = page.total == len(page.rows)
    headers = ("NAME", "TASK", "SCHEDULE", "LAST TEN", "TOOK", "NEXT")
    cells = (
        (
            *(row.name, row.task, schedule_of(row), outcomes_of(row)),
            "-" if row.last_seconds is None else duration(row.last_seconds),
            obstacle_to(row, page.now) or ", ".join(_shown(s, page.now) for s in row.next_slots),
        )
        for row in page.rows
    )
    return listing(
        "definitions",
        Page(page.rows, None if is_last else page.rows[-1].name, page.now),
        *(headers, cells, no_definitions()),
        below=(*legend_of(page.rows), *(_unscheduled() if is_last else ())),
    )


def _shown(slot: datetime, now: datetime) -> str:
    """Return *slot* with its day, and with its year if that is not the current one."""
    return f"{slot:%a %m-%d %H:%M}" if slot.year == now.year else f"{slot:%a %Y-%m-%d %H:%M}"


def schedule_of(row: DefinitionView) -> str:
    """Return the schedule of *row* with its zone."""
    return f"{row.schedule} {row.timezone}"


def outcomes_of(row: DefinitionView) -> str:
    """Return a letter for each of the last outcomes, oldest first."""
    return "".join(_LETTERS.get(cell.status, "?") for cell in row.cells)


def legend_of(rows: Sequence[DefinitionView]) -> list[str]:
    """Return a line that explains the letters of `outcomes_of`, if there are any."""
    statuses = {cell.status for row in rows for cell in row.cells}
    words = [f"{letter} {status}" for status, letter in _LETTERS.items() if status in statuses]
    return ["  ".join(words)] if words else []


def obstacle_to(row: DefinitionView, now: datetime) -> str:
    """Return why *row* will not run at its next slot; empty if it will."""
    if row.broken is not None:
        return f"broken: {row.broken}"
    if row.paused_at is not None:
        return "paused"
    if row.due_since is not None:
        return late(seconds_since(row.due_since, now))
    if row.undeclared and not row.elsewhere:
        return "not declared by this app's code"
    if row.orphaned and not row.elsewhere:
        return "this app's code declares no such task"
    return "" if row.next_slots else "never"


def no_definitions() -> str:
    """Return the text for a table without definitions."""
    declared = len(state_of().registry.declarations)
    if declared:
        schedules, them = plural(declared, "schedule"), "it" if declared == 1 else "them"
        return (
            f"No definitions yet: this app's code declares {schedules}; "
            f"the next tick records {them}."
        )
    return "No definitions yet: add schedule= to a task; the next tick records it."


def _unscheduled() -> Iterator[str]:
    jobs = state_of().registry
    scheduled = {declaration.task.name for declaration in jobs.declarations.values()}
    names = sorted(jobs.tasks.keys() - scheduled)
    if names:
        yield f"Tasks without a schedule in the code: {printable(', '.join(names))}"
