"""Rows of runs for lists and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select

from ..text.humanize import seconds_between
from ..types import Status, handed_to, without_secret
from .reader import DEFINITIONS, RUNS, Query, Reader, record
from .search import label_of, payload_columns


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list, without payload and stack, its error cut to one line.

    :ivar label: its label; in a list, a run without one has the beginning of its payload, if pages
        may show payloads.
    """

    id: int
    definition: str | None
    timezone: str | None
    task: str
    queue: str
    priority: int
    status: Status
    attempts: int
    max_attempts: int
    scheduled_for: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    locked_by: str | None
    locked_until: datetime | None
    error_type: str | None
    last_error: str | None
    progress: float | None
    label: str | None

    @property
    def waited(self) -> float | None:
        """The seconds from the due time of its latest attempt to its start, if they are known.

        They are unknown if a retry or a cancel has changed the times since.
        """
        if self.handed_to is not None:
            return None
        began = self.status in ("running", "succeeded", "dead")
        return seconds_between(self.run_at, self.started_at) if began else None

    @property
    def took(self) -> float | None:
        """The seconds that its latest attempt took, if it ran to an end."""
        return seconds_taken(self.status, self.started_at, self.finished_at)

    @property
    def handed_to(self) -> str | None:
        """The executor to which it was handed over, if it has not begun there."""
        return handed_to(self.locked_by) if self.status == "running" else None

    def is_stale(self, now: datetime) -> bool:
        """Return whether it is running and its lease ended.

        A run in an executor's broker does not count, since no worker was lost.
        """
        if self.handed_to is not None:
            return False
        return (
            self.status == "running" and self.locked_until is not None and self.locked_until <= now
        )


#: The maximum number of characters of an error that a list shows.
ERROR_SHOWN = 300


def with_definition(*columns: Any) -> Query:
    """Return a SELECT of *columns* of runs, with their definition's name and zone."""
    return select(
        *columns, DEFINITIONS.c.name.label("definition"), DEFINITIONS.c.timezone.label("timezone")
    ).select_from(RUNS.outerjoin(DEFINITIONS, DEFINITIONS.c.id == RUNS.c.definition_id))


def rows_of(reader: Reader, ids: Sequence[int]) -> list[RunRow]:
    """Return the runs *ids*, in their order."""
    if not ids:
        return []
    column_names = {"job_type", *RunRow.__dataclass_fields__} - {"last_error"}
    statement = with_definition(
        *(column for column in RUNS.c if column.name in column_names),
        func.substr(RUNS.c.last_error, 1, ERROR_SHOWN).label("last_error"),
        *payload_columns(reader),
    )
    database_rows = reader.rows(statement.where(RUNS.c.id.in_(ids)))
    rows = {row.id: run_row(row, label_of(reader, row)) for row in database_rows}
    return [rows[run_id] for run_id in ids if run_id in rows]


def seconds_taken(
    status: Status, started: datetime | None, finished: datetime | None
) -> float | None:
    """Return the seconds that a run's latest attempt took; None if it did not run to its end.

    A cancelled run may have started long before, in an earlier attempt.
    """
    return seconds_between(started, finished) if status in ("succeeded", "dead") else None


def run_row(row: Row[Any], label: str | None) -> RunRow:
    """Return the `RunRow` of a database row."""
    holder, error = without_secret(row.locked_by), first_line(row.last_error)
    return record(RunRow, row, task=row.job_type, locked_by=holder, last_error=error, label=label)


def first_line(error: str | bytes | None) -> str | None:
    """Return the first line of *error*, cut to `ERROR_SHOWN` characters.

    On SQLite, other programs may have stored bytes in any column.
    """
    if isinstance(error, bytes):
        error = error.decode(errors="replace")
    return error.strip().partition("\n")[0][:ERROR_SHOWN] if error else None
