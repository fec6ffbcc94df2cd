"""Who may see and who may act: one check before every route of the pages."""

from __future__ import annotations

import hmac
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


def is_same_origin() -> bool:
    """Whether the browser says that a page of this very site sent the request.

    By ``Sec-Fetch-Site``; browsers send that to secure origins only, so where it is absent the host
    of ``Origin`` must be the one that was asked for. The scheme is left out of it: behind a proxy
    that ends TLS it need not be known here.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    try:
        origin = urlsplit(request.headers.get("Origin", ""))
    except ValueError:
        return False
    return origin.scheme in ("http", "https") and origin.netloc.lower() == request.host.lower()


def _refusal(action: str) -> Response | AnyResponse | None:
    """None if `authorize` lets *action* pass; a response of its own; else it aborts."""
    state = state_of()
    if state.authorize is None:
        if current_app.debug:
            return None
        _tell_once(state)
        abort(403, "These pages are closed. The log of the app says how to open them.")
    answer = _ask(state, action)
    if isinstance(answer, AnyResponse):
        return answer
    if not answer:
        what = "see these pages" if action == "read" else "do this"
        abort(403, f"You may not {what}.")
    return None


def _ask(state: State, action: str) -> object:
    """What `authorize` says, which may be anything: only true, false and a response are taken."""
    assert state.authorize is not None
    try:
        # An async function's coroutine would be true.
        answer: object = state.app.ensure_sync(state.authorize)(action)
        if answer and not isinstance(answer, (bool, int, AnyResponse)):
            raise TypeError(f"authorize returned {type(answer).__name__}: return True or False.")
    except HTTPException:
        raise
    except Exception:
        logger.exception("authorize(%r) raised, so the job pages refused the request", action)
        abort(500, "It could not be told whether you may do this. The log says why.")
    return answer


def _tell_once(state: State) -> None:
    if state.app not in _told:
        _told.add(state.app)
        logger.warning(CLOSED)


def _check_token() -> ResponseReturnValue | None:
    token = state_of().settings.tick_token
    if token is None:
        abort(404)
    given = request.authorization
    offered = given.token if given is not None and given.type == "bearer" else None
    if hmac.compare_digest((offered or "").encode(), token.encode()):
        return None
    return Response("unauthorized\n", 401, {"WWW-Authenticate": "Bearer"}, mimetype="text/plain")
