"""Health, for uptime monitors: one word, open to all, and nothing else."""

from __future__ import annotations

from flask import Response
from flask.typing import ResponseReturnValue

from .. import report
from ..log import logger
from ..state import state_of


def health() -> ResponseReturnValue:
    """200 ``ok``; else 503 with ``never``, ``late``, ``overdue``, or ``down`` for the database."""
    try:
        word: str = report.verdict(state_of()).word
    except Exception as error:
        # Whatever it is, a monitor is to hear of it, and a stranger nothing more.
        logger.error("Health could not be read: %s: %s", type(error).__name__, error)
        word = "down"
    return Response(f"{word}\n", 200 if word == "ok" else 503, mimetype="text/plain")
