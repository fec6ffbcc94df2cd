"""When ticks came: how far apart they usually are, and when the last one did its work."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise

from sqlalchemy import func, select, text

from .. import models
from .connection import Bookkeeping

#: The least that `TickHistory.grace` returns. Ticks come every minute and may be spread over it, so
#: two minutes are not an outage.
LEAST_GRACE = timedelta(minutes=2)


class TickHistory:
    """The ticks of the last day, read when something is first asked.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books

    @cached_property
    def grace(self) -> timedelta:
        """Twice the usual time between ticks, at least `LEAST_GRACE`.

        Ticks of one minute count as one, however many hosts there are, and an outage does not
        change what is usual.
        """
        minutes = [int(row.minute) for row in self._books.rows(text(self._minutes()))]
        gaps = sorted(after - before for before, after in pairwise(minutes))
        usual = gaps[len(gaps) // 2] if gaps else 0
        return max(LEAST_GRACE, timedelta(minutes=2 * usual))

    @cached_property
    def last_finished(self) -> datetime | None:
        """When the last tick that did its work began."""
        tick = models.JobTick
        latest = select(func.max(tick.started_at)).where(tick.finished_at.is_not(None))
        found: datetime | None = self._books.rows(latest)[0][0]
        return found

    def _minutes(self) -> str:
        dialect = self._books.dialect
        minute = (
            "floor(extract(epoch FROM started_at) / 60)"
            if dialect.name == "postgresql"
            else "CAST(strftime('%s', started_at) AS integer) / 60"
        )
        return f"""
        SELECT DISTINCT {minute} AS minute FROM job_ticks
        WHERE started_at >= {dialect.later("-86400")} ORDER BY minute
        """
