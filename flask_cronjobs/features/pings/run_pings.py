"""Ping the URLs of monitors about the runs of definitions.

The ``ping=`` URL of a definition gets the paths that Healthchecks knows: ``/start`` is added when
an attempt begins, nothing when the run has succeeded, and ``/fail`` when it has ended otherwise.
The run's label is sent as the body of a POST; a monitor that refuses POST gets a GET.

A monitor that hangs may block one of our threads, but not the keeper, which renews leases.
"""

from __future__ import annotations

import threading
import time
from urllib.parse import urlsplit, urlunsplit

from ...core.app_state import State
from ...core.background import BackgroundThread
from ...core.definitions import ping_urls
from ...db.connection import Bookkeeping
from ...errors import CronJobsError
from ...log import logger
from ...types import Claim, Outcome
from .http import PLAIN, ping

#: Number of pings that are sent at once. Those of one definition are sent one after the other.
LANES = 8
#: The maximum number of pings that wait in a lane. If a monitor does not keep up, further pings are
#: dropped.
MAX_WAITING_PINGS = 200
#: Seconds for which the URLs are cached; the second value applies if there are none.
FRESH_SECONDS, FRESH_SECONDS_IF_NONE = 2.0, 60.0
#: Seconds that the waiting pings may take when the worker ends.
CLOSE_SECONDS = 20.0
#: Seconds for which reading the URLs is retried.
READ_SECONDS = 2.0

_START = "/start"
_PATHS = {"succeeded": "", "dead": "/fail", "cancelled": "/fail"}


class Pings:
    """Sends pings in its own threads, so that no worker waits for a monitor.

    `started`, `ended` and `close` may be called from any thread. `started` must be called before
    `ended` for each attempt.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._lanes = [
            BackgroundThread("cronjobs-pings", self._send, MAX_WAITING_PINGS) for _ in range(LANES)
        ]
        self._reading = threading.Lock()
        self._urls: dict[int, str] = {}
        self._fresh_until = 0.0

    def started(self, claim: Claim) -> None:
        """Ping the start of an attempt."""
        if claim.definition_id is not None:
            self._put(claim.definition_id, _START, claim.label)

    def ended(self, outcome: Outcome) -> None:
        """Ping the end of a run. A failure that will be retried is not an end."""
        if outcome.definition_id is not None and outcome.kind in _PATHS:
            self._put(outcome.definition_id, _PATHS[outcome.kind], outcome.label)

    def close(self, patience: float = CLOSE_SECONDS) -> None:
        """Wait until all pings are sent, at most *patience* seconds and at most `CLOSE_SECONDS`."""
        patience = min(patience, CLOSE_SECONDS)
        until = time.monotonic() + patience
        in_time = [lane.close(max(0.0, until - time.monotonic())) for lane in self._lanes]
        if not all(in_time):
            logger.warning("Pings of definitions took longer than %g s and were dropped", patience)

    def _put(self, definition_id: int, path: str, label: str | None) -> None:
        try:
            if not self._lanes[definition_id % LANES].put((definition_id, path, label)):
                logger.warning(
                    "A ping of a definition was dropped, since %d others are waiting to be sent",
                    MAX_WAITING_PINGS,
                )
        except RuntimeError as error:  # No more threads can be started.
            logger.warning("A ping of a definition was not sent: %s", error)

    def _send(self, event: tuple[int, str, str | None]) -> None:
        definition_id, path, label = event
        try:
            url = self._url(definition_id)
            if url is not None:
                body = label.encode(errors="replace") if label else None
                ping(_with_path(url, path), body, PLAIN)
        except CronJobsError as error:
            logger.warning("A ping of a definition was not sent: %s", error)
        except Exception as error:  # The URL is a secret.
            logger.warning("A ping of a definition was not sent: %s", type(error).__name__)

    def _url(self, definition_id: int) -> str | None:
        with self._reading:
            if time.monotonic() >= self._fresh_until:
                with Bookkeeping(self._state.engine, patience=READ_SECONDS) as books:
                    self._urls = ping_urls(books)
                self._fresh_until = time.monotonic() + (
                    FRESH_SECONDS if self._urls else FRESH_SECONDS_IF_NONE
                )
            return self._urls.get(definition_id)


def _with_path(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path)) if path else url
