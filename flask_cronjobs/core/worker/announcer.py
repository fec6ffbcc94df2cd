"""Report each outcome to the log, the signals, the caller, and the features that watch runs.

All of these run code of the app. A blocked log or a slow receiver of a signal may delay a thread of
ours, but not the keeper, which renews leases.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from flask import Flask

from ...log import logger
from ...signals import News, announce, notify, run_news, unheard
from ...types import Outcome
from ..background import BackgroundThread
from ..features import Watcher

#: The number of unreported outcomes at which the worker stops claiming, since they take memory.
MAX_UNREPORTED = 1000
#: The number of unreported outcomes that keep their exceptions, each of which may take megabytes.
MAX_EXCEPTIONS = 100


class Announcer:
    """Reports outcomes in order. `report`, `send` and `close` belong to the keeper's thread."""

    def __init__(self, app: Flask, news: News, watchers: Sequence[Watcher] = ()) -> None:
        self._app = app
        self._news = news
        self._watchers = watchers
        self._work = BackgroundThread("cronjobs-announcer", self._report_all)
        self._next: list[tuple[Outcome, bool]] = []
        self._sent = self._reported = 0

    @property
    def behind(self) -> bool:
        """Whether so many outcomes are unreported that no more runs should be claimed."""
        return self._sent - self._reported >= MAX_UNREPORTED

    def report(self, outcome: Outcome, recorded: bool = True) -> None:
        """Report *outcome* after the next `send`.

        :param recorded: False if the outcome was dropped because the lease was lost.
        """
        many = self._sent - self._reported + len(self._next) >= MAX_EXCEPTIONS
        if many and outcome.exception is not None:
            outcome = outcome._replace(exception=None)
        self._next.append((outcome, recorded))

    def send(self) -> None:
        """Pass the noted outcomes to the thread together, since switching threads takes time."""
        if not self._next:
            return
        self._sent += len(self._next)
        self._work.put(self._next)
        self._next = []

    def close(self, patience: float) -> None:
        """Wait until all is reported; give up if nothing was reported for *patience* seconds."""
        self.send()
        last_count, until = -1, 0.0
        while not self._work.close(0.2):
            if self._reported != last_count:
                last_count, until = self._reported, time.monotonic() + patience
            elif time.monotonic() >= until:
                break
        for watcher in self._watchers:
            watcher.close(patience)

    def _report_all(self, outcomes: list[tuple[Outcome, bool]]) -> None:
        while outcomes:  # Remove each outcome, so that it is freed with its exception.
            self._report_one(*outcomes.pop(0))
            self._reported += 1

    def _report_one(self, outcome: Outcome, recorded: bool) -> None:
        try:
            for watcher in self._watchers if recorded else ():
                watcher.ended(outcome)
            announce(self._app, outcome, recorded)
            if not outcome.unbegun and self._news is not unheard:
                notify(self._news, "outcome" if recorded else "lost", run_news(outcome))
        except BaseException:
            logger.exception("An outcome could not be announced; the runs continue")
