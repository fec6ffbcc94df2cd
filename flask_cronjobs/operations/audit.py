"""Log what an operator did, to which run, and who it was."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .. import signals
from ..log import log_run, logger
from ..state import State
from ..store.operations import Change
from ..text import one_line
from ..types import Outcome

#: The actor where the caller names none.
DEFAULT_ACTOR = "Python"


def log_action(what: str, whom: str, actor: str) -> None:
    """Log that *actor* did *what* to *whom*."""
    extra = {"cronjobs_event": what, "cronjobs_actor": actor}
    logger.info("%s by %s: %s", what, actor, one_line(whom), extra=extra)


def announce_changes(
    state: State, what: str, changes: Sequence[Change], actor: str, reason: str
) -> None:
    """Log each of *changes*, and send the signal for those that are cancelled now.

    :param reason: the error that their rows have.
    """
    for change in changes:
        log_run(
            logging.INFO,
            # The worker logs when the run has ended.
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
