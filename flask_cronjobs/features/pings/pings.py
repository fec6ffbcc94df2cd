"""Tell monitors by their URLs: of ticks, and of the runs of definitions.

Ticks fetch ``CRONJOBS_PING_URL``, since a dead cron cannot report itself. For a definition there is
``ping=``; the paths are those of Healthchecks: the URL and ``/start`` when an attempt begins, the
URL itself when the run has succeeded, and ``/fail`` when it ended otherwise. What a run is for, its
label, is the body of a POST; a monitor that takes no POST gets a GET.

A monitor that hangs may hold up a thread of ours, but not a keeper, which renews leases.
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


#: Seconds that a ping may take in all, looking up the name included.
TIMEOUT = 5.0
PLAIN = "text/plain; charset=utf-8"
#: What monitors answer that take no POST, or redirect, which would lose the body of one.
_REDIRECTS = (301, 302, 303, 307, 308)
_NO_POST = (404, 405, *_REDIRECTS)


def ping(
    url: str | None,
    body: bytes | None = None,
    kind: str = "application/json",
    what: str = "The ping",
) -> bool:
    """Fetch *url*. Never raises, and never takes longer than `TIMEOUT`.

    A tick that fails pings nothing: for a monitor of heartbeats, silence is the alarm.

    :param url: ``CRONJOBS_PING_URL``, or None for no ping. Only its host is ever logged, since the
        path of such a URL is often its secret.
    :param body: what to POST there, of this *kind*. A monitor that refuses POST, or redirects it,
        gets a GET in place of plain text. No other body is redirected.
    :param what: what it is, for the log.
    :returns: whether it answered that all is well.
    """
    if url is None:
        return False
    answers: list[bool] = []
    deadline = _Deadline(TIMEOUT)
    # In a thread, since nothing can interrupt a name look-up.
    fetching: BackgroundThread[str] = BackgroundThread(
        "cronjobs-ping", lambda place: answers.append(_fetch(place, body, kind, deadline, what))
    )
    try:
        fetching.put(url)
    except RuntimeError as error:
        logger.warning("%s was not sent: %s", what, error)
    if not fetching.close(TIMEOUT):
        deadline.end()
        logger.warning("%s to %s took longer than %g s and was left", what, host_of(url), TIMEOUT)
    return answers == [True]


class _Deadline:
    """The end of one ping. It cuts the connection, so that the thread of the ping ends, too.

    The timeout of a socket does not: it begins again with each byte that the monitor sends.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._at = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._copies: list[socket.socket] = []

    def connect(self, address: tuple[str, int], *_: object) -> socket.socket:
        """Return a connection to *address* that `end` cuts.

        :raises OSError: there is none, or no time is left.
        """
        failure: OSError = TimeoutError("no address")
        for family, kind, protocol, _name, place in socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM
        ):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(self._left())
                connection.connect(place)
                self._note(connection)
            except OSError as error:
                connection.close()
                failure = error
            else:
                return connection
        raise failure

    def end(self) -> None:
        """Cut what is connected, and let nothing more be connected."""
        with self._lock:
            self.is_over = True
            for copy in self._copies:
                with suppress(OSError):  # The other side has ended it.
                    copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free what `connect` has kept."""
        with self._lock:
            for copy in self._copies:
                copy.close()
            self._copies.clear()

    def _left(self) -> float:
        left = self._at - time.monotonic()
        if left <= 0 or self.is_over:
            raise TimeoutError
        return left

    def _note(self, connection: socket.socket) -> None:
        with self._lock:
            self._left()
            # A copy, since TLS detaches the socket itself before its handshake.
            self._copies.append(connection.dup())


def _fetch(url: str, body: bytes | None, kind: str, deadline: _Deadline, what: str) -> bool:
    try:
        opener, request = _opener(deadline, body is None), _request(url, body, kind)
        with opener.open(request, timeout=TIMEOUT) as response:
            response.read(1)
    except Exception as error:
        status = getattr(error, "code", "")
        if status in _NO_POST and body is not None and kind == PLAIN:
            return _fetch(url, None, kind, deadline, what)
        if not deadline.is_over:
            advice = ". It redirects: set the URL to which it does" if status in _REDIRECTS else ""
            logger.warning("%s to %s failed: %s%s", what, host_of(url), _reason(error), advice)
        return False
    finally:
        deadline.close()
    return True


def _reason(error: BaseException) -> str:
    """Return why a request failed, without the text of the error, which can hold the URL.

    A status has its usual words, and an error of the system those of the system.
    """
    name = type(error).__name__
    status = getattr(error, "code", None)
    if isinstance(status, int):
        return f"{name} {status} {responses.get(status, '')}".rstrip()
    cause = getattr(error, "reason", error)
    words = cause.strerror if isinstance(cause, OSError) else None
    return f"{name}: {words}" if words else name


def _opener(deadline: _Deadline, follows: bool) -> OpenerDirector:
    """Return an opener that follows http and https only, also when it is redirected.

    :param follows: whether it follows a redirect. It sends no body again: after most redirects, a
        POST becomes a GET, so a message would be lost and yet be answered.
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
    bare = SplitResult(parts.scheme, place, parts.path, parts.query, "")
    headers = {"User-Agent": "Flask-CronJobs"}
    if body is not None:
        headers["Content-Type"] = kind
    request = Request(urlunsplit(bare), body, headers)
    if userinfo:
        name, _, password = userinfo.partition(":")
        credentials = f"{unquote(name)}:{unquote(password)}".encode()
        # Not sent on to another host by a redirect.
        request.add_unredirected_header(
            "Authorization", "Basic " + base64.b64encode(credentials).decode()
        )
    return request


