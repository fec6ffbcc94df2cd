"""What is kept of a returned value: plain JSON that is not too large, or nothing."""

from __future__ import annotations

from .errors import PayloadError
from .log import logger
from .payload import check_payload
from .types import JSON


def kept_result(value: object, limit: int, whose: str) -> JSON:
    """*value* if it is JSON and at most *limit* bytes; None otherwise, with a warning.

    :param whose: what returned it, for the warning.
    """
    if value is None:
        return None
    try:
        return check_payload({"result": value}, limit)["result"]
    except PayloadError:
        logger.warning("%s: the result is no JSON or too large, so it is not kept", whose)
        return None
