"""Durable steps for people: those of one run, and to go on from one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple, cast

from sqlalchemy import Connection, select, text

from ..db.dialect import Dialect
from ..errors import NotFound
from ..log import DEFAULT_ACTOR
from ..models.conditions import sql_list
from ..redaction import redacted
from ..types import JSON, without_secret
from .humanize import plural
from .operations import Act, perform
from .reader import STEPS, Reader, readable, record
from .runs.actions import RETRY
from .runs.changes import Change
from .state import State

#: How many steps of a run a view has: the latest.
SHOWN = 50


@dataclass(frozen=True, slots=True)
class StepView:
    """One durable step of a run, as `JobStep`, redacted by ``CRONJOBS_REDACT``.

    :ivar worker: the worker that wrote it last, without the secret part of its token.
    """

    name: str
    kind: str
    result: JSON
    chunks: int
    attempt: int | None
    worker: str | None
    started_at: datetime | None
    due_at: datetime | None
    finished_at: datetime | None

    @property
    def seconds(self) -> float | None:
        """Return how many seconds it took, if it ended."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0.0, (self.finished_at - self.started_at).total_seconds())

    @property
    def state(self) -> str:
        """Return what became of it, in words."""
        if self.finished_at is None:
            waiting = {"sleep": "sleeps", "wait": "waits for a signal"}
            return waiting.get(self.kind, f"{plural(self.chunks, 'chunk')} done")
        if self.kind == "each":
            return f"done, {plural(self.chunks, 'chunk')}"
        if self.kind == "wait":
            return "timed out" if self.result is None else "signal came"
        return "slept" if self.kind == "sleep" else "done"


def steps_of(reader: Reader, run_id: int) -> tuple[StepView, ...]:
    """Return the latest steps of a run, in their order."""
    columns = (readable(reader, column) for column in STEPS.c)
    latest = select(*columns).where(STEPS.c.run_id == run_id).order_by(STEPS.c.id.desc())
    names = reader.state.settings.redact
    return tuple(
        record(
            StepView, row,
            result=_shown(row.name, row.result, names), worker=without_secret(row.worker),
        )
        for row in reversed(reader.rows(latest.limit(SHOWN)))
    )  # fmt: skip


def _shown(name: str, result: JSON, names: Sequence[str]) -> JSON:
    """Return *result* redacted; also by the name of its step, as by a key beside which it stands.

    None stays, since it says that a wait has timed out.
    """
    if result is None:
        return None
    whole = cast("dict[str, JSON]", redacted({name: result}, names))
    return whole[name]


class SentBack(NamedTuple):
    """What `go_on_from` did.

    :ivar again: the names of the steps that it removed, which are done again.
    """

    change: Change
    again: tuple[str, ...]

    def __str__(self) -> str:
        """Return it for people."""
        return (
            f"Run {self.change.run_id} is queued again. Done again: {', '.join(self.again)}. "
            "What they did in the database is still there."
        )


def go_on_from(state: State, run_id: int, name: str, actor: str = DEFAULT_ACTOR) -> SentBack:
    """Queue a dead, cancelled or failed run, to go on from the step *name*.

    That step and those behind it are removed. What they did in the database stays, and so do
    signals for waits behind it.

    :raises NotFound: there is no such run, or no such step.
    :raises StateConflict: the run's status does not allow it.
    """
    with state.bookkeeping() as books:
        act = Act("sent back", f"run {run_id} to step {name}", actor, run_id)
        remove = partial(_remove, books.dialect, run_id, name)
        removed = perform(books, act, lambda inner: inner.transaction(remove))
    if removed is not None and not removed:
        raise NotFound(f"Run {run_id} has no step {name!r}.")
    return SentBack(RETRY.one(state, run_id, actor), tuple(removed or ()))


def _remove(d: Dialect, run_id: int, name: str, connection: Connection) -> list[str] | None:
    """Remove the step *name* and those behind it; return None if the run may not be retried."""
    lock = d.skip_locked.replace("SKIP LOCKED", "")
    status = f"status IN {sql_list(RETRY.allowed)}"
    run = text(f"SELECT id FROM job_runs WHERE id = :id AND {status} {lock}")
    if connection.execute(run, {"id": run_id}).first() is None:
        return None
    this = "SELECT id FROM job_steps WHERE run_id = :id AND name = :name"
    behind = f"id > ({this}) AND (kind = 'wait' AND result IS NOT NULL) IS NOT TRUE"
    rows = connection.execute(
        text(f"""
        DELETE FROM job_steps WHERE run_id = :id AND (name = :name OR ({behind}))
        RETURNING id, name
        """),
        {"id": run_id, "name": name},
    )
    return [row.name for row in sorted(rows.all())]
