"""Send one HTTP request to a monitor or a webhook, within one deadline.

Only the host of its URL is logged, since the path is often a secret.
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

from ...core.background import BackgroundThread
from ...log import logger
from ...text.redaction import host_of

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
    """Return an http.client connection that *deadline* can cut, even with TLS or a proxy."""
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
