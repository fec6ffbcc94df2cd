"""Prune runs, and resolve effects in doubt."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import NotFound, StateConflict
from ..log import DEFAULT_ACTOR, log_action
from ..report.humanize import plural
from ..state import State
from ..store import effects
from ..store.connection import Bookkeeping
from ..store.pruning import prunable
from ..store.pruning import prune as prune_old
from .runs import Progress

_NOT_IN_DOUBT = {
    "begun": "It is being done right now. Wait until it ends.",
    "done": "It is done, and will not be done again. To do it again, give once() another key.",
}


def prune(
    state: State,
    dry_run: bool = False,
    actor: str = DEFAULT_ACTOR,
    progress: Progress | None = None,
) -> int:
    """Delete the runs that are older than their retention.

    :param dry_run: only count them.
    :returns: how many there were.
    """
    with state.bookkeeping() as books:
        if dry_run:
            return prunable(books, state.settings)
        pruned = 0
        for deleted in prune_old(books, state.settings):
            pruned += deleted
            if progress is not None:
                progress(deleted)
    log_action("pruned", plural(pruned, "run"), actor)
    return pruned


def effect_done(state: State, key: str, actor: str = DEFAULT_ACTOR) -> None:
    """Mark an effect in doubt as done: it will not be done again.

    :raises NotFound: there is no such effect.
    :raises StateConflict: it is not in doubt.
    """
    _resolve(state, key, effects.settle)
    log_action("marked as done", f"effect {key}", actor)


def effect_redo(state: State, key: str, actor: str = DEFAULT_ACTOR) -> None:
    """Mark an effect in doubt as not done: the next ``once`` with its key does it.

    :raises NotFound: there is no such effect.
    :raises StateConflict: it is not in doubt.
    """
    _resolve(state, key, effects.forget)
    log_action("marked to be done again", f"effect {key}", actor)


def _resolve(state: State, key: str, resolve: Callable[[Bookkeeping, str], bool]) -> None:
    with state.bookkeeping() as books:
        if resolve(books, key):
            return
        found = effects.state_of(books, key)
    if found is None:
        raise NotFound(f"There is no effect {key!r}. To list them: flask jobs admin effects --all")
    advice = _NOT_IN_DOUBT.get(found, "Its state has just changed. Try again.")
    raise StateConflict(f"The effect {key!r} is not in doubt. {advice}")
