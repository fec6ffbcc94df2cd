"""Report new and ended findings to ``CRONJOBS_ALERT_URL``.

Each tick checks for them, since ticks are the only part that always runs. A tick cannot report that
ticks have stopped, so use ``CRONJOBS_PING_URL`` for that.
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
from .http import ping

if TYPE_CHECKING:
    from ...insights.health_checks import Finding

#: The name of the POST in the log.
_ALERT = "The CRONJOBS_ALERT_URL alert"
#: The maximum number of characters of a message; Discord refuses more.
_MAX_CHARACTERS = 2_000


def alert(state: State, worker: str) -> None:
    """Send new and ended findings to the webhook, if there is one. It never raises.

    1. Read the current findings, and the ids of those that were last sent successfully.
    2. POST the new ones and the ended ones, if there are any.
    3. Write the ids to the row of the tick that *worker* has just finished. If the POST failed,
       leave NULL there, so that the next tick sends them again.
    """
    url = state.settings.alert_url
    if url is None:
        return
    # This maps the tables, which a tick without a webhook does not need.
    from ...insights.health_checks import WEBHOOK, findings

    try:
        open_findings = [finding for finding in findings(state) if finding.id != WEBHOOK]
        with state.bookkeeping() as books:
            before = ticks.sent_findings(books)
            text = message(state.app.name, open_findings, before)
            if not text or ping(url, json.dumps({"text": text}).encode(), name=_ALERT):
                ticks.write_findings(
                    books, worker, sorted({finding.id for finding in open_findings})
                )
    except CronJobsError as error:
        logger.warning("No alert could be sent to CRONJOBS_ALERT_URL: %s", error)


def message(app: str, open_findings: Sequence[Finding], before: Collection[str]) -> str:
    """Return a line for each of *open_findings* that is new, and for each id that has ended.

    A finding is new if its id is not in *before*. An id in *before* has ended if no open finding
    has it.

    If the text would be too long for a webhook, its last line says how many lines are missing.
    """
    lines = [f"{app}: {finding.message}" for finding in open_findings if finding.id not in before]
    lines += [
        f"{app}: resolved: {id_}"
        for id_ in sorted(set(before) - {finding.id for finding in open_findings})
    ]
    lines = list(map(_plain, lines))
    kept = list(lines)
    # Half a line might end in half a command.
    while len(text := "\n".join(kept)) > _MAX_CHARACTERS and len(kept) > 1:
        others = len(lines) - len(kept) + 2
        kept[-2:] = [_plain(f"{app}: {others} more. To see them: flask jobs admin")]
    return text[:_MAX_CHARACTERS]


def _plain(line: str) -> str:
    """Escape *line*, so that no name in it becomes a link, a mention or a second line."""
    escaped = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Mattermost and Discord take a bare @channel for a mention, and [text](address) for a link.
    return one_line(escaped).replace("@", "@\u200b").replace("](", "]\u200b(")
