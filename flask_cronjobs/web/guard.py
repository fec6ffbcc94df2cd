"""Who may see and who may act: one check before every route of the pages."""

from __future__ import annotations

import hmac
import re
from urllib.parse import urlsplit
from weakref import WeakSet

from flask import Flask, Response, abort, current_app, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from ..log import logger
from ..state import State, state_of
from .routes import RIGHTS

_told: WeakSet[Flask] = WeakSet()

CLOSED = (
    "The job pages are closed: nobody has said who may see them. Give authorize= to CronJobs: a "
    'function that is asked "read" or "act" on every request. (In debug mode they are open.)'
)
_ELSEWHERE = (
    "The job pages were asked for as %r. In debug mode without authorize= they are open by the "
    "names of this machine alone: localhost, 127.0.0.1 and [::1]. Use one of those, or give "
    "authorize= to CronJobs."
)
_HERE = re.compile(r"(?i)(?:(?:[a-z0-9-]+\.)*localhost|127\.0\.0\.1|\[::1\])(?::[0-9]+)?")
#: In a request's environment: the guard let it read.
_READER = "flask_cronjobs.reader"


def check() -> ResponseReturnValue | None:
    """Let the current request pass, or end it.

    1. A route that is open passes; one for the tick token needs the token.
    2. Everything else needs the right to read.
    3. What acts needs also to come from a page of ours, and the right to act.
    """
    right = RIGHTS.get(request.endpoint or "", "act")
    if right == "open":
        return None
    if right == "token":
        return _check_token()
    refusal = _refusal("read")
    request.environ[_READER] = refusal is None
    if refusal is None and right == "act":
        if not is_same_origin():
            abort(403, "This did not come from a page of this site, so nothing was done.")
        refusal = _refusal("act")
    return refusal


def may(action: str) -> bool:
    """Whether the current request may *action*: to show no button that would be refused."""
    try:
        return _refusal(action) is None
    except HTTPException:
        return False


def is_reader() -> bool:
    """Whether the guard has let the current request read."""
    return request.environ.get(_READER) is True


def is_same_origin() -> bool:
    """Whether the browser says that a page of this very site sent the request.

    By ``Sec-Fetch-Site``; browsers send that to secure origins only, so where it is absent the host
    of ``Origin`` must be the one that was asked for. Its scheme must be https only where that is
    known to be the request's: behind a proxy that ends TLS it need not be.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    try:
        origin = urlsplit(request.headers.get("Origin", ""))
    except ValueError:
        return False
    if origin.scheme not in (("https",) if request.is_secure else ("http", "https")):
        return False
    return bool(origin.netloc) and origin.netloc.lower() == request.host.lower()


def _refusal(action: str) -> Response | AnyResponse | None:
    """None if `authorize` lets *action* pass; a response of its own; else it aborts."""
    state = state_of()
    if state.authorize is None:
        if current_app.debug and _HERE.fullmatch(request.host):
            return None
        if current_app.debug:
            # A page from elsewhere can make its own name mean this machine.
            _tell_once(state, _ELSEWHERE, request.host)
        else:
            _tell_once(state, CLOSED)
        abort(403, "These pages are closed. The log of the app says how to open them.")
    answer = _ask(state, action)
    if isinstance(answer, AnyResponse):
        return answer
    if answer is not True:
        what = "see these pages" if action == "read" else "do this"
        abort(403, f"You may not {what}.")
    return None


def _ask(state: State, action: str) -> bool | AnyResponse:
    """What `authorize` says, which may be anything: a status or a coroutine would be true."""
    assert state.authorize is not None
    try:
        answer: object = state.app.ensure_sync(state.authorize)(action)
        if isinstance(answer, AnyResponse):
            return answer
        if not answer:
            return False
        if isinstance(answer, int) and answer == 1:  # True, or 1 as a database gives it.
            return True
        raise TypeError(
            f"authorize returned {answer!r:.80}. Return True or False, or a response; or abort()."
        )
    except HTTPException:
        raise
    except Exception:
        logger.exception("authorize(%r) raised, so the job pages refused the request", action)
        abort(500, "It could not be told whether you may do this. The log says why.")


def _tell_once(state: State, message: str, *values: object) -> None:
    if state.app not in _told:
        _told.add(state.app)
        logger.warning(message, *values)


def _check_token() -> ResponseReturnValue | None:
    token = state_of().settings.tick_token
    if token is None:
        abort(404)
    given = request.authorization
    offered = given.token if given is not None and given.type == "bearer" else None
    if hmac.compare_digest((offered or "").encode(), token.encode()):
        return None
    return Response("unauthorized\n", 401, {"WWW-Authenticate": "Bearer"}, mimetype="text/plain")
