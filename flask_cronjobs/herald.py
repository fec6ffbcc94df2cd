"""Telling the world of each minute of a resident worker: its signal, and the ping.

In a thread of its own: neither a monitor that hangs nor a slow receiver holds up the keeper, whose
outcomes and heartbeats would wait for them.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from . import signals
from .ping import TIMEOUT, ping
from .state import State
from .types import TickReport


class Herald(threading.Thread):
    """Sends ``tick_finished`` for each report that it is told of.

    :param pings: whether it also fetches ``CRONJOBS_PING_URL``.
    """

    def __init__(self, state: State, pings: bool) -> None:
        super().__init__(name="cronjobs-herald", daemon=True)
        self._state = state
        self._url = state.settings.ping_url if pings else None
        self._reports: SimpleQueue[TickReport | None] = SimpleQueue()

    def run(self) -> None:
        """The thread's life."""
        while (report := self._reports.get()) is not None:
            signals.send(signals.tick_finished, self._state.app, report=report)
            ping(self._url)

    def tell(self, report: TickReport) -> None:
        """Tell of a minute that has ended, without waiting for it."""
        self._reports.put(report)

    def leave(self) -> None:
        """Wait until all is told, but no longer than a ping may take."""
        self._reports.put(None)
        self.join(TIMEOUT)
