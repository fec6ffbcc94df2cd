"""Render errors, as a page for people or a line of text for machines."""

from __future__ import annotations

import json

from flask import Response, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from ..errors import (
    CronJobsError,
    DatabaseTrouble,
    NotFound,
    StateConflict,
    TablesMissing,
    UnknownTask,
)
from ..log import logger
from ..state import state_of
from ..store.engines import how_to_create_tables
from ..text import shortened
from .format import Tone
from .guard import is_reader
from .render import page, wants_json
from .routes import MACHINES

_TITLES = {
    400: "Bad request",
    401: "Please log in",
    403: "Not allowed",
    404: "Not found",
    409: "Nothing was changed",
    413: "Request too large",
    500: "Something went wrong",
    501: "Not installed",
    503: "The database does not answer",
}
#: How many characters of a message are shown.
_LONGEST = 500
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
            "The job tables do not exist, or are of another version. "
            f"{how_to_create_tables(state_of().engine)}. The app's log says in which database."
        )
        return failure(code, text, title="The tables are missing")
    if code == 503:
        logger.error("The job pages cannot read the database: %s", error)
        return failure(code, "The app's log says why. Try again in a moment.")
    return failure(code, str(error))


def failure(code: int, text: str, title: str | None = None) -> Response:
    """Render *text* as a page or, for machines, as a line; cut, since it may repeat the request."""
    text = shortened(text, _LONGEST)
    if wants_json():
        return Response(json.dumps({"error": text}), code, mimetype="application/json")
    if request.endpoint in MACHINES:
        return Response(f"{text}\n", code, mimetype="text/plain")
    title = title or _TITLES.get(code, "Something went wrong")
    tone: Tone = "bad" if code >= 500 else "idle"
    # Users who may not read see only the message.
    return page("failure", code, tone, title=title, text=text, may_read=is_reader())
