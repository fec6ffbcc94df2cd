"""Find what a text names: a run, a batch, a definition, a task or a queue."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from .humanize import Link
from .pauses import queues
from .reader import BATCHES, DEFINITIONS, Reader, Source, reading
from .runs.search import named


def find_place(source: Source, name: str) -> Link:
    """Return the page of what *name* names; else that of the runs in which it is found.

    In this order: the id or a key of a run, the key of a batch, the name of a definition, of a task
    that the code declares, of a queue.
    """
    name = name.strip()
    with reading(source) as reader:
        runs = named(reader, name)
        if runs and (len(runs) == 1 or str(runs[0]) == name.removeprefix("#")):
            # A number may have been meant as a customer's, so the page of the run says how to search.
            asked = {"q": name} if name.isdecimal() else {}
            return "run", {"run_id": runs[0], **asked}
        if _has(reader, BATCHES.c.key, name):
            return "batch", {"key": name}
        if _has(reader, DEFINITIONS.c.name, name):
            return "definition", {"name": name}
        if name in reader.state.registry.tasks:
            return "task", {"name": name}
        if name in queues(reader.state):
            return "runs", {"queue": name}
    return "runs", {"q": name}


def _has(reader: Reader, column: Any, name: str) -> bool:
    return bool(reader.rows(select(column).where(column == name).limit(1)))