#: How many pings are under way at once. Those of one definition go one after the other.
LANES = 8
#: How many wait for each. Beyond that the monitor does not keep up, and they are dropped.
WAITING_IN_LANE = 200
#: For how long the URLs that were read are used, in seconds; and where there were none.
FRESH, FRESH_IF_NONE = 2.0, 60.0
#: How long what waits may take when the worker ends, in seconds.
CLOSE_WITHIN = 20.0
#: For how many seconds to try to read the URLs.
READ_FOR = 2.0

_START = "/start"
_PATHS = {"succeeded": "", "dead": "/fail", "cancelled": "/fail"}


class Pings:
    """Pings in threads of its own, so that no worker waits for a monitor.

    `started`, `ended` and `close` may be called from any thread. An attempt's start must be told
    before its end.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._lanes = [
            BackgroundThread("cronjobs-pings", self._send, WAITING_IN_LANE) for _ in range(LANES)
        ]
        self._reading = threading.Lock()
        self._urls: dict[int, str] = {}
        self._fresh_until = 0.0

    def started(self, claim: Claim) -> None:
        """Tell that an attempt begins."""
        if claim.definition_id is not None:
            self._put(claim.definition_id, _START, claim.label)

    def ended(self, outcome: Outcome) -> None:
        """Tell that a run has ended. A failure that will be retried is none."""
        if outcome.definition_id is not None and outcome.kind in _PATHS:
            self._put(outcome.definition_id, _PATHS[outcome.kind], outcome.label)

    def close(self, patience: float = CLOSE_WITHIN) -> None:
        """Wait until all is told, but no longer than *patience* seconds, nor `CLOSE_WITHIN`."""
        patience = min(patience, CLOSE_WITHIN)
        until = time.monotonic() + patience
        in_time = [lane.close(max(0.0, until - time.monotonic())) for lane in self._lanes]
        if not all(in_time):
            logger.warning("Pings of definitions took longer than %g s and were left", patience)

    def _put(self, definition_id: int, path: str, label: str | None) -> None:
        try:
            if not self._lanes[definition_id % LANES].put((definition_id, path, label)):
                logger.warning(
                    "A ping of a definition was dropped: %d wait for their monitor", WAITING_IN_LANE
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
        except Exception as error:  # A URL that somebody wrote into the table; it is a secret.
            logger.warning("A ping of a definition was not sent: %s", type(error).__name__)

    def _url(self, definition_id: int) -> str | None:
        with self._reading:
            if time.monotonic() >= self._fresh_until:
                with Bookkeeping(self._state.engine, patience=READ_FOR) as books:
                    self._urls = ping_urls(books)
                self._fresh_until = time.monotonic() + (FRESH if self._urls else FRESH_IF_NONE)
            return self._urls.get(definition_id)


def _with_path(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path)) if path else url
