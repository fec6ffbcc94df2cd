"""The pages for operators, and the routes for machines: health, metrics, and a tick by URL.

Here the blueprint gets its routes, the guard before each request, and the headers after it.
Importing this package must be fast, since every tick does it. The first request that needs a view
imports the view's module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from flask import Blueprint, Flask, Response, abort, request
from flask.blueprints import BlueprintSetupState
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from ..core.app_state import state_of
from ..errors import CronJobsError
from ..types import MAX_ID
from . import guard
from .guard import NAME, ROUTES

#: Pages load nothing from other sites and nothing inline. ``connect-src`` lets them refresh.
CSP = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: The title of an error's page by its code. Our handler is registered for each code; otherwise an
#: app's handler for that code would come first.
TITLES = {
    400: "Bad request",
    401: "Please log in",
    403: "Not allowed",
    404: "Not found",
    405: "Not a page",
    409: "Nothing was changed",
    413: "Request too large",
    500: "Something went wrong",
    501: "Not installed",
    503: "The database does not answer",
}


def create_blueprint() -> Blueprint:
    """Create the blueprint ``cronjobs``."""
    blueprint = Blueprint(
        NAME,
        __name__,
        static_folder="static",
        static_url_path="/cronjobs-static",  # At the root, /static is the app's own.
    )
    for route in ROUTES:
        view = _later(route.view)
        blueprint.add_url_rule(route.rule, route.endpoint, view, methods=route.methods)
    blueprint.before_request(guard.check)
    blueprint.after_request(_add_headers)
    for code in TITLES:
        blueprint.register_error_handler(code, _later("render:http_failure"))
    blueprint.register_error_handler(HTTPException, _later("render:http_failure"))
    blueprint.register_error_handler(CronJobsError, _later("render:own_failure"))
    blueprint.record_once(_exempt_tick)
    return blueprint


def _later(name: str) -> Callable[..., ResponseReturnValue]:
    """Return a function that imports the view *name* at its first call, and calls it.

    :param name: ``module:function``, in a module of this package; for a route with ``act`` in its
        rule, the function has ``{act}`` in its name.
    """

    def call(*args: Any, act: str = "", **values: Any) -> ResponseReturnValue:
        if values.get("run_id", 0) > MAX_ID:
            abort(404, f"There is no run {str(values['run_id'])[:20]}.")
        return _imported(name.format(act=act))(*args, **values)

    # Flask-WTF exempts views by name.
    call.__name__ = call.__qualname__ = name
    return call


@cache
def _imported(name: str) -> Callable[..., ResponseReturnValue]:
    module, _, function = name.partition(":")
    view: Callable[..., ResponseReturnValue]
    view = getattr(import_module(f"{__name__}.{module}"), function)
    return view


def _add_headers(response: Response) -> Response:
    headers = response.headers
    headers["Content-Security-Policy"] = CSP
    headers["X-Content-Type-Options"] = "nosniff"
    # With no-referrer, browsers would send "Origin: null" with a form.
    headers["Referrer-Policy"] = "same-origin"
    headers["X-Frame-Options"] = "DENY"
    # A public cache would keep the session cookie that the app may set with any response.
    cacheable = request.endpoint == f"{NAME}.static" and response.status_code in (200, 304)
    headers["Cache-Control"] = "private, max-age=3600" if cacheable else "no-store"
    return response


def _exempt_tick(setup: BlueprintSetupState) -> None:
    """Exempt the tick by URL from Flask-WTF's CSRF check, since it uses a token and no cookie."""
    app = setup.app
    assert isinstance(app, Flask)
    endpoint = f"{NAME}.tick"

    def exempt() -> None:
        csrf = app.extensions.get("csrf")
        if csrf is not None and hasattr(csrf, "exempt"):
            csrf.exempt(app.view_functions[endpoint])

    def exempt_later() -> None:
        if request.endpoint == endpoint:
            exempt()

    if state_of(app).settings.tick_token is not None:
        exempt()
        # If CSRFProtect is initialized later, its check runs after this function.
        app.before_request(exempt_later)
