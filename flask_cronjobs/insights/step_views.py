"""The durable steps of a run, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from sqlalchemy import select

from ..features.steps.step_rows import WAITS
from ..text.humanize import plural, seconds_between
from ..text.redaction import redacted
from ..types import JSON, without_secret
from .reader import STEPS, Reader, record

#: The maximum number of steps of a run that are shown: the latest ones.
SHOWN = 50


@dataclass(frozen=True, slots=True)
class StepView:
    """A durable step of a run, with the columns of `JobStep`, redacted by ``CRONJOBS_REDACT``.

    :ivar worker: the worker that last wrote it, without the secret part of its token.
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
        """The seconds that it took, if it has ended."""
        return seconds_between(self.started_at, self.finished_at)

    @property
    def state(self) -> str:
        """The state of the step in words."""
        chunks = plural(self.chunks, "chunk")
        if self.finished_at is None:
            return WAITS.get(self.kind, f"{chunks} done")
        if self.kind == "wait":
            return "timed out" if self.result is None else "signal received"
        return {"sleep": "slept", "each": f"done, {chunks}"}.get(self.kind, "done")


def steps_of(reader: Reader, run_id: int) -> tuple[StepView, ...]:
    """Return the latest steps of a run, in their order."""
    latest = select(STEPS).where(STEPS.c.run_id == run_id).order_by(STEPS.c.id.desc())
    names = reader.state.settings.redact
    return tuple(
        record(
            StepView, row,
            result=_shown(row.name, row.result, names), worker=without_secret(row.worker),
        )
        for row in reversed(reader.rows(latest.limit(SHOWN)))
    )  # fmt: skip


def _shown(name: str, result: JSON, names: Sequence[str]) -> JSON:
    """Return *result* redacted. If the step's name is secret, all of the result is hidden.

    None stays, since it means that a wait has timed out.
    """
    whole = cast("dict[str, JSON]", redacted({name: result}, names))
    return None if result is None else whole[name]
