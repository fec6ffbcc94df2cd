"""Which tasks and queues are paused, since when and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, select

from ..types import PauseKind
from .reader import PAUSES, RUNS, Reader, Source, reading


class PauseView(NamedTuple):
    """A task or a queue that is paused.

    :ivar kind: ``task`` or ``queue``.
    """

    kind: PauseKind
    name: str
    paused_at: datetime
    paused_by: str | None

    def __str__(self) -> str:
        return f"the {self.kind} {self.name} is paused"


def list_pauses(source: Source) -> tuple[PauseView, ...]:
    """Return what is paused, by kind and name."""
    with reading(source) as reader:
        statement = select(*(PAUSES.c[name] for name in PauseView._fields))
        rows = reader.rows(statement.order_by(PAUSES.c.kind, PAUSES.c.name))
    return tuple(PauseView(*tuple(row)) for row in rows)


def stopping(paused: Sequence[PauseView], task: str, queue: str) -> tuple[PauseView, ...]:
    """Return those for which runs of *task* in *queue* wait until they are resumed."""
    names = {"task": task, "queue": queue}
    return tuple(each for each in paused if each.name == names[each.kind])


def names(paused: Sequence[PauseView], kind: PauseKind) -> list[str]:
    """Return the names of one kind."""
    return [each.name for each in paused if each.kind == kind]


def not_paused(reader: Reader, paused: Sequence[PauseView] | None = None) -> list[Any]:
    """Return the conditions that a run is neither of a paused task nor in a paused queue.

    :param paused: what is paused, if that was read before.
    """
    found = list_pauses(reader) if paused is None else paused
    conditions: list[ColumnElement[bool]] = []
    if tasks := names(found, "task"):
        conditions.append(RUNS.c.job_type.not_in(tasks))
    if queues := names(found, "queue"):
        conditions.append(RUNS.c.queue.not_in(queues))
    return conditions
