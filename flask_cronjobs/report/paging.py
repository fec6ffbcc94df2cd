"""Lists that are shown in pages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class Page(Generic[Shown]):
    """The rows of a page.

    :ivar next: what the next page begins after: the id or key of the last row; None if it is the
        last page.
    :ivar now: the database's now.
    """

    rows: Sequence[Shown]
    next: Any
    now: datetime


def cut_page(found: Sequence[Shown], limit: int, now: datetime, by: str = "id") -> Page[Shown]:
    """Return a page of at most *limit* rows.

    :param found: the rows of the page and one more, if there are so many.
    :param by: the attribute after whose last value the next page begins.
    """
    following = getattr(found[limit - 1], by) if len(found) > limit else None
    return Page(found[:limit], following, now)
