"""Add, remove and run definitions; pause and resume definitions, tasks and queues."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from sqlalchemy import text

from ..core import definitions
from ..core.app_state import State
from ..core.definitions import DefinitionRow
from ..core.new_run import NewRun, new_run
from ..core.scheduler import (
    announce_slot,
    find_or_record,
    first_slot,
    plan_due,
    plan_paused,
    record_pause,
)
from ..core.slots import record_slots
from ..core.tasks.options import AS_THE_TASK_SAYS, EnqueueOptions, is_key
from ..core.tasks.registry import DefinitionSpec
from ..core.ticks import TickHistory
from ..db.connection import Bookkeeping
from ..db.errors import LockWait, still_locked
from ..errors import KeyConflict, NotFound, PayloadError, TaskError, UnknownTask
from ..log import DEFAULT_ACTOR, log_run
from ..text import did_you_mean, one_line
from ..types import PauseKind
from .operations import Operation, perform
from .run_payloads import queue_new, refuse_hidden
from .schedule_views import definition_names

T = TypeVar("T")


def record_due(state: State, books: Bookkeeping, row: DefinitionRow) -> bool:
    """Record the due slots of *row*; return False if it is broken."""
    plan = plan_due(row, TickHistory(books))
    if plan is None:
        return False
    for slot in record_slots(books, {row.id: plan}):
        announce_slot(state, slot)
    return True


def remove(state: State, name: str, actor: str = DEFAULT_ACTOR) -> None:
    """Delete a definition that this app's code does not declare (any more). Its runs stay.

    :raises NotFound: no definition has that name.
    :raises TaskError: this app's code declares it.
    """
    if not remove_definition(state, name, actor):
        raise no_definition(state, name)


class QueuedRun(NamedTuple):
    """A run that an operator has queued.

    :ivar is_new: False if a run with the same idempotency key existed already.
    """

    id: int
    is_new: bool


def queue_run(
    state: State,
    name: str,
    payload: Mapping[str, object] | None = None,
    actor: str = DEFAULT_ACTOR,
    tasks: bool = True,
    options: EnqueueOptions = AS_THE_TASK_SAYS,
) -> QueuedRun:
    """Queue a run of a definition or a task.

    :param name: a definition's name, or else a task's.
    :param payload: the handler's keyword arguments; default: the definition's payload.
    :param tasks: whether *name* may be a task's.
    :param options: the options of `Task.using` except ``replace``: a waiting run that holds the
        key stays unchanged.
    :raises NotFound: no definition or task has that name; the message suggests similar names.
    :raises UnknownTask: the definition's task is not declared by this app's code.
    :raises TypeError: the handler does not take *payload*.
    :raises PayloadError: *payload* is not plain JSON, or the definition's cannot be read.
    :raises TaskError: an option is invalid.
    :raises KeyConflict: the idempotency key belongs to a run of another task.
    """
    options.check()
    with state.bookkeeping() as books:
        new = _definition_run(state, find_or_record(state, books, name), payload, options)
        task = state.registry.tasks.get(name) if tasks else None
        if new is None and task is not None:
            new = new_run(task, task.payload_from(payload or {}), options, state.settings)
        if new is None:
            if not tasks:
                raise no_definition(state, name)
            hint = did_you_mean(name, {*definition_names(state), *state.registry.tasks})
            raise NotFound(f"No definition or task is called {name!r}.{hint}")
        run_id, holder = queue_new(books, new, Operation("ran now", one_line(name), actor))
    if holder not in (None, new.job_type):
        raise KeyConflict(
            f"The idempotency key of this run is held by run {run_id} of the "
            f"task {holder}. Nothing was queued. Give another key."
        )
    if holder is None:
        log_run(
            logging.INFO, "ran now", task=new.job_type, run_id=run_id, attempt=0,
            why=one_line(name), actor=actor,
        )  # fmt: skip
    return QueuedRun(run_id, is_new=holder is None)


def _definition_run(
    state: State,
    definition: DefinitionRow | None,
    payload: Mapping[str, object] | None,
    options: EnqueueOptions,
) -> NewRun | None:
    """Return a new run of *definition*, with *payload* and *options*."""
    if definition is None:
        return None
    spec = definition.spec
    task = state.registry.tasks.get(spec.job_type)
    if task is None:
        raise UnknownTask(
            f"The definition {spec.name!r} needs the task {spec.job_type!r}, which this app's "
            "code does not declare. Run it from an app that does, or remove the definition."
        )
    if payload is None and definition.lacks_payload:
        raise PayloadError(
            f"The payload of the definition {spec.name!r} cannot be read. Give a new one."
        )
    own: dict[str, Any] = {"payload": json.dumps(spec.payload), "definition_id": definition.id}
    run = NewRun(**spec.policy | own | options.own_values)
    if payload is not None:
        refuse_hidden(state, payload, spec.payload)
        new = new_run(task, task.payload_from(payload), options, state.settings, unique=False)
        if new.concurrency_key is None:  # The row may have a key that the code has dropped.
            new.concurrency_key = run.concurrency_key
            new.concurrency_limit = run.concurrency_limit
        run = replace(run, **new.of_payload)
    if spec.overlap == "skip":
        # As with its slots, no two runs of the definition run at the same time.
        run.concurrency_key = run.concurrency_key or f"definition:{spec.name}"
        run.concurrency_limit = 1
    return run


def no_definition(state: State, name: str, verb: str | None = None) -> NotFound:
    """Return the error for a definition that does not exist, with suggestions of similar names.

    :param verb: the command that also takes a task, with ``--task``.
    """
    if verb is not None and name in state.registry.tasks:
        return NotFound(
            f"There is no definition {name!r}. It is a task: flask jobs admin {verb} --task "
            f"{shlex.quote(name)}"
        )
    names = definition_names(state)
    if not names:
        return NotFound(
            f"There is no definition {name!r}, and there are no others yet: the first tick creates "
            "those that code declares."
        )
    return NotFound(f"There is no definition {name!r}.{did_you_mean(name, names)}")


def add_definition(state: State, spec: DefinitionSpec, actor: str = DEFAULT_ACTOR) -> bool:
    """Insert or change a definition that is kept in the database.

    A slot that is already due is recorded first, under the old schedule.

    :returns: whether the definition is new.
    :raises TaskError: code declares a definition of that name.
    :raises StateConflict: its row stays locked.
    """

    def add(books: Bookkeeping, row: DefinitionRow | None) -> bool | None:
        _refuse_code(state, row, spec.name)
        if row is None:
            first = first_slot(spec, definitions.now(books))
            declare = partial(definitions.declare, specs=[(spec, first)], origin="database")
            declared = perform(books, Operation("added", f"definition {spec.name}", actor), declare)
            return True if declared else None
        if row.due and record_due(state, books, row):
            return None
        row = record_pause(state, books, row, spec)
        return False if _change(books, row, spec, actor) else None

    return _when_free(state, spec.name, add)


def _when_free(
    state: State, name: str, change: Callable[[Bookkeeping, DefinitionRow | None], T | None]
) -> T:
    """Call *change* with the definition *name* until it returns a result, and return that.

    :param change: returns None if the row is locked or has changed since it was read.
    :raises StateConflict: the row stays locked.
    """
    wait = LockWait()
    with state.bookkeeping() as books:
        while (result := change(books, definitions.find(books, name))) is None:
            if not wait.pause():
                raise still_locked(f"The definition {name!r}")
        return result


def _change(books: Bookkeeping, row: DefinitionRow, spec: DefinitionSpec, actor: str) -> bool:
    """Change *row* to *spec* and record the operation, unless they are equal."""
    first = first_slot(spec, row.now)
    change = partial(definitions.change, definition=row, spec=spec, first=first)
    if row.spec == spec:
        return change(books)
    return perform(books, Operation("changed", f"definition {spec.name}", actor), change)


def _refuse_code(state: State, row: DefinitionRow | None, name: str) -> None:
    """Refuse to add a definition that code declares, or once did."""
    if name in state.registry.declarations:
        raise TaskError(f"The definition {name!r} is declared in code. Give this one another name.")
    if row is not None and row.origin == "code":
        raise TaskError(
            f"The definition {name!r} came from code, though this app's code does not "
            "declare it (any more). Give this one another name, or call "
            f"remove_definition({name!r}) first."
        )


def remove_definition(state: State, name: str, actor: str = DEFAULT_ACTOR) -> bool:
    """Delete a definition that code does not declare (any more).

    :returns: whether there was one.
    :raises TaskError: this app's code declares it.
    :raises StateConflict: its row stays locked.
    """
    operation = Operation("removed", f"definition {name}", actor)

    def remove(books: Bookkeeping, row: DefinitionRow | None) -> bool | None:
        if name in state.registry.declarations and (row is None or row.origin == "code"):
            raise TaskError(
                f"The definition {name!r} is declared in code, so the next tick would create "
                "it again. Remove its schedule from the code, or pause it."
            )
        if row is None:
            return False
        return perform(books, operation, partial(definitions.remove, definition=row)) or None

    return _when_free(state, name, remove)


_LONGEST = 100


Kind: TypeAlias = Literal["definition", "queue", "task"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Target(NamedTuple):
    """A definition, task or queue to pause or resume."""

    kind: Kind
    name: str


def only(name: str | None, queue: str | None, task: str | None) -> Target | None:
    """Return the target if exactly one is given, otherwise None; *name* is a definition's."""
    names_by_kind: dict[Kind, str | None] = {"definition": name, "queue": queue, "task": task}
    targets = [Target(kind, name) for kind, name in names_by_kind.items() if name is not None]
    return targets[0] if len(targets) == 1 else None


