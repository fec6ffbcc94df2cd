"""Tell ``CRONJOBS_ALERT_URL`` of what begins to need a person, and of what ends.

A tick looks, since nobody else is always there. That ticks have stopped it cannot tell: for that
there is ``CRONJOBS_PING_URL``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ...core import ticks
from ...core.app_state import State
from ...errors import CronJobsError
from ...log import logger
from ...text import one_line
from .pings import ping

if TYPE_CHECKING:
    from ...insights.checks import Finding

#: What the log calls the POST.
_ALERT = "The alert by CRONJOBS_ALERT_URL"
#: How many characters a message may have: Discord refuses more.
_LONGEST = 2_000


def alert(state: State, worker: str) -> None:
    """Tell the webhook, if there is one, what began and ended since it was told. Never raises.

    1. Find what needs a person now, and the ids that the last tick found whose POST succeeded.
    2. POST what is new and what is over, if they differ.
    3. Write the ids to the row of the tick that *worker* has just finished. If the POST failed,
       leave NULL, so that the next tick tells the same.
    """
    url = state.settings.alert_url
    if url is None:
        return
    # Here, since it maps the tables, which a tick without a webhook does not use.
    from ...insights.checks import WEBHOOK, findings

    try:
        found = [each for each in findings(state) if each.id != WEBHOOK]
        with state.bookkeeping() as books:
            before = ticks.told_findings(books)
            text = message(state.app.name, found, before)
            if not text or ping(url, json.dumps({"text": text}).encode(), what=_ALERT):
                ticks.write_findings(books, worker, sorted({each.id for each in found}))
    except CronJobsError as error:
        logger.warning("CRONJOBS_ALERT_URL was not told what needs a person: %s", error)


def message(app: str, found: Sequence[Finding], before: Collection[str]) -> str:
    """Return a line for each of *found* whose id is not among those *before*, and for what is over.

    What a webhook would not take, since it is too long, is left out.
    """
    lines = [f"{app}: {each.told}" for each in found if each.id not in before]
    lines += [f"{app}: over: {id_}" for id_ in sorted(set(before) - {each.id for each in found})]
    return "\n".join(map(_plain, lines))[:_LONGEST]


def _plain(line: str) -> str:
    """Return *line* so that no name in it is a link, a mention or a second line there."""
    escaped = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Mattermost and Discord take a bare @channel for a mention, and [text](address) for a link.
    return one_line(escaped).replace("@", "@\u200b").replace("](", "]\u200b(")
