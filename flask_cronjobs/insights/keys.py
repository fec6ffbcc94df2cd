"""One concurrency key: who has it, and how many runs it lets run at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select, text

from ..models.conditions import HAS_SHARE
from .reader import RUNS, Source, reading
from .run_filters import RunFilter
from .run_rows import RunRow, rows_of

#: How many of the runs that have the key are shown.
SHOWN = 10


class KeyView(NamedTuple):
    """A concurrency key, as far as it may be looked up.

    :ivar limit: how many of its runs may run at once; None if none waits or runs.
    :ivar holders: the runs that have it, at most ten.
    """

    key: str
    limit: int | None
    holders: Sequence[RunRow]


def find_key(source: Source, key: str) -> KeyView:
    """Return who has the concurrency key *key*."""
    with reading(source) as reader:
        which = RunFilter(concurrency_key=key)
        of_key = [each.condition(reader, value) for each, value in which.given()]
        columns = select(RUNS.c.id, RUNS.c.concurrency_limit).where(text(HAS_SHARE), *of_key)
        rows = reader.rows(columns.order_by(RUNS.c.concurrency_share).limit(SHOWN))
        limit = rows[0].concurrency_limit if rows else None
        return KeyView(key, limit, rows_of(reader, [row.id for row in rows]))
