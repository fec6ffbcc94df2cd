"""Durable steps for people: those of one run, and to go on from one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, cast

from sqlalchemy import select, text

from ..db.connection import Bookkeeping, together
from ..errors import NotFound
from ..log import DEFAULT_ACTOR
from ..registry.options import is_key
from ..text.redaction import redacted
from ..types import JSON, without_secret
from .humanize import plural, seconds_between
from .reader import STEPS, Reader, readable, record
from .runs.actions import RETRY
from .runs.changes import Change, Operator
from .state import State
from .steps import WAITS

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
        return seconds_between(self.started_at, self.finished_at)

    @property
    def state(self) -> str:
        """Return what became of it, in words."""
        chunks = plural(self.chunks, "chunk")
        if self.finished_at is None:
            return WAITS.get(self.kind, f"{chunks} done")
        if self.kind == "wait":
            return "timed out" if self.result is None else "signal came"
        return {"sleep": "slept", "each": f"done, {chunks}"}.get(self.kind, "done")


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
    whole = cast("dict[str, JSON]", redacted({name: result}, names))
    return None if result is None else whole[name]


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
    again = list[str]()
    if not is_key(name, 200):  # No step has such a name, and a database may refuse it.
        raise _no_step(run_id, name)

    def change(operator: Operator, ids: Sequence[int], _: str) -> list[Change]:
        def both(books: Bookkeeping) -> list[Change]:
            if changes := Operator(books, operator.operation).retry(ids):
                removed = books.rows(_REMOVE, {"id": run_id, "name": name})
                again[:] = [row.name for row in sorted(removed)]
                if not again:
                    raise _no_step(run_id, name)
            return changes

        return together(operator.books, both, repeat=False)

    action = replace(RETRY, done=f"sent back to step {name}", change=change)
    return SentBack(action.one(state, run_id, actor), tuple(again))


def _no_step(run_id: int, name: str) -> NotFound:
    return NotFound(
        f"Run {run_id} has no step {name!r}. To list its steps: flask jobs admin show {run_id}"
    )


# Behind a signal to which the run has not come yet, there is none.
_REMOVE = text("""
    DELETE FROM job_steps WHERE run_id = :id AND (name = :name OR (
        id > (SELECT id FROM job_steps WHERE run_id = :id AND name = :name AND attempt IS NOT NULL)
        AND (kind = 'wait' AND result IS NOT NULL) IS NOT TRUE
    )) RETURNING id, name
""")
