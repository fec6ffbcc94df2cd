"""Tell ``CRONJOBS_ALERT_URL`` of what begins to need a person, and of what ends.

A tick looks, since nobody else is always there. That ticks have stopped it cannot tell: for that
there is ``CRONJOBS_PING_URL``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..db.connection import Bookkeeping
from ..errors import CronJobsError
from ..jobs.state import State
from ..log import logger
from ..text import one_line
from .pings import ping

if TYPE_CHECKING:
    from ..jobs.alerts import Change


def alert(state: State) -> None:
    """Tell the webhook what began and ended since the last look, if there is one. Never raises."""
    url = state.settings.alert_url
    if url is None:
        return
    # Here, since it maps the tables, which a tick without a webhook does not use.
    from ..jobs import alerts

    try:
        found = alerts.found(state)
        with Bookkeeping(state.engine) as books:
            changes = alerts.take(books, found)
            if not changes:
                return
            if ping(url, json.dumps(message(state.app.name, changes)).encode()):
                alerts.forget(books, changes)
            else:
                alerts.give_back(books, changes)
    except CronJobsError as error:
        logger.warning("CRONJOBS_ALERT_URL was not told what needs a person: %s", error)


def message(app: str, changes: Sequence[Change]) -> dict[str, str]:
    """Return what the webhook gets, in the form of Slack's: a line for each of *changes*."""
    lines = [
        f"{app}: over: {change.what}"
        if change.has_ended
        else f"{app}: {change.what}{f'. {change.todo}' if change.todo else ''}"
        for change in changes
    ]
    return {"text": "\n".join(_plain(line) for line in lines)}


def _plain(line: str) -> str:
    """Return *line* so that no name in it is a link, a mention or a second line there."""
    escaped = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return one_line(escaped)
