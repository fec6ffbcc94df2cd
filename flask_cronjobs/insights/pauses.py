"""The paused tasks and queues, and the conditions that leave their runs out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, select

from ..types import PauseKind
from .reader import PAUSES, RUNS, Reader, is_none_of, read_once


class PauseView(NamedTuple):
    """A paused task or queue.

    :ivar kind: ``task`` or ``queue``.
    """

    kind: PauseKind
    name: str
    paused_at: datetime
    paused_by: str | None

    def __str__(self) -> str:
        return f"the {self.kind} {self.name} is paused"


@read_once
def list_pauses(reader: Reader) -> tuple[PauseView, ...]:
    """Return the pauses, ordered by kind and name."""
    statement = select(*(PAUSES.c[name] for name in PauseView._fields))
    rows = reader.rows(statement.order_by(PAUSES.c.kind, PAUSES.c.name))
    return tuple(PauseView(*tuple(row)) for row in rows)


def stopping(reader: Reader, task: str, queue: str) -> tuple[PauseView, ...]:
    """Return the pauses that make runs of *task* in *queue* wait."""
    name_of = {"task": task, "queue": queue}
    return tuple(pause for pause in list_pauses(reader) if pause.name == name_of[pause.kind])


def not_paused(reader: Reader, c: Any = RUNS.c) -> list[ColumnElement[bool]]:
    """Return the conditions for runs whose task and queue are not paused.

    :param c: the columns of the runs.
    """
    conditions: list[ColumnElement[bool]] = []
    for kind, column in (("task", c.job_type), ("queue", c.queue)):
        names = [pause.name for pause in list_pauses(reader) if pause.kind == kind]
        if names:
            conditions.append(is_none_of(reader, column, names))
    return conditions


def ours(reader: Reader, c: Any = RUNS.c) -> list[ColumnElement[bool]]:
    """Return the conditions for runs that are not paused, and whose task this app declares.

    Other runs do not count as late, since no tick of this app could start them. If the app declares
    no task, runs of all tasks pass.

    :param c: the columns of the runs.
    """
    tasks = list(reader.state.registry.tasks)
    return [*not_paused(reader, c), *([c.job_type.in_(tasks)] if tasks else [])]


def is_declared(reader: Reader, task: str) -> bool:
    """Return whether this app declares *task*, or declares no task at all."""
    tasks = reader.state.registry.tasks
    return not tasks or task in tasks
