"""Count rows up to a cap, so that a page takes no longer as the tables grow."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ScalarSelect, func, select

from .humanize import plural
from .reader import Query

#: Counting stops here.
CAP = 1000


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows, counted up to a cap.

    :ivar capped: whether there are more; then its text is ``1,000+``.
    """

    value: int
    capped: bool = False

    def __str__(self) -> str:
        return f"{self.value:,}{'+' if self.capped else ''}"

    def of(self, noun: str) -> str:
        """Return ``1 run``, ``2 runs``, ``1,000+ runs``."""
        return f"{self} {noun}s" if self.capped else plural(self.value, noun)

    def __bool__(self) -> bool:
        return self.value > 0


def count_of(value: int) -> Count:
    """Return the count for *value*, which was counted up to `CAP` plus one."""
    return Count(min(value, CAP), value > CAP)


def capped(statement: Query) -> ScalarSelect[int]:
    """Return a subquery that counts the rows of *statement*, up to `CAP` plus one."""
    some = statement.limit(CAP + 1).subquery()
    return select(func.count()).select_from(some).scalar_subquery()
