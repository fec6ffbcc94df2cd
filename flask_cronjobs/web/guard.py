"""The routes of the pages with the rights that they need, and the check before each request."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit
from weakref import WeakSet

from flask import Flask, Response, abort, current_app, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.wrappers import Response as AnyResponse

from ..core.app_state import State, Throttle, state_of
from ..log import logger

NAME = "cronjobs"

#: The users of a route. ``open``: everyone. ``token``: callers with the tick token. ``read`` and
#: ``act``: users whom `authorize` allows; to act, a user also needs the right to read. ``form``: a
#: page with a form, for users who may act.
Right: TypeAlias = Literal["open", "token", "read", "form", "act"]


class Route(NamedTuple):
    """A route, whose view is a function in a module of this package, as ``module:function``.

    A route with ``act`` in its rule serves several views, such as ``actions:run_retry`` and
    ``actions:run_cancel``, since each route adds 0.3 ms to an app's start.
    """

    rule: str
    endpoint: str
    view: str
    right: Right

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that reach the guard: ``GET`` for pages, ``GET`` and ``POST`` for actions.

        The tick accepts all methods, since a 405 would reveal that the route exists; the guard lets
        two of them pass. Actions accept ``GET``, so that the guard can render our page for a 405.
        """
        if self.right == "token":
            return ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
        return ("GET", "POST") if self.right == "act" else ("GET",)


ROUTES: tuple[Route, ...] = (
    Route("/", "status", "status:status", "read"),
    Route("/runs", "runs", "runs:runs", "read"),
    Route("/workers", "workers", "status:workers", "read"),
    Route("/runs/<int:run_id>", "run", "runs:run", "read"),
    Route("/definition", "definition", "status:definition", "read"),
    Route("/runs/<int:run_id>/edit", "edit", "actions:edit", "form"),
    Route("/run", "prepare", "actions:prepare", "form"),
    Route("/runs/bulk", "bulk", "bulk:bulk", "read"),
    Route("/metrics", "metrics", "monitoring:metrics", "read"),
    Route("/health", "health", "monitoring:health", "open"),
    Route("/tick", "tick", "monitoring:tick", "token"),
    Route(
        "/runs/<int:run_id>/<any(retry, cancel, discard, again):act>",
        *("run_act", "actions:run_{act}", "act"),
    ),
    Route("/runs/bulk/act", "bulk_act", "bulk:bulk_act", "act"),
    Route(
        "/definitions/<any(run, remove):act>",
        *("definition_act", "actions:definition_{act}", "act"),
    ),
    Route("/<any(pause, resume):act>", "work_act", "actions:work_{act}", "act"),
    Route("/dead/retry", "dead_retry", "actions:dead_retry", "act"),
    Route("/batches/<any(retry, cancel, close):act>", "batch_act", "actions:batch_{act}", "act"),
    Route("/effects/<any(done, redo):act>", "effect_act", "actions:effect_{act}", "act"),
)

RIGHTS: dict[str, Right] = {
    f"{NAME}.static": "open",
    **{f"{NAME}.{route.endpoint}": route.right for route in ROUTES},
}

#: The routes for machines, which answer in plain text or JSON, even on errors.
MACHINES = frozenset(f"{NAME}.{endpoint}" for endpoint in ("health", "metrics", "tick", "static"))

#: The apps that have logged a warning of this module already.
_warned: WeakSet[Flask] = WeakSet()

CLOSED = (
    "The job pages are closed, since the app does not say who may see them. Give authorize= to "
    'CronJobs: a function that is called with "read" or "act" on every request. (In debug mode '
    "they are open to this machine.)"
)
_ELSEWHERE = (
    "The job pages were requested at the host %r. In debug mode without authorize= they are open "
    "at localhost, 127.0.0.1 and [::1] only. Use one of those, or give authorize= to CronJobs."
)
_PEER = (
    "The job pages were requested from another machine, %s. In debug mode without authorize= they "
    "are open to this machine only. Give authorize= to CronJobs."
)
_PROXY = (
    "The job pages were requested through a proxy, which sent the header %s. In debug mode without "
    "authorize= they are open to direct requests from this machine only. Give authorize= to "
    "CronJobs, or use the address of the app itself."
)
#: Headers in which a proxy names its client, besides those that begin with X-Forwarded-.
_FORWARDED = ("forwarded", "via")
_HERE = r"(?i)(?:(?:[a-z0-9-]+\.)*localhost|127\.0\.0\.1|\[::1\])(?::[0-9]+)?"
#: Limits the warnings about wrong tick tokens, since anyone can cause them.
_wrong_token = Throttle()
_SECONDS_BETWEEN_WARNINGS = 60.0
#: The maximum number of characters of a client's text that the log repeats.
_LONGEST_SHOWN = 200
#: The parameters that start a search in texts.
_SEARCHES = ("q", "error")
#: The key in a request's environment for whether the user may read.
_READER = "flask_cronjobs.reader"


def check() -> ResponseReturnValue | None:
    """Let the current request pass, or refuse it.

    1. Open routes pass; the route of the tick does not exist without its token.
    2. All other routes need the right to read, and pages of other sites may not fetch them.
    3. Requests that change something also need the right to act, and must come from our own pages.
    """
    right = RIGHTS.get(request.endpoint or "", "act")
    if right == "open":
        return None
    if right == "token":
        _check_token()
        return None
    if _is_read_by_another_site():
        abort(403, "Another site requested this page, so it is not shown. Open it yourself.")
    if _is_search_from_elsewhere():
        abort(
            403,
            "A link on another site led to this search. To search, go to the address bar "
            "and press Enter.",
        )
    refusal = _refusal("read")
    request.environ[_READER] = refusal is None
    is_action = RIGHTS.get(request.endpoint or "") == "act"
    if refusal is None and is_action and request.method != "POST":
        raise MethodNotAllowed(["POST"])
    if refusal is None and right in ("act", "form"):
        if right == "act" and not is_same_origin():
            abort(
                403,
                "This request did not come from a page of this site, so nothing was done. Reload "
                "the page, then try again.",
            )
        refusal = _refusal("act")
    return refusal


