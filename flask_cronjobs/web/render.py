"""Rendering: what every page has in common, and the one message that survives a redirect."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, unquote

from flask import Response, current_app, make_response, redirect, render_template, request, url_for
from jinja2 import Environment
from werkzeug.wrappers import Response as AnyResponse

from ..state import state_of
from . import format
from .format import Tone
from .guard import may

#: Shown at the foot of each page, and part of the URLs of static files.
VERSION = version("Flask-CronJobs")
# Not Flask's flash: that needs a SECRET_KEY, and reading it would eat the app's own messages.
_SAID = "cronjobs_said"
# Percent-encoded a character can take 12 bytes, and a browser drops a cookie over 4,096.
_LONGEST_MESSAGE = 300
_TEMPLATES = "cronjobs.templates"


def page(template: str, status: int = 200, tone: Tone = "idle", **values: Any) -> Response:
    """A page from ``cronjobs/<template>.html``.

    :param tone: how the favicon looks.
    """
    message = _message() if status < 400 else None
    # The pages' own first: an app's StrictUndefined must find nothing missing.
    common: dict[str, Any] = {
        "say": format,
        "tone": tone,
        "version": VERSION,
        "zone": state_of().settings.timezone,
        "message": message,
        "may_act": False,
        "may_read": True,
        "refresh": 0,
        "csrf_field": _csrf_field(current_app.config),
        "csrf": None,
    }
    source = _templates().get_template(f"cronjobs/{template}.html")
    html = render_template(source, **(common | values))
    response = make_response(html, status)
    if message is not None:
        response.delete_cookie(_SAID, path=_path())
    return response


def reader_page(template: str, tone: Tone = "idle", **values: Any) -> Response:
    """A page for whom `authorize` let read; it shows buttons if it lets act, too."""
    may_act = may("act")
    return page(template, tone=tone, may_act=may_act, csrf=_csrf() if may_act else None, **values)


def back(endpoint: str, said: str, tone: Tone = "good", **values: Any) -> AnyResponse:
    """A redirect to a page of ours, which will show *said*.

    :param values: for the URL.
    """
    response = redirect(url_for(f".{endpoint}", **values), 303)
    response.set_cookie(
        _SAID,
        quote(_shortened(f"{tone} {said}")),
        max_age=60,
        path=_path(),
        secure=request.is_secure or _is_secure(current_app.config),
        httponly=True,
        samesite="Strict",
    )
    return response


def _templates() -> Environment:
    """The app's templates, where all is escaped, whatever the app does for its own."""
    kept: dict[str, Any] = current_app.extensions
    if _TEMPLATES not in kept:
        kept[_TEMPLATES] = current_app.jinja_env.overlay(autoescape=True)
    templates: Environment = kept[_TEMPLATES]
    return templates


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"


def _message() -> tuple[str, str] | None:
    """Tone and text of what the last action said."""
    tone, _, said = unquote(request.cookies.get(_SAID, ""))[:_LONGEST_MESSAGE].partition(" ")
    if not said:
        return None
    return (tone if tone in ("good", "bad") else "idle"), said


def _path() -> str:
    return url_for(".overview")


def _csrf() -> str | None:
    """The token of the app's CSRF protection, if it has one that gives it to templates."""
    make: object = _jinja_globals().get("csrf_token")
    return str(make()) if callable(make) else None


def _csrf_field(config: Mapping[str, Any]) -> str:
    return str(config.get("WTF_CSRF_FIELD_NAME", "csrf_token"))


def _is_secure(config: Mapping[str, Any]) -> bool:
    return bool(config.get("SESSION_COOKIE_SECURE"))


def _jinja_globals() -> dict[str, Any]:
    return current_app.jinja_env.globals
