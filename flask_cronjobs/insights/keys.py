"""A concurrency key, its limit and the runs that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select, text

from ..models.conditions import HAS_SHARE
from .reader import RUNS, Source, reading
from .run_filters import RunFilter
from .run_rows import RunRow, rows_of

#: The maximum number of runs of a key that are shown.
SHOWN = 10


class KeyView(NamedTuple):
    """A concurrency key, and the runs that hold it.

    :ivar limit: how many runs may hold it at once; None if no run holds it now.
    :ivar holders: the runs that hold it, at most ten.
    """

    key: str
    limit: int | None
    holders: Sequence[RunRow]


def find_key(source: Source, key: str) -> KeyView:
    """Return the limit and the holders of the concurrency key *key*."""
    with reading(source) as reader:
        which = RunFilter(concurrency_key=key)
        of_key = [filter_.condition(reader, value) for filter_, value in which.items()]
        columns = select(RUNS.c.id, RUNS.c.concurrency_limit).where(text(HAS_SHARE), *of_key)
        rows = reader.rows(columns.order_by(RUNS.c.concurrency_share).limit(SHOWN))
        limit = rows[0].concurrency_limit if rows else None
        return KeyView(key, limit, rows_of(reader, [row.id for row in rows]))
