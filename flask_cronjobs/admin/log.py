"""One line for each thing that an operator did, with who."""

from __future__ import annotations

from ..log import logger
from ..text import one_line

#: Who acts where nobody says.
SOMEBODY = "Python"


def log_action(what: str, whom: str, actor: str, run_id: int | None = None) -> None:
    """Log that *actor* did *what* to *whom*."""
    whom = one_line(whom)
    logger.info(
        "%s by %s: %s",
        what,
        actor,
        whom,
        extra={"cronjobs_event": what, "cronjobs_actor": actor, "cronjobs_run_id": run_id},
    )
