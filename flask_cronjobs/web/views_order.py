"""The page of keys in strict order."""

from __future__ import annotations

from flask import request
from flask.typing import ResponseReturnValue

from .. import report
from ..state import state_of
from .params import clamped
from .render import reader_page
from .views import REFRESH

#: A concurrency key has no more characters.
_LONGEST = 500


def order() -> ResponseReturnValue:
    """Render the keys whose runs wait for one another; with ``?stopped=1``, those stopped."""
    stopped = request.args.get("stopped") == "1"
    after = request.args.get("after", "")[:_LONGEST].replace("\0", "")
    limit = clamped(request.args, "limit", 50)
    found = report.key_orders(state_of(), stopped=stopped, after=after, limit=limit)
    return reader_page(
        "order",
        found=found,
        stopped=stopped,
        after=after,
        now=found.now,
        refresh=0 if after else REFRESH,
        data={"keys": found.rows, "after": found.next},
    )
