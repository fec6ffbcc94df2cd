"""One line for each thing that an operator did, and for each run that it changed, with who."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .. import signals
from ..log import log_run, logger
from ..state import State
from ..store.operations import Change
from ..text import one_line
from ..types import Outcome

#: Who acts where nobody says.
SOMEBODY = "Python"


def log_action(what: str, whom: str, actor: str) -> None:
    """Log that *actor* did *what* to *whom*."""
    whom = one_line(whom)
    logger.info(
        "%s by %s: %s",
        what,
        actor,
        whom,
        extra={"cronjobs_event": what, "cronjobs_actor": actor},
    )


def announce_changes(
    state: State, what: str, changes: Sequence[Change], actor: str, reason: str | None = None
) -> Sequence[Change]:
    """Log each of *changes*, and send the signal of those that are cancelled by them.

    :param reason: the error that stands in the rows of those.
    :returns: *changes*.
    """
    for change in changes:
        log_run(
            logging.INFO,
            # Its worker tells when it has ended.
            f"{what} (asked of its worker)" if change.status == "running" else what,
            task=one_line(change.task),
            run_id=change.run_id,
            attempt=change.attempts,
            actor=actor,
        )
        if change.status == "cancelled":
            outcome = Outcome(
                change.run_id, "", "cancelled", change.attempts, change.task,
                error=reason, error_type="Cancelled",
            )  # fmt: skip
            signals.send(signals.run_cancelled, state.app, outcome=outcome)
    return changes
