"""Lists that are paged by the ids of their rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class HasId(Protocol):
    """A row of such a list."""

    @property
    def id(self) -> int:
        """What the next page begins before."""
        ...


Shown = TypeVar("Shown", bound=HasId)


def cut_page(found: Sequence[Shown], limit: int) -> tuple[Sequence[Shown], int | None]:
    """Return the rows of a page, and the id before which the next page begins, if there is one.

    :param found: the rows of the page and one more, if there are so many.
    """
    return found[:limit], found[limit - 1].id if len(found) > limit else None
