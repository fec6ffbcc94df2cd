"""Which definitions need a person, and why."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, get_args

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    String,
    and_,
    case,
    literal,
    or_,
    select,
    text,
    union_all,
)

from ..models.conditions import DEAD, OPEN_EFFECT, SCHEDULED
from ..store.operations import is_in_doubt
from .missed import Missed
from .reader import DEFINITIONS, EFFECTS, RUNS, Query, Reader, is_one_of

#: Why a definition needs a person, the most urgent first. ``missed``: slots in the last 24 hours;
#: ``dead``: runs that nobody has retried or discarded; ``doubt``: effects of its runs that are in
#: doubt; ``late``: a slot that no tick records.
Need: TypeAlias = Literal["missed", "dead", "doubt", "late"]
NEEDS: tuple[Need, ...] = get_args(Need)
#: How many dead runs, newest first, are searched.
_DEAD_LOOKED_AT = 10_000
#: At most so many definitions are found for each need.
_MOST = 1_000


@dataclass(frozen=True)
class Needs:
    """The definitions that need a person.

    :ivar ids: those that missed slots, have dead runs, or effects in doubt.
    :ivar late_before: a definition is late if its next slot was due before this.
    """

    reader: Reader
    ids: Mapping[Need, Set[int]]
    late_before: datetime

    def of(self, row: Row[Any]) -> tuple[Need, ...]:
        """Return why the definition *row* needs a person, the most urgent first."""
        at: datetime | None = row.next_run_at
        late = row.paused_at is None and at is not None and at < self.late_before
        return tuple(
            need for need in NEEDS if (late if need == "late" else row.id in self.ids[need])
        )

    def condition(self, need: Need) -> ColumnElement[bool]:
        """Return the condition that a definition has *need*."""
        if need == "late":
            return and_(text(SCHEDULED), DEFINITIONS.c.next_run_at < self.late_before)
        return is_one_of(self.reader, DEFINITIONS.c.id, self.ids[need])

    @property
    def any(self) -> ColumnElement[bool]:
        """The condition that a definition needs a person."""
        return or_(*(self.condition(need) for need in NEEDS))

    @property
    def order(self) -> ColumnElement[int]:
        """The place of a definition by its most urgent need; those without one come last."""
        places = [(self.condition(need), literal(at, Integer)) for at, need in enumerate(NEEDS)]
        return case(*places, else_=literal(len(NEEDS), Integer))


def needs(reader: Reader, missed: Missed | None) -> Needs:
    """Return which definitions need a person.

    :param missed: what `missed_slots` found.
    """
    both = union_all(select(_with_dead_runs().subquery()), select(_in_doubt(reader).subquery()))
    found: dict[Need, set[int]] = {"missed": set(), "dead": set(), "doubt": set()}
    found["missed"].update(() if missed is None else missed.definition_ids[:_MOST])
    for row in reader.rows(both):
        found[row.need].add(row.definition_id)
    overdue = timedelta(seconds=reader.state.settings.health_overdue)
    return Needs(reader, found, reader.now - overdue)


def _with_dead_runs() -> Query:
    newest = (
        select(RUNS.c.definition_id)
        .where(text(DEAD))
        .order_by(RUNS.c.finished_at.desc())
        .limit(_DEAD_LOOKED_AT)
        .subquery()
    )
    return _having("dead", newest.c.definition_id).select_from(newest)


def _in_doubt(reader: Reader) -> Query:
    doubted = (
        select(EFFECTS.c.run_id)
        .where(text(OPEN_EFFECT), EFFECTS.c.run_id.is_not(None), is_in_doubt(reader.now))
        .limit(_MOST)
        .subquery()
    )
    runs = RUNS.join(doubted, doubted.c.run_id == RUNS.c.id)
    return _having("doubt", RUNS.c.definition_id).select_from(runs)


def _having(need: Need, definition_id: ColumnElement[int]) -> Query:
    """Return a SELECT of the definitions *definition_id*, each once and with *need*."""
    columns = literal(need, String).label("need"), definition_id.label("definition_id")
    return select(*columns).where(definition_id.is_not(None)).distinct().limit(_MOST)