def pause(state: State, target: Target, actor: str = DEFAULT_ACTOR) -> bool:
    """Pause *target* until `resume`.

    A paused definition runs none of its slots; a slot that is already due is recorded first. New
    runs of a paused task or queue wait, and running ones continue to their end.

    :returns: False if it was paused before.
    :raises NotFound: no definition has that name, and the message suggests similar names; this
        app's code declares no such task; or no queue can have that name.
    """
    kind, name = target
    if kind == "task" and name not in state.registry.tasks:
        raise NotFound(f"There is no task {name!r}.{did_you_mean(name, state.registry.tasks)}")
    if kind == "queue" and not is_key(name, _LONGEST):
        raise NotFound(f"There is no queue {name!r}. A name has 1 to {_LONGEST} characters.")
    operation = Operation("paused", f"{kind} {name}", actor)
    if kind == "definition":
        return _pause_definition(state, name, operation)
    with state.bookkeeping() as books:
        return perform(books, operation, lambda inner: _add(inner, kind, name, actor))


def resume(state: State, target: Target, actor: str = DEFAULT_ACTOR) -> bool:
    """Resume *target*, which may be a task or a queue that no code declares any more.

    A definition continues with its next slot after now. The slots that passed meanwhile are
    recorded as one skipped row and are not run.

    :returns: False if it was not paused.
    :raises NotFound: no definition has that name.
    :raises ScheduleError: the definition's schedule cannot be read.
    """
    kind, name = target
    operation = Operation("resumed", f"{kind} {name}", actor)
    if kind == "definition":
        return _resume_definition(state, name, operation)
    with state.bookkeeping() as books:
        return perform(books, operation, lambda inner: _remove(inner, kind, name))


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


def _pause_definition(state: State, name: str, operation: Operation) -> bool:
    def pause(books: Bookkeeping, row: DefinitionRow | None) -> bool | None:
        if row is None:
            raise no_definition(state, name, "pause")
        if row.paused:
            return False
        if row.due:
            record_due(state, books, row)
        return perform(books, operation, partial(definitions.pause, definition=row)) or None

    return _when_free(state, name, pause)


def _resume_definition(state: State, name: str, operation: Operation) -> bool:
    def resume(books: Bookkeeping, row: DefinitionRow | None) -> bool | None:
        if row is None:
            raise no_definition(state, name, "resume")
        if not row.paused:
            return False
        skip = partial(definitions.skip_pause, definition=row, plan=plan_paused(row), resume=True)
        slots = perform(books, operation, skip, changed=lambda slots: slots is not None)
        for slot in slots or ():
            announce_slot(state, slot)
        return None if slots is None else True

    return _when_free(state, name, resume)
