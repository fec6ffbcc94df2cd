"""Ping the URLs of monitors about ticks, and about the runs of definitions.

Each tick fetches ``CRONJOBS_PING_URL``, since a dead cron cannot report itself. The ``ping=`` URL
of a definition gets the paths that Healthchecks knows: ``/start`` is added when an attempt begins,
nothing when the run has succeeded, and ``/fail`` when it has ended otherwise. The run's label is
sent as the body of a POST; a monitor that refuses POST gets a GET.

A monitor that hangs may block one of our threads, but not the keeper, which renews leases.
"""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.client import responses
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ...core.app_state import State
from ...core.background import BackgroundThread
from ...core.definitions import ping_urls
from ...db.connection import Bookkeeping
from ...errors import CronJobsError
from ...log import logger
from ...text.redaction import host_of
from ...types import Claim, Outcome

if TYPE_CHECKING:
    from urllib.request import OpenerDirector, Request


#: Total seconds that a ping may take, the name lookup included.
TIMEOUT_SECONDS = 5.0
PLAIN = "text/plain; charset=utf-8"
#: Answers of monitors that refuse POST, or that redirect, which would lose the body.
_REDIRECTS = (301, 302, 303, 307, 308)
_NO_POST = (404, 405, *_REDIRECTS)


def ping(
    url: str | None,
    body: bytes | None = None,
    kind: str = "application/json",
    name: str = "The ping",
) -> bool:
    """Fetch *url* within `TIMEOUT_SECONDS`. It never raises.

    A failed tick sends no ping: a heartbeat monitor raises the alarm when it hears nothing.

    :param url: ``CRONJOBS_PING_URL``, or None for no ping. Only its host is logged, since the path
        of such a URL is often a secret.
    :param body: the body of a POST; None for a GET. If the monitor refuses or redirects a POST of
        plain text, it gets a GET. Other bodies are not redirected.
    :param kind: the content type of *body*.
    :param name: names the request in the log.
    :returns: whether the answer was a success.
    """
    if url is None:
        return False
    answers: list[bool] = []
    deadline = _Deadline(TIMEOUT_SECONDS)
    # This needs a thread, since nothing can interrupt a name lookup.
    fetching: BackgroundThread[str] = BackgroundThread(
        "cronjobs-ping", lambda place: answers.append(_fetch(place, body, kind, deadline, name))
    )
    try:
        fetching.put(url)
    except RuntimeError as error:
        logger.warning("%s was not sent: %s", name, error)
    if not fetching.close(TIMEOUT_SECONDS):
        deadline.end()
        logger.warning(
            "%s to %s took longer than %g s and was abandoned", name, host_of(url), TIMEOUT_SECONDS
        )
    return answers == [True]


class _Deadline:
    """The deadline of one ping. It cuts the connection, so that the ping's thread ends, too.

    A socket's timeout would not do, since it starts again with each byte that the monitor sends.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._at = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._copies: list[socket.socket] = []

    def connect(self, address: tuple[str, int], *_: object) -> socket.socket:
        """Return a connection to *address* that `end` can cut.

        :raises OSError: no address answered in the time that was left, or `end` was called.
        """
        connection = socket.create_connection(address, max(0.001, self._at - time.monotonic()))
        with self._lock:
            if self.is_over:
                connection.close()
                raise TimeoutError
            # A copy, since TLS detaches the socket itself before its handshake.
            self._copies.append(connection.dup())
        return connection

    def end(self) -> None:
        """Cut the connections, and allow no others."""
        with self._lock:
            self.is_over = True
            for copy in self._copies:
                with suppress(OSError):  # The other side has closed it.
                    copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the copies that `connect` has made."""
        with self._lock:
            for copy in self._copies:
                copy.close()
            self._copies.clear()


def _fetch(url: str, body: bytes | None, kind: str, deadline: _Deadline, name: str) -> bool:
    try:
        opener, request = _opener(deadline, body is None), _request(url, body, kind)
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            response.read(1)
    except Exception as error:
        status = getattr(error, "code", "")
        if status in _NO_POST and body is not None and kind == PLAIN:
            return _fetch(url, None, kind, deadline, name)
        if not deadline.is_over:
            advice = ". Set the URL that it redirects to" if status in _REDIRECTS else ""
            logger.warning("%s to %s failed: %s%s", name, host_of(url), _reason(error), advice)
        return False
    finally:
        deadline.close()
    return True


def _reason(error: BaseException) -> str:
    """Return why a request failed, without the text of the error, which may contain the URL.

    A status is explained by its standard phrase, and a system error by the system's message.
    """
    name = type(error).__name__
    status = getattr(error, "code", None)
    if isinstance(status, int):
        return f"{name} {status} {responses.get(status, '')}".rstrip()
    cause = getattr(error, "reason", error)
    words = cause.strerror if isinstance(cause, OSError) else None
    return f"{name}: {words}" if words else name


def _opener(deadline: _Deadline, follows: bool) -> OpenerDirector:
    """Return an opener for http and https only, also after a redirect.

    :param follows: whether it follows redirects. Use False for a POST: most redirects turn it into
        a GET, so the message would be lost although the answer is a success.
    """
    from urllib import request

    class Http(request.HTTPHandler):
        def do_open(self, http_class: Any, req: Request, **options: Any) -> Any:
            return super().do_open(partial(_connection, deadline, http_class), req, **options)

    class Https(request.HTTPSHandler):
        def do_open(self, http_class: Any, req: Request, **options: Any) -> Any:
            return super().do_open(partial(_connection, deadline, http_class), req, **options)

    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        Http(),
        Https(),
        request.HTTPDefaultErrorHandler(),
        *((request.HTTPRedirectHandler(),) if follows else ()),
        request.HTTPErrorProcessor(),
        request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _connection(deadline: _Deadline, kind: Callable[..., Any], host: str, **options: Any) -> Any:
    """Return a connection of http.client that *deadline* cuts, TLS and proxies included."""
    connection = kind(host, **options)
    connection._create_connection = deadline.connect
    return connection


def _request(url: str, body: bytes | None, kind: str) -> Request:
    """Return a request for *url*, with the name and password in it as a header."""
    from urllib.request import Request

    parts = urlsplit(url)
    userinfo, _, place = parts.netloc.rpartition("@")
    bare_url = SplitResult(parts.scheme, place, parts.path, parts.query, "")
    headers = {"User-Agent": "Flask-CronJobs"}
    if body is not None:
        headers["Content-Type"] = kind
    request = Request(urlunsplit(bare_url), body, headers)
    if userinfo:
        name, _, password = userinfo.partition(":")
        credentials = f"{unquote(name)}:{unquote(password)}".encode()
        # A redirect must not send the header to another host.
        request.add_unredirected_header(
            "Authorization", "Basic " + base64.b64encode(credentials).decode()
        )
    return request


#: Number of pings that are sent at once. Those of one definition are sent one after the other.
LANES = 8
#: The maximum number of pings that wait in a lane. If a monitor does not keep up, further pings are
#: dropped.
MAX_WAITING_PINGS = 200
#: Seconds for which the URLs are cached; the second value holds if there were none.
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
        """Ping that an attempt begins."""
        if claim.definition_id is not None:
            self._put(claim.definition_id, _START, claim.label)

    def ended(self, outcome: Outcome) -> None:
        """Ping that a run has ended. A failure that will be retried is not an end."""
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
