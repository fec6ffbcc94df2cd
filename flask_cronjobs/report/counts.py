"""Counts up to a cap: what a page shows must not take time in proportion to the table."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ScalarSelect, func, select

from .humanize import plural
from .reader import Query

#: Counts go no further than this.
CAP = 1000


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows, counted up to a cap.

    :ivar capped: there are more; as text it reads ``1,000+``.
    """

    value: int
    capped: bool = False

    def __str__(self) -> str:
        return f"{self.value:,}{'+' if self.capped else ''}"

    def of(self, noun: str) -> str:
        """``1 run``, ``2 runs``, ``1,000+ runs``."""
        return f"{self} {noun}s" if self.capped else plural(self.value, noun)

    def __bool__(self) -> bool:
        return self.value > 0


def count_of(value: int) -> Count:
    """A number that was counted up to one beyond `CAP`."""
    return Count(min(value, CAP), value > CAP)


def capped(statement: Query) -> ScalarSelect[int]:
    """How many rows *statement* has, as a subquery that stops one beyond `CAP`."""
    some = statement.limit(CAP + 1).subquery()
    return select(func.count()).select_from(some).scalar_subquery()
