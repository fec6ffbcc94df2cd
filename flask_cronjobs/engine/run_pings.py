"""Tell the monitors of definitions when their runs begin, and how they end, by ``ping=``.

The paths are those of Healthchecks: the URL and ``/start`` when an attempt begins, the URL itself
when the run has succeeded, and ``/fail`` when it ended otherwise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from ..db.connection import Bookkeeping
from ..errors import CronJobsError
from ..jobs.definitions.rows import ping_urls
from ..jobs.state import State
from ..log import logger
from ..types import Claim, Outcome
from .beside import Beside
from .ping import ping

#: How many pings are under way at once. Those of one definition go one after the other.
LANES = 8
#: How many wait for each. Beyond that the monitor does not keep up, and they are dropped.
MOST = 200
#: For how long the URLs that were read are used, in seconds; and where there were none.
FRESH, FRESH_IF_NONE = 2.0, 60.0
#: How long what waits may take when the worker ends, in seconds.
CLOSE_WITHIN = 20.0
#: For how many seconds to try to read the URLs.
PATIENCE = 2.0

_START = "/start"
_PATHS = {"succeeded": "", "dead": "/fail", "cancelled": "/fail"}


class _Event(NamedTuple):
    definition_id: int
    path: str


class Pings:
    """Pings in threads of its own, so that no worker waits for a monitor.

    `started`, `ended` and `close` may be called from any thread. An attempt's start must be told
    before its end.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._lanes = [Beside("cronjobs-pings", self._send, MOST) for _ in range(LANES)]
        self._reading = threading.Lock()
        self._urls: dict[int, str] = {}
        self._fresh_until = 0.0

    def started(self, claim: Claim) -> None:
        """Tell that an attempt begins."""
        if claim.definition_id is not None:
            self._put(_Event(claim.definition_id, _START))

    def ended(self, outcome: Outcome) -> None:
        """Tell that a run has ended. A failure that will be retried is none."""
        if outcome.definition_id is not None and outcome.kind in _PATHS:
            self._put(_Event(outcome.definition_id, _PATHS[outcome.kind]))

    def close(self, patience: float = CLOSE_WITHIN) -> None:
        """Wait until all is told, but no longer than *patience* seconds."""
        until = time.monotonic() + patience
        in_time = [lane.close(max(0.0, until - time.monotonic())) for lane in self._lanes]
        if not all(in_time):
            logger.warning("Pings of definitions took longer than %g s and were left", patience)

    def _put(self, event: _Event) -> None:
        try:
            if not self._lanes[event.definition_id % LANES].put(event):
                logger.warning(
                    "A ping of a definition was dropped: %d wait for their monitor", MOST
                )
        except RuntimeError as error:  # No more threads can be started.
            logger.warning("A ping of a definition was not sent: %s", error)

    def _send(self, event: _Event) -> None:
        try:
            url = self._url(event.definition_id)
            if url is not None:
                ping(_with_path(url, event.path))
        except CronJobsError as error:
            logger.warning("A ping of a definition was not sent: %s", error)
        except Exception as error:  # A URL that somebody wrote into the table; it is a secret.
            logger.warning("A ping of a definition was not sent: %s", type(error).__name__)

    def _url(self, definition_id: int) -> str | None:
        with self._reading:
            if time.monotonic() >= self._fresh_until:
                with Bookkeeping(self._state.engine, patience=PATIENCE) as books:
                    self._urls = ping_urls(books)
                self._fresh_until = time.monotonic() + (FRESH if self._urls else FRESH_IF_NONE)
            return self._urls.get(definition_id)


def ping_ended(state: State, outcomes: Sequence[Outcome]) -> None:
    """Tell of runs that ended with their worker."""
    if any(outcome.definition_id is not None for outcome in outcomes):
        pings = Pings(state)
        for outcome in outcomes:
            pings.ended(outcome)
        pings.close()


def _with_path(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path)) if path else url
