"""What a caller may hear of a tick while it works."""

from __future__ import annotations

from collections.abc import Callable

from ..types import AtWork, Outcome, RecordedSlot


class Observer:
    """Receives news of a tick as it happens. Override what you want to hear.

    The methods are called in the thread that has the news, never in the keeper's, through
    `signals.notify`: what they raise is logged and harms nothing. In a process pool all of them are
    called in the parent, which must not wait in them: who waits there reads nothing from workers.
    """

    #: How often `at_work` is called, in seconds; None: never.
    watch_every: float | None = None

    def slot(self, slot: RecordedSlot) -> None:
        """Receive a slot that was recorded, as a run or as skipped."""

    def outcome(self, outcome: Outcome) -> None:
        """Receive the recorded outcome of an attempt."""

    def lost(self, outcome: Outcome) -> None:
        """Receive an outcome that was dropped, since the lease was lost."""

    def at_work(self, seen: AtWork) -> None:
        """Receive what one worker is doing. It is told again and again, but not that of no runs."""

    def hold(self) -> None:
        """End threads of yours until `go_on`: this process is about to fork."""

    def go_on(self) -> None:
        """Go on after `hold`."""

    def flush(self) -> None:
        """Let all be printed, but within some seconds: the process is about to end."""


class PassingOn(Observer):
    """Passes everything on to another observer. Override what you want to hear too."""

    def __init__(self, inner: Observer) -> None:
        self.inner = inner
        self.watch_every: float | None = inner.watch_every

    def slot(self, slot: RecordedSlot) -> None:
        """Pass *slot* on."""
        self.inner.slot(slot)

    def outcome(self, outcome: Outcome) -> None:
        """Pass *outcome* on."""
        self.inner.outcome(outcome)

    def lost(self, outcome: Outcome) -> None:
        """Pass *outcome* on."""
        self.inner.lost(outcome)

    def at_work(self, seen: AtWork) -> None:
        """Pass *seen* on."""
        self.inner.at_work(seen)

    def hold(self) -> None:
        """Pass it on."""
        self.inner.hold()

    def go_on(self) -> None:
        """Pass it on."""
        self.inner.go_on()

    def flush(self) -> None:
        """Pass it on."""
        self.inner.flush()


class Counted(PassingOn):
    """Counts attempts, and passes everything on.

    :param count: called with the kind of each outcome, and with ``lost`` for one that was dropped.
    """

    def __init__(self, inner: Observer, count: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._count = count

    def outcome(self, outcome: Outcome) -> None:
        """Count *outcome*, unless it is that of a worker that is gone, and pass it on."""
        if not outcome.reclaimed:
            self._count(outcome.kind)
        super().outcome(outcome)

    def lost(self, outcome: Outcome) -> None:
        """Count *outcome* as lost, and pass it on."""
        self._count("lost")
        super().lost(outcome)
