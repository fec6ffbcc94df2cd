"""Effects that are not repeated once they are done, even if the run is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...core.prune import Kind


def old_rows() -> tuple[Kind, ...]:
    """Return the kind of old rows to delete: the records of effects that were done."""
    from .expiry import DONE_EFFECTS

    return (DONE_EFFECTS,)
