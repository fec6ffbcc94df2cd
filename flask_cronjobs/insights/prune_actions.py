"""Pruning by hand."""

from __future__ import annotations

from functools import partial

from ..core.app_state import State
from ..core.prune import prunable, prune
from ..log import DEFAULT_ACTOR, log_action
from ..text.humanize import plural
from .operations import Operation, begin, count, end
from .run_actions import Progress


def prune_all(
    state: State,
    dry_run: bool = False,
    actor: str = DEFAULT_ACTOR,
    progress: Progress | None = None,
) -> int:
    """Delete the rows that are older than their retention.

    :param dry_run: only count the runs among them.
    :returns: the number of runs.
    """
    with state.bookkeeping() as books:
        if dry_run:
            return prunable(books, state.settings)
        asked, pruned = prunable(books, state.settings), 0
        operation = begin(books, Operation("pruned", plural(asked, "run"), actor), asked)
        try:
            for deleted in prune(books, state.settings, partial(count, operation)):
                pruned += deleted
                if progress is not None:
                    progress(deleted)
            end(books, operation)
        finally:
            log_action("pruned", plural(pruned, "run"), actor)
    return pruned
