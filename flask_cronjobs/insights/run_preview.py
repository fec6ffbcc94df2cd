"""The preview of runs before an action changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from ..text.humanize import plural
from ..types import Status
from .reader import CAP, RUNS, Source, is_one_of, reading
from .run_rows import RunRow, rows_of

#: The maximum numbers of runs and of errors that are shown.
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Preview:
    """A preview of the runs to be changed.

    :ivar first: the first ten runs, in the given order.
    :ivar errors: the most frequent tasks and types of error among the first 1,000 runs, with their
        numbers.
    :ivar runs_read: the number of runs whose errors were counted.
    """

    first: tuple[RunRow, ...]
    errors: tuple[tuple[str, str | None, int], ...]
    runs_read: int

    def split(self) -> list[str]:
        """Return lines such as ``31 of send_mail, TimeoutError``."""
        return [
            f"{number:,} of {', '.join(filter(None, (task, error)))}"
            for task, error, number in self.errors
        ]

    def heading(self, total: int) -> str:
        """Return the heading of `errors`, which says if only some of the *total* were read."""
        if self.runs_read >= total:
            return "By task and error"
        return f"By task and error, of the first {plural(self.runs_read, 'run')}"


def preview(source: Source, ids: Sequence[int]) -> Preview:
    """Return a preview of the runs *ids*."""
    first_ids = ids[:CAP]
    with reading(source) as reader:
        kinds = RUNS.c.job_type, RUNS.c.error_type
        number = func.count().label("number")
        groups = (
            select(*kinds, number).where(is_one_of(reader, RUNS.c.id, first_ids)).group_by(*kinds)
        )
        rows = reader.rows(groups.order_by(number.desc(), *kinds).limit(SHOWN))
        errors = tuple((row.job_type, row.error_type, row.number) for row in rows)
        return Preview(tuple(rows_of(reader, ids[:SHOWN])), errors, len(first_ids))


def of_status(source: Source, ids: Sequence[int], statuses: Sequence[Status]) -> list[int]:
    """Return the *ids* of runs that have one of *statuses*, newest first."""
    with reading(source) as reader:
        chosen = select(RUNS.c.id).where(is_one_of(reader, RUNS.c.id, ids))
        query = chosen.where(RUNS.c.status.in_(statuses)).order_by(RUNS.c.id.desc())
        return [row.id for row in reader.rows(query)]
