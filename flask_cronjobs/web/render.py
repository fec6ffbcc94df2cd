"""Render pages and errors, build their URLs, and carry a message across a redirect."""

from __future__ import annotations

import gzip
import secrets
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, urlencode

from flask import Response, current_app, redirect, request, url_for
from flask.typing import ResponseReturnValue
from itsdangerous import BadData, URLSafeTimedSerializer
from jinja2 import Environment, FileSystemLoader
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from ..core.app_state import state_of
from ..db.schemas import how_to_create_tables
from ..errors import (
    CronJobsError,
    DatabaseTrouble,
    NotFound,
    StateConflict,
    TablesMissing,
    UnknownTask,
)
from ..insights.run_actions import CANCEL, DISCARD, RETRY, Action
from ..insights.run_detail import facts_of, own_facts
from ..insights.run_filters import FILTERS
from ..insights.schedule_needs import NEEDS
from ..insights.wait_reasons import WAITS
from ..log import __version__, logger
from ..text import humanize, printable, shortened
from . import TITLES, charts, format
from .format import Tone
from .guard import MACHINES, is_reader, may
from .params import MAX_TEXT, is_short

# Flask's flash would need a SECRET_KEY, and our pages would take the app's own flashed messages.
_COOKIE = "cronjobs_message"
# Browsers drop cookies over 4,096 bytes.
_LONGEST_MESSAGE = 300
_MESSAGE_SECONDS = 60
# The key for apps without a SECRET_KEY. Then only the process that made a message shows it.
_OWN_KEY = secrets.token_bytes(32)
#: The actions on many runs, by name.
ACTIONS: dict[str, Action] = {action.name: action for action in (RETRY, CANCEL, DISCARD)}
# The object that templates call ``say``.
_SAY = SimpleNamespace(
    **{**vars(humanize), **vars(format), **vars(charts)},
    facts_of=facts_of, own_facts=own_facts, NEEDS=NEEDS, FILTERS=FILTERS, WAITS=WAITS,
    ACTIONS=ACTIONS, MAX_TEXT=MAX_TEXT,
)  # fmt: skip


class Message(NamedTuple):
    """A message about an action, for the next page.

    :ivar run_id: the run to which it links.
    """

    tone: Tone
    text: str
    run_id: int | None = None


def page(template: str, status: int = 200, tone: Tone = "idle", **values: Any) -> Response:
    """Render ``cronjobs/<template>.html``.

    :param tone: the color of the favicon.
    :param values: the values that the template needs besides the common ones.
    """
    state = state_of()
    config = cast("Mapping[str, Any]", current_app.config)
    message = _message() if status < 400 and _COOKIE in request.cookies else None
    common: dict[str, Any] = {
        "say": _SAY,
        "tone": tone,
        "version": __version__,
        "app_state": state,
        "shown": state.settings.show_payload,
        "zone": state.settings.timezone,
        "message": message,
        "may_act": False,
        "may_read": True,
        "refresh": 0,
        "failed": status >= 500,
        "here": here(),
        "csrf_field": str(config.get("WTF_CSRF_FIELD_NAME", "csrf_token")),
        "csrf": None,
    }
    html = _templates().get_template(f"cronjobs/{template}.html").render(common | values)
    response = Response(html, status, mimetype="text/html")
    if message is not None:
        response.delete_cookie(_COOKIE, path=_path())
    return response


#: Bytes below which a page is not worth compressing.
_LEAST_PACKED = 1000


def _packed(response: Response, is_secret: bool) -> Response:
    """Give a page an ETag of its content, and compress it if the client accepts that.

    The ETag is for the script that refreshes a page, since caches may not keep pages. It leaves out
    the page's header, which shows the time.

    :param is_secret: whether the page has a token, which compression could reveal.
    """
    html = response.get_data()
    before, _, rest = html.partition(b"<header")
    response.set_etag(sha256(before + rest.partition(b"</header>")[2]).hexdigest()[:32], weak=True)
    if request.accept_encodings["gzip"] and len(html) > _LEAST_PACKED and not is_secret:
        response.set_data(gzip.compress(html, 5, mtime=0))
        response.headers["Content-Encoding"] = "gzip"
    response.vary.add("Accept-Encoding")
    response.make_conditional(request)
    return response


#: Seconds after which the script refreshes a page.
REFRESH_SECONDS = 15


def reader_page(
    template: str, content: Any = None, tone: Tone = "idle", *, status: int = 200, **values: Any
) -> Response:
    """Render a page for a user who may read; show buttons if the user may act.

    :param content: the content of the page. If it is given, the page is refreshed, and shows the
        content's ``now``. *values* may override ``refresh`` and ``now``.
    """
    may_act = may("act")
    values |= {"may_act": may_act, "csrf": _csrf() if may_act else None, "content": content}
    if content is not None:
        values = {"refresh": REFRESH_SECONDS, "now": getattr(content, "now", None), **values}
    return _packed(page(template, status, tone, **values), is_secret=values["csrf"] is not None)


#: The pages to which actions return, with the parameters that their URLs keep.
_PLACES = ("status", "runs", "workers", "definition")
_KEPT = ("name", "sort", "page", "task", "batch", "key")


def here() -> str:
    """Return the value of the form field ``back``: this page, and the URL parameters to keep."""
    arguments = {name: request.args.get(name, "") for name in _KEPT}
    parameters = {name: value for name, value in arguments.items() if value and is_short(value)}
    endpoint = (request.endpoint or "").rpartition(".")[2]
    return f"{endpoint}?{urlencode(parameters)}"


