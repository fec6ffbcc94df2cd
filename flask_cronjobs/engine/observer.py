"""What a caller may hear of a tick while it works."""

from __future__ import annotations

from ..types import Outcome, RecordedSlot


class Observer:
    """Receives news of a tick as it happens. Override what you want to hear.

    The methods are called in the thread that has the news, through `signals.notify`: what they
    raise is logged and harms nothing.
    """

    def slot(self, slot: RecordedSlot) -> None:
        """Receive a slot that was recorded, as a run or as skipped."""

    def outcome(self, outcome: Outcome) -> None:
        """Receive the recorded outcome of an attempt."""
