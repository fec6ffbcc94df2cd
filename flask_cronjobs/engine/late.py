"""Tell of slots that did not come: the signal ``definition_late``."""

from __future__ import annotations

from .. import signals
from ..log import logger
from ..state import State
from ..store.connection import Bookkeeping
from ..store.late import late_slots, mark_late
from ..types import LateSlot


def tell_late(state: State, books: Bookkeeping) -> None:
    """Send ``definition_late`` for slots that no worker has told of yet.

    Without a receiver do nothing: then another process may have one, or nobody asks.
    """
    if not signals.definition_late.has_receivers_for(state.app):
        return
    passed_over: set[int] = set()
    for late in late_slots(books, state.settings.health_overdue):
        # Never a later slot before an earlier one: the mark would stand for both.
        if late.definition_id not in passed_over and mark_late(books, late):
            _tell(state, late)
        else:
            passed_over.add(late.definition_id)


def _tell(state: State, late: LateSlot) -> None:
    logger.warning(
        "The definition %r is late: its slot of %s %s",
        late.definition,
        late.at.isoformat(),
        "is not recorded" if late.run_id is None else f"is run {late.run_id}, which has not begun",
        extra={"cronjobs_event": "late", "cronjobs_task": late.job_type},
    )
    signals.send(signals.definition_late, state.app, late=late)
