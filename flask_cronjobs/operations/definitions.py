"""Add, remove, pause, resume and run now."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .. import report
from ..engine.scheduler import announce_slot, first_slot, plan_due
from ..errors import NotFound, TaskError, UnknownTask
from ..log import log_run
from ..registry.run_columns import RUN_COLUMNS, payload_columns, run_columns
from ..schedule import Schedule
from ..state import State
from ..store import Bookkeeping, Definitions
from ..store.operations import Operator
from ..text import did_you_mean, one_line
from ..types import DefinitionRow, DefinitionSpec
from .audit import SOMEBODY, log_action


def pause(state: State, name: str, actor: str = SOMEBODY) -> None:
    """Pause a definition: no slot of it is recorded until `resume`.

    :raises NotFound: there is none by that name; the message offers those that are close.
    """
    with Bookkeeping(state.engine) as books:
        if not Definitions(books).pause(name):
            raise _no_definition(state, name)
    log_action("paused", f"definition {name}", actor)


def resume(state: State, name: str, actor: str = SOMEBODY) -> bool:
    """Resume a definition from its next slot after now: what passed meanwhile is not made up.

    :returns: False if it was not paused.
    :raises NotFound: there is none by that name.
    :raises ScheduleError: its schedule cannot be read.
    """
    with Bookkeeping(state.engine) as books:
        definitions = Definitions(books)
        found = definitions.find(name)
        if found is None:
            raise _no_definition(state, name)
        following = Schedule(found.spec.schedule, found.spec.timezone).next_after(found.now)
        resumed = definitions.resume(name, following)
    if resumed:
        log_action("resumed", f"definition {name}", actor)
    return resumed


def run_now(
    state: State,
    name: str,
    payload: Mapping[str, object] | None = None,
    actor: str = SOMEBODY,
    tasks: bool = True,
) -> int:
    """Queue a run of a definition, or of a task, due now; the run's id.

    :param name: a definition's name, or else a task's.
    :param payload: the handler's keyword arguments; by default the definition's own.
    :param tasks: whether *name* may be a task's.
    :raises NotFound: neither has that name; the message offers those that are close.
    :raises UnknownTask: the definition's task is not declared by this app's code.
    :raises TypeError: the handler does not take *payload*.
    :raises PayloadError: *payload* is not plain JSON.
    """
    with Bookkeeping(state.engine) as books:
        values = _values(state, Definitions(books).find(name), name, payload)
        if values is None and tasks:
            values = _task_run(state, name, payload)
        if values is None:
            raise _no_name(state, name) if tasks else _no_definition(state, name)
        run_id = Operator(books).insert(values)
    log_run(
        logging.INFO, "ran now", task=values["job_type"], run_id=run_id, attempt=0,
        why=one_line(name), actor=actor,
    )  # fmt: skip
    return run_id


def _values(
    state: State, found: DefinitionRow | None, name: str, payload: Mapping[str, object] | None
) -> dict[str, Any] | None:
    """The values of the run to be: of the definition *found*, or of one declared."""
    if found is not None:
        return {**_own_run(state, found.spec, payload), "definition_id": found.id}
    if name in state.registry.declarations:
        # No tick has recorded it yet.
        return _own_run(state, state.registry.declarations[name].spec(state.settings), payload)
    return None


def _own_run(
    state: State, spec: DefinitionSpec, payload: Mapping[str, object] | None
) -> dict[str, Any]:
    """The values of a run of a definition, with its own payload unless another is given."""
    task = state.registry.tasks.get(spec.job_type)
    if task is None:
        raise UnknownTask(
            f"The definition {spec.name!r} is for the task {spec.job_type!r}, which this app's "
            "code does not declare. Run it from the code that does, or remove the definition."
        )
    values = {name: getattr(spec, name) for name in RUN_COLUMNS}
    if payload is not None:
        values |= payload_columns(task, state.settings, task.payload_from(payload))
    return values


def _task_run(
    state: State, name: str, payload: Mapping[str, object] | None
) -> dict[str, Any] | None:
    task = state.registry.tasks.get(name)
    if task is None:
        return None
    return run_columns(task, state.settings, task.payload_from(payload or {}))


def _no_definition(state: State, name: str) -> NotFound:
    names = report.definition_names(state)
    if not names:
        return NotFound(
            f"There is no definition {name!r}, nor any other yet: the first tick makes those that "
            "code declares."
        )
    return NotFound(f"There is no definition {name!r}.{did_you_mean(name, names)}")


def _no_name(state: State, name: str) -> NotFound:
    names = {*report.definition_names(state), *state.registry.tasks}
    return NotFound(f"No definition and no task is called {name!r}.{did_you_mean(name, names)}")


def add_definition(state: State, spec: DefinitionSpec) -> bool:
    """Insert or change a definition of the database's own; whether it is new.

    A slot of it that is due is recorded first: it is owed under what the row says still.

    :raises TaskError: code declares a definition of that name.
    """
    with Bookkeeping(state.engine) as books:
        definitions = Definitions(books)
        while True:
            row = definitions.find(spec.name)
            if spec.name in state.registry.declarations or (row and row.origin == "code"):
                raise TaskError(
                    f"The definition {spec.name!r} is declared in code. Give this one another name."
                )
            if row is None:
                first = first_slot(spec, definitions.now())
                if definitions.declare([(spec, first)], "database"):
                    return True
            elif row.due and (plan := plan_due(row)) is not None:
                for slot in definitions.record_slots([plan]):
                    announce_slot(state, slot, None)
            elif definitions.change(row, spec, first_slot(spec, row.now)):
                return False


def remove_definition(state: State, name: str) -> bool:
    """Delete a definition that code does not declare (any more); whether there was one.

    :raises TaskError: this app's code declares it.
    """
    with Bookkeeping(state.engine) as books:
        definitions = Definitions(books)
        if name in state.registry.declarations:
            row = definitions.find(name)
            if row is None or row.origin == "code":
                raise TaskError(
                    f"The definition {name!r} is declared in code, so the next tick would make it "
                    "anew. Remove its schedule from the code, or pause it."
                )
        return definitions.remove(name)
