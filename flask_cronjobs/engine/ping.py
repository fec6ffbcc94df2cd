"""Fetch the URL of a monitor, to tell that ticks run, since a dead cron cannot report itself."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ..log import logger
from ..text import host_of

if TYPE_CHECKING:
    from urllib.request import OpenerDirector, Request

#: Seconds that a ping may take in all, looking up the name included.
TIMEOUT = 5.0


def ping(url: str | None, timeout: float = TIMEOUT) -> bool:
    """Fetch *url*. Never raises, and never takes longer than *timeout*.

    A tick that fails pings nothing: for a monitor of heartbeats, silence is the alarm.

    :param url: ``CRONJOBS_PING_URL``, or None for no ping. Only its host is ever logged, since the
        path of such a URL is often its secret.
    :param timeout: seconds, at most 5.
    :returns: whether the monitor answered.
    """
    if url is None:
        return False
    answered: list[bool] = []
    timeout = min(timeout, TIMEOUT)
    # In a thread: no timeout of ours covers a name look-up, or a server that answers byte by byte.
    thread = threading.Thread(
        target=_fetch, args=(url, timeout, answered), name="cronjobs-ping", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:
        logger.warning("The ping was not sent: %s", error)
        return False
    thread.join(timeout)
    if thread.is_alive():
        logger.warning("The ping to %s took longer than %g s and was left", host_of(url), timeout)
    return bool(answered)


def _fetch(url: str, timeout: float, answered: list[bool]) -> None:
    try:
        with _opener().open(_request(url), timeout=timeout) as response:
            response.read(1)
        answered.append(True)
    except Exception as error:
        # The text of the error can hold the URL, so only its type and a status are logged.
        status = getattr(error, "code", "")
        logger.warning("The ping to %s failed: %s %s", host_of(url), type(error).__name__, status)


def _opener() -> OpenerDirector:
    """Return an opener that follows http and https only, also when it is redirected."""
    from urllib import request

    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPRedirectHandler(),
        request.HTTPErrorProcessor(),
        request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _request(url: str) -> Request:
    """Return a request for *url*, with the name and password in it as a header."""
    from urllib.request import Request

    parts = urlsplit(url)
    userinfo, _, place = parts.netloc.rpartition("@")
    bare = SplitResult(parts.scheme, place, parts.path, parts.query, "")
    request = Request(urlunsplit(bare), headers={"User-Agent": "Flask-CronJobs"})
    if userinfo:
        name, _, password = userinfo.partition(":")
        credentials = f"{unquote(name)}:{unquote(password)}".encode()
        # Not sent on to another host by a redirect.
        request.add_unredirected_header(
            "Authorization", "Basic " + base64.b64encode(credentials).decode()
        )
    return request
