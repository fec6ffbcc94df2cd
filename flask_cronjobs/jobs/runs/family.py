"""The relatives of a run: those before and after it, its last success, those that died like it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, and_, case, func, select, text, true

from ...models.conditions import DEAD
from ...text import redacted
from ...types import JSON, Status
from ..humanize import Fact
from ..reader import RUNS, Count, Query, Reader, readable, record

if TYPE_CHECKING:
    from .list import RunRow

#: How many runs of its definition are looked at; where it has none, how many of all tasks.
OF_DEFINITION, OF_ALL = 200, 2_000
#: How many dead runs are looked at, the latest first.
OF_DEAD = 2_000


@dataclass(frozen=True, slots=True)
class Relative:
    """A run of the same definition; or of the same task, if the run has no definition."""

    id: int
    status: Status
    scheduled_for: datetime


@dataclass(frozen=True, slots=True)
class Family:
    """The relatives of a run, as far as they are looked for.

    :ivar earlier: the run before it.
    :ivar later: the run after it.
    :ivar succeeded: the last one before it that succeeded.
    :ivar succeeded_payload: the payload of that, redacted by ``CRONJOBS_REDACT``.
    :ivar alike: other dead runs whose error is of its group; None if it is not dead. Of a run
        without a group, those of its task with its type of error.
    :ivar fingerprint: that group.
    """

    earlier: Relative | None
    later: Relative | None
    succeeded: Relative | None
    succeeded_payload: JSON
    alike: Count | None
    fingerprint: str | None = None


def family_of(reader: Reader, run: Row[Any]) -> Family:
    """Return the relatives of *run*, a whole row."""
    succeeded = _first(reader, run, later=False, status="succeeded")
    return Family(
        earlier=_first(reader, run, later=False),
        later=_first(reader, run, later=True),
        succeeded=succeeded,
        succeeded_payload=None if succeeded is None else _payload(reader, succeeded.id),
        alike=_alike(reader, run) if run.status == "dead" else None,
        fingerprint=run.fingerprint,
    )


def family_facts(family: Family, row: RunRow) -> Iterator[Fact]:
    """Yield what the page of a run and the command ``show`` say of its relatives."""
    for label, each in (
        ("run before", family.earlier),
        ("run after", family.later),
        ("last success before", family.succeeded),
    ):
        if each is not None and not (each is family.succeeded and each == family.earlier):
            words = f"run {each.id}, {each.status}"
            yield Fact(label, words, each.scheduled_for, ("run", {"run_id": each.id}))
    if family.alike:
        filters = {"status": "dead", "task": row.task, "error_type": row.error_type or ""}
        if family.fingerprint is not None:
            filters = {"status": "dead", "fingerprint": family.fingerprint}
        yield Fact("died like this", family.alike.of("other run"), link=("runs", filters))


def _first(reader: Reader, run: Row[Any], later: bool, status: Status | None = None) -> Any:
    """Return the next relative of *run* in one direction, if it is near enough to be found."""
    near = _near(run, later)
    wanted = select(near).where(near.c.job_type == run.job_type)
    if status is not None:
        wanted = wanted.where(near.c.status == status)
    rows = reader.rows(wanted.order_by(*_in_order(near.c, run, later)).limit(1))
    return record(Relative, rows[0]) if rows else None


def _near(run: Row[Any], later: bool) -> Query:
    """Return some runs before or after *run*, the nearest first: by an index, and capped."""
    by_slot = run.definition_id is not None
    own = RUNS.c.definition_id == run.definition_id if by_slot else true()
    at, mine = (RUNS.c.scheduled_for, run.scheduled_for) if by_slot else (RUNS.c.id, run.id)
    columns = RUNS.c.id, RUNS.c.job_type, RUNS.c.status, RUNS.c.scheduled_for
    found = select(*columns).where(own, at > mine if later else at < mine)
    most = OF_DEFINITION if by_slot else OF_ALL
    return found.order_by(*_in_order(RUNS.c, run, later)).limit(most).subquery()


def _in_order(c: Any, run: Row[Any], later: bool) -> tuple[Any, ...]:
    column = c.id if run.definition_id is None else c.scheduled_for
    return (column.asc() if later else column.desc(),)


def _payload(reader: Reader, run_id: int) -> JSON:
    (row,) = reader.rows(select(readable(reader, RUNS.c.payload)).where(RUNS.c.id == run_id))
    return redacted(row.payload, reader.state.settings.redact)


def _alike(reader: Reader, run: Row[Any]) -> Count:
    latest = (
        select(RUNS.c.id, RUNS.c.job_type, RUNS.c.error_type, RUNS.c.fingerprint)
        .where(text(DEAD))
        .order_by(RUNS.c.finished_at.desc())
        .limit(OF_DEAD)
        .subquery()
    )
    is_of_type = func.coalesce(latest.c.error_type, "") == (run.error_type or "")
    in_group = and_(latest.c.job_type == run.job_type, is_of_type)
    if run.fingerprint is not None:
        in_group = latest.c.fingerprint == run.fingerprint
    is_alike = and_(latest.c.id != run.id, in_group)
    (row,) = reader.rows(
        select(
            func.count(case((is_alike, 1))).label("number"), func.count().label("looked_at")
        ).select_from(latest)
    )
    return Count(row.number, row.looked_at >= OF_DEAD and row.number > 0)
