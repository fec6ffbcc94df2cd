"""Pause and resume a definition, or all runs of a task or of a queue."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from sqlalchemy import text

from ..db.connection import Bookkeeping
from ..db.errors import waiting_for_lock
from ..errors import NotFound
from ..log import DEFAULT_ACTOR
from ..registry.options import is_key
from ..text import did_you_mean
from ..types import PauseKind
from .definitions import rows as definitions
from .definitions.actions import no_definition, record_due
from .definitions.scheduler import announce_slot, plan_paused
from .operations import Act, perform
from .state import State

_LONGEST = 100


Kind: TypeAlias = Literal["definition", "queue", "task"]


class Target(NamedTuple):
    """What is paused or resumed."""

    kind: Kind
    name: str


def only(name: str | None, queue: str | None, task: str | None) -> Target | None:
    """Return what was given: a definition's *name*, a queue or a task; None if not just one was."""
    each: tuple[tuple[Kind, str | None], ...]
    each = ("definition", name), ("queue", queue), ("task", task)
    given = [Target(kind, name) for kind, name in each if name is not None]
    return given[0] if len(given) == 1 else None


def pause(state: State, target: Target, actor: str = DEFAULT_ACTOR) -> bool:
    """Pause *target* until `resume`.

    None of a definition's slots runs; one that is due is recorded first. The runs of a task or a
    queue wait, and those that run go on to their end.

    :returns: False if it is a task or a queue that was paused before.
    :raises NotFound: no definition has that name, and the message suggests similar names; this
        app's code declares no such task; or the queue's name cannot be one.
    """
    kind, name = target
    if kind == "task" and name not in state.registry.tasks:
        raise NotFound(f"There is no task {name!r}.{did_you_mean(name, state.registry.tasks)}")
    if kind == "queue" and not is_key(name, _LONGEST):
        raise NotFound(f"There is no queue {name!r}. A name has 1 to {_LONGEST} characters.")
    act = Act("paused", f"{kind} {name}", actor)
    with state.bookkeeping() as books:
        if kind == "definition":
            return _pause_definition(state, books, name, act)
        return perform(books, act, lambda inner: _add(inner, kind, name, actor))


def resume(state: State, target: Target, actor: str = DEFAULT_ACTOR) -> bool:
    """Resume *target*, also a task or a queue that no code declares any more.

    A definition goes on from its next slot after now. Slots that passed meanwhile are not made up:
    they are recorded as one skipped row.

    :returns: False if it was not paused.
    :raises NotFound: no definition has that name.
    :raises ScheduleError: the definition's schedule cannot be read.
    """
    kind, name = target
    act = Act("resumed", f"{kind} {name}", actor)
    with state.bookkeeping() as books:
        if kind == "definition":
            return _resume_definition(state, books, name, act)
        return perform(books, act, lambda inner: _remove(inner, kind, name))


def _add(books: Bookkeeping, kind: PauseKind, name: str, by: str) -> bool:
    statement = f"""
        INSERT INTO job_pauses (kind, name, paused_at, paused_by)
        VALUES (:kind, :name, {books.dialect.now}, :by)
        ON CONFLICT (kind, name) DO NOTHING RETURNING id
    """
    return bool(books.rows(text(statement), {"kind": kind, "name": name, "by": by}))


def _remove(books: Bookkeeping, kind: PauseKind, name: str) -> bool:
    statement = "DELETE FROM job_pauses WHERE kind = :kind AND name = :name RETURNING id"
    return bool(books.rows(text(statement), {"kind": kind, "name": name}))


def _pause_definition(state: State, books: Bookkeeping, name: str, act: Act) -> bool:
    wait = waiting_for_lock(f"The definition {name!r}")
    while True:
        found = definitions.find(books, name)
        if found is None:
            raise no_definition(state, name, "pause")
        if found.due:
            record_due(state, books, found)
        if perform(books, act, partial(definitions.pause, definition=found)):
            return True
        wait()


def _resume_definition(state: State, books: Bookkeeping, name: str, act: Act) -> bool:
    wait = waiting_for_lock(f"The definition {name!r}")
    while True:
        found = definitions.find(books, name)
        if found is None:
            raise no_definition(state, name, "resume")
        if not found.paused:
            return False
        plan = plan_paused(found)
        skip = partial(definitions.skip_pause, definition=found, plan=plan, resume=True)
        slots = perform(books, act, skip, changed=lambda slots: slots is not None)
        if slots is not None:
            break
        wait()
    for slot in slots:
        announce_slot(state, slot)
    return True


def queues(state: State) -> list[str]:
    """Return the queues that the tasks of this app's code use."""
    return sorted({task.options.queue for task in state.registry.tasks.values()})
