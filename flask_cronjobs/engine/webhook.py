"""Tell ``CRONJOBS_ALERT_URL`` of what begins to need a person, and of what ends.

A tick looks, since nobody else is always there. That ticks have stopped it cannot tell: for that
there is ``CRONJOBS_PING_URL``.
"""

from __future__ import annotations

import json

from ..db.connection import Bookkeeping, Rows
from ..errors import CronJobsError
from ..jobs.state import State
from ..log import logger
from ..text import one_line
from .pings import ping

#: How many characters a message may have: Discord refuses more.
_LONGEST = 2_000


def alert(state: State) -> None:
    """Tell the webhook what began and ended since the last look, if there is one. Never raises."""
    url = state.settings.alert_url
    if url is None:
        return
    # Here, since it maps the tables, which a tick without a webhook does not use.
    from ..jobs import alerts
    from ..jobs.checks import findings

    try:
        found = findings(state)
        with Bookkeeping(state.engine) as books:
            left = alerts.take(books, found)
            while left:
                text, told = message(state.app.name, left)
                if not ping(url, json.dumps({"text": text}).encode()):
                    alerts.give_back(books, left)
                    break
                alerts.forget(books, left[:told])
                left = left[told:]
    except CronJobsError as error:
        logger.warning("CRONJOBS_ALERT_URL was not told what needs a person: %s", error)


def message(app: str, changes: Rows) -> tuple[str, int]:
    """Return a text with a line for each of *changes*, and how many of them fit into it.

    :param changes: what `alerts.take` has returned.
    """
    lines = [
        f"{app}: over: {change.what}"
        if change.ended_at
        else f"{app}: {change.what}{f'. {change.todo}' if change.todo else ''}"
        for change in changes
    ]
    text, told = _plain(lines[0])[:_LONGEST], 1
    for line in map(_plain, lines[1:]):
        if len(text) + 1 + len(line) > _LONGEST:
            break
        text, told = f"{text}\n{line}", told + 1
    return text, told


def _plain(line: str) -> str:
    """Return *line* so that no name in it is a link, a mention or a second line there."""
    escaped = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Mattermost and Discord take a bare @channel for a mention, and [text](address) for a link.
    return one_line(escaped).replace("@", "@\u200b").replace("](", "]\u200b(")
