"""Pause and resume all runs of a task or of a queue."""

from __future__ import annotations

from ..errors import NotFound
from ..registry.options import is_key
from ..state import State
from ..store.pauses import Pauses
from ..text import did_you_mean
from ..types import PauseKind
from .audit import DEFAULT_ACTOR, log_action

_LONGEST = 100


def pause_work(state: State, kind: PauseKind, name: str, actor: str = DEFAULT_ACTOR) -> bool:
    """Pause a task or a queue: its runs wait, and those that run go on to their end.

    :returns: False if it was paused before.
    :raises NotFound: this app's code declares no such task, or the queue's name cannot be one.
    """
    if kind == "task" and name not in state.registry.tasks:
        raise NotFound(f"There is no task {name!r}.{did_you_mean(name, state.registry.tasks)}")
    if kind == "queue" and not is_key(name, _LONGEST):
        raise NotFound(f"There is no queue {name!r}. A name has 1 to {_LONGEST} characters.")
    with state.bookkeeping() as books:
        is_new = Pauses(books).add(kind, name, actor)
    if is_new:
        log_action("paused", f"{kind} {name}", actor)
    return is_new


def resume_work(state: State, kind: PauseKind, name: str, actor: str = DEFAULT_ACTOR) -> bool:
    """End the pause of a task or a queue, also of one that no code declares any more.

    :returns: False if it was not paused.
    """
    with state.bookkeeping() as books:
        was_paused = Pauses(books).remove(kind, name)
    if was_paused:
        log_action("resumed", f"{kind} {name}", actor)
    return was_paused


def queues(state: State) -> list[str]:
    """Return the queues that the tasks of this app's code use."""
    return sorted({task.options.queue for task in state.registry.tasks.values()})
