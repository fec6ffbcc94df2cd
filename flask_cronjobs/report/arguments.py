"""What a run of a definition or a task would get."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from ..text import redacted
from ..types import JSON
from .reader import DEFINITIONS, Source, readable, reading


@dataclass(frozen=True, slots=True)
class Arguments:
    """The task that a name stands for, and the payload that goes with it.

    :ivar payload: the definition's, redacted; None for a task without one.
    """

    task: str
    payload: JSON


def arguments(source: Source, name: str) -> Arguments | None:
    """Return what the definition *name* would run, or else the task; None if there is neither."""
    with reading(source) as reader:
        registry, hidden = reader.state.registry, reader.state.settings.redact
        payload = readable(reader, DEFINITIONS.c.payload)
        rows = reader.rows(
            select(DEFINITIONS.c.job_type, payload).where(DEFINITIONS.c.name == name)
        )
    if rows:
        return Arguments(rows[0].job_type, redacted(rows[0].payload, hidden))
    if name in registry.declarations:
        spec = registry.declarations[name].spec(reader.state.settings)
        return Arguments(spec.job_type, redacted(spec.payload, hidden))
    return Arguments(name, None) if name in registry.tasks else None