def sent_from(default: str) -> tuple[str, dict[str, str]]:
    """Return the page that sent the form, as a name and the values of its URL."""
    endpoint, _, query = request.form.get("back", "").partition("?")
    if endpoint not in _PLACES:
        return default, {}
    return endpoint, {name: value for name, value in parse_qsl(query) if name in _KEPT}


def back(endpoint: str, message: Message, **values: Any) -> AnyResponse:
    """Redirect to a page that shows *message*.

    :param endpoint: the page.
    :param values: the values of its URL.
    """
    config = cast("Mapping[str, Any]", current_app.config)
    response = redirect(url_for(f".{endpoint}", **values, _anchor="message"), 303)
    text = shortened(message.text, _LONGEST_MESSAGE)
    response.set_cookie(
        _COOKIE,
        str(_serializer().dumps([message.tone, text, message.run_id])),
        max_age=_MESSAGE_SECONDS,
        path=_path(),
        secure=request.is_secure or bool(config.get("SESSION_COOKIE_SECURE")),
        httponly=True,
        samesite="Strict",
    )
    return response


@cache
def _templates() -> Environment:
    """Return the environment of our templates.

    The app's environment may have other delimiters, and its globals, filters and context processors
    may use our names.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        # Form fields must keep their values unchanged, so templates pass these through the filter
        # `e`: the result is markup, which `_printable` does not clean.
        autoescape=True,
        finalize=_printable,
        auto_reload=False,
    )
    names: dict[str, Any] = environment.globals
    names |= {"url_for": url_for, "request": request}
    return environment


def _printable(value: object) -> object:
    """Clean a text for a page; the markup that macros return is clean already."""
    return printable(value) if type(value) is str else value


def _message() -> Message | None:
    """Return the message of the last action."""
    try:
        return Message(*_serializer().loads(request.cookies.get(_COOKIE, ""), _MESSAGE_SECONDS))
    except BadData:
        return None


def _serializer() -> URLSafeTimedSerializer:
    """Return the serializer of the message.

    The message is signed, since other subdomains can set cookies for this site.
    """
    config = cast("Mapping[str, Any]", current_app.config)
    key: object = config.get("SECRET_KEY") or _OWN_KEY
    return URLSafeTimedSerializer(cast("str | bytes", key), salt=_COOKIE)


def _path() -> str:
    return url_for(".status").partition("?")[0]  # The app's url_defaults may add a query.


def _csrf() -> str | None:
    """Return the token of the app's CSRF protection, if there is one."""
    make = cast("Mapping[str, object]", current_app.jinja_env.globals).get("csrf_token")
    try:
        return str(make()) if callable(make) else None
    except Exception:  # The pages are still shown; only their forms are refused.
        logger.exception("The app's csrf_token() raised, so forms of the job pages have no token")
        return None


#: Seconds after which a page is requested again if its server or database has failed.
RETRY_AFTER_SECONDS = 10
#: The maximum number of characters of a message that are shown.
_LONGEST_ERROR = 500
_CODES: tuple[tuple[type[CronJobsError], int], ...] = (
    (NotFound, 404),
    (StateConflict, 409),
    (UnknownTask, 409),
    (TablesMissing, 503),
    (DatabaseTrouble, 503),
)


def http_failure(error: HTTPException) -> ResponseReturnValue:
    """Render an HTTP error, of ours or of the app's other extensions."""
    code = error.code or 500
    unforeseen = getattr(error, "original_exception", None) is not None
    text = "The app's log says why." if unforeseen else error.description or error.name
    answer = failure(code, text)
    # Keep the headers of the error, such as Allow and Retry-After.
    for name, value in error.get_headers():
        if name.lower() not in ("content-type", "content-length"):
            answer.headers.setdefault(name, value)
    return answer


def own_failure(error: CronJobsError) -> ResponseReturnValue:
    """Render an error of ours."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), 400)
    if isinstance(error, TablesMissing):
        # The error names the host and the user of the database.
        logger.error("The job pages find no tables of this version: %s", error)
        text = (
            "Job tables are missing, or are of another version. "
            f"{how_to_create_tables(state_of().engine)}. The app's log says in which database."
        )
        return failure(code, text, title="The tables are missing")
    if code == 503:
        logger.error("The job pages cannot read the database: %s", error)
        then = "Try again in a moment."
        if isinstance(error, DatabaseTrouble) and error.unknown:
            then = "It is not known whether the change was committed. Check before you repeat it."
        return failure(code, f"The app's log says why. {then}")
    return failure(code, str(error))


def failure(code: int, text: str, title: str | None = None) -> Response:
    """Render *text* as a page, or as a line for machines.

    The text is cut, since it may repeat the request.
    """
    text = shortened(text, _LONGEST_ERROR)
    if request.endpoint in MACHINES:
        return Response(f"{text}\n", code, mimetype="text/plain")
    title = title or TITLES.get(code, TITLES[500])
    tone: Tone = "bad" if code >= 500 else "idle"
    refresh = RETRY_AFTER_SECONDS if code >= 500 and request.method == "GET" else 0
    # Users who may not read see only the message.
    return page(
        "failure", code, tone, title=title, text=text, may_read=is_reader(), refresh=refresh
    )