def may(action: str) -> bool:
    """Return whether the user may *action*, so that buttons that would be refused are hidden."""
    try:
        return _refusal(action) is None
    except HTTPException:
        return False


def is_reader() -> bool:
    """Return whether the guard has let the current request read."""
    return request.environ.get(_READER) is True


def _is_read_by_another_site() -> bool:
    """Return whether a page of another site or subdomain fetches or frames this page.

    Such a page could not read the response, but it could measure its time. A user who follows a
    link may pass.
    """
    headers = request.headers
    if headers.get("Sec-Fetch-Site") not in ("cross-site", "same-site"):
        return False
    follows_link = headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
    return not follows_link or headers.get("Sec-Fetch-Dest", "document") != "document"


def _is_search_from_elsewhere() -> bool:
    """Return whether another site has opened a search.

    It is refused, since that site could measure how long the search takes.
    """
    is_search = any(request.args.get(name, "").strip() for name in _SEARCHES)
    return is_search and request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")


def is_same_origin() -> bool:
    """Return whether a page of this site sent the request, as the browser reports it.

    Browsers send ``Sec-Fetch-Site`` to secure origins only. If it is absent, the host of ``Origin``
    must be the request's. An ``http`` origin is refused only if the request is known to be https,
    since behind a proxy that ends TLS, an https request may look like http.
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
    """Return None if `authorize` allows *action*, or the response that it returned; else abort."""
    state = state_of()
    if state.authorize is None:
        if _is_open_for_debugging(state):
            return None
        abort(403, "These pages are closed. The app's log says how to open them.")
    answer = _ask(state, action)
    if isinstance(answer, AnyResponse):
        return answer
    if answer is not True:
        what = "see these pages" if action == "read" else "do this"
        abort(403, f"You may not {what}.")
    return None


def _is_open_for_debugging(state: State) -> bool:
    """Return whether debug mode opens the pages to this request; if not, log the reason once."""
    elsewhere = next((peer for peer in _peers() if not _is_loopback(peer)), None)
    forwarded = next((name for name, _ in request.headers if _is_of_a_proxy(name)), None)
    if not current_app.debug:
        _warn_once(state, CLOSED)
    elif not re.fullmatch(_HERE, request.host):
        # Another site can make its own name resolve to this machine.
        _warn_once(state, _ELSEWHERE, request.host[:_LONGEST_SHOWN])
    elif elsewhere is not None:
        # Another machine can send any Host.
        _warn_once(state, _PEER, repr(elsewhere[:_LONGEST_SHOWN]))
    elif forwarded is not None:
        # A proxy on this machine may act for any other machine.
        _warn_once(state, _PROXY, forwarded[:_LONGEST_SHOWN])
    else:
        return True
    return False


def _is_of_a_proxy(header: str) -> bool:
    name = header.lower()
    return name in _FORWARDED or name.startswith("x-forwarded-")


def _peers() -> Iterator[str]:
    """Yield the address of the peer, and the original address if `ProxyFix` has replaced it."""
    yield request.environ.get("REMOTE_ADDR") or ""
    original: Mapping[str, str | None] = request.environ.get("werkzeug.proxy_fix.orig") or {}
    if "REMOTE_ADDR" in original:
        yield original["REMOTE_ADDR"] or ""


def _is_loopback(address: str) -> bool:
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback


def _ask(state: State, action: str) -> bool | AnyResponse:
    """Call `authorize`; return whether it returned True, or return its response.

    Any other true value, such as a member of an enumeration of roles, is an error.
    """
    assert state.authorize is not None
    try:
        answer: object = state.app.ensure_sync(state.authorize)(action)
        if isinstance(answer, AnyResponse):
            return answer
        if answer is True or not answer:
            return answer is True
        raise TypeError(
            f"authorize returned {answer!r:.80}. Return True or False, or a response; or abort()."
        )
    except HTTPException:
        raise
    except Exception:
        logger.exception("authorize(%r) raised, so the job pages refused the request", action)
        abort(500, "Your permission could not be checked. The app's log says why.")


def _warn_once(state: State, message: str, *values: object) -> None:
    if state.app not in _warned:
        _warned.add(state.app)
        logger.warning(message, *values)


def _check_token() -> None:
    """Let a GET or POST with the tick token pass; answer others like requests to unknown routes.

    GET is allowed since the cron of many platforms sends nothing else. Browsers do not send the
    header, so a page or a prefetch cannot tick. A token in the URL is ignored: logs keep URLs.
    """
    token = state_of().settings.tick_token
    if token is not None and request.method in ("GET", "POST"):
        header = request.authorization
        bearer = header.token if header is not None and header.type == "bearer" else None
        if hmac.compare_digest((bearer or "").encode(), token.encode()):
            return
        if _wrong_token.ready():
            _wrong_token.block_for(_SECONDS_BETWEEN_WARNINGS)
            logger.warning(
                "A tick by URL was refused with 404, since its bearer token is not "
                "CRONJOBS_TICK_TOKEN"
            )
    # If the request has no rule, the blueprint's error handlers and headers do not apply.
    request.url_rule = None
    abort(404)
