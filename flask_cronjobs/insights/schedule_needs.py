"""Definitions that need attention: missed or unrecorded slots, dead runs, effects in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    String,
    and_,
    case,
    literal,
    select,
    text,
    union_all,
)

from ..core.slots import slots_of
from ..features.once.once_effects import is_in_doubt
from ..models.conditions import DEAD, OPEN_EFFECT, SCHEDULED, SET_ASIDE
from ..text.humanize import minute, plural
from .reader import (
    DEFINITIONS,
    EFFECTS,
    RUNS,
    Query,
    Reader,
    is_one_of,
    present,
    read_once,
    values_of,
)

#: The maximum number of skipped and cancelled runs, newest first, that are searched for missed
#: slots.
_SEARCHED_ROWS = 2000
#: The maximum number of definitions that a sentence names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Missed:
    """Slots that were missed, as recorded in the last 24 hours.

    :ivar slots: the number of slots.
    :ivar first: the first slot.
    :ivar last: the last slot.
    :ivar definition_ids: the ids of the definitions that missed them.
    :ivar names: the names of those definitions that still exist.
    """

    slots: int
    first: datetime
    last: datetime
    definition_ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a sentence, such as "3 slots of a and b were missed, from … to …"."""
        were = "was" if self.slots == 1 else "were"
        first, until = minute(self.first), minute(self.last)
        span = f"at {first}" if first == until else f"from {first} to {until}"
        *others, last = self.names or ("",)
        if more := len(others) - _NAMED + 1 if len(others) >= _NAMED else 0:
            others, last = others[: _NAMED - 1], f"{more + 1} more"
        of = f" of {', '.join(others)} and {last}" if others else f" of {last}" if last else ""
        return f"{plural(self.slots, 'slot')}{of} {were} missed, {span}"


def set_aside(reader: Reader) -> Query:
    """Return a subquery of the newest skipped or cancelled runs."""
    names = "result", "id", "definition_id", "error_type", "last_error", "scheduled_for"
    columns = (RUNS.c[name] for name in (*names, "finished_at"))
    newest = select(*columns).where(text(SET_ASIDE)).order_by(RUNS.c.id.desc())
    return newest.limit(_SEARCHED_ROWS).subquery()


@read_once
def missed_slots(reader: Reader) -> Missed | None:
    """Return the slots that were recorded as missed in the last 24 hours; None if there are none.

    Slots do not count as missed if the definition was paused or undeclared, or if an earlier run
    had not finished.
    """
    newest = set_aside(reader)
    rows = reader.rows(
        select(newest.c.result, newest.c.scheduled_for, newest.c.definition_id, DEFINITIONS.c.name)
        .join_from(newest, DEFINITIONS, DEFINITIONS.c.id == newest.c.definition_id, isouter=True)
        .where(
            newest.c.error_type == "Missed",
            newest.c.finished_at >= reader.now - timedelta(days=1),
        )
    )
    if not rows:
        return None
    spans = [slots_of(row.result, row.scheduled_for) for row in rows]
    return Missed(
        sum(number for number, _ in spans),
        min(first for _, first in spans),
        max(row.scheduled_for for row in rows),
        tuple({row.definition_id: None for row in rows if row.definition_id is not None}),
        tuple(sorted({row.name for row in rows if row.name is not None})),
    )


def unrecorded(reader: Reader) -> list[str]:
    """Return the names of the definitions that this app's code declares and the table lacks.

    A tick inserts them, unless the database has a definition of that name. Names that were found in
    the table once are not checked again.
    """
    known_names = reader.state.known_rows
    declared_names = reader.state.registry.declarations
    unknown_names = [name for name in declared_names if name not in known_names]
    if unknown_names:
        is_unknown = DEFINITIONS.c.name.in_(select(values_of(reader, unknown_names).c.value))
        recorded = select(DEFINITIONS.c.name).where(is_unknown, DEFINITIONS.c.origin == "code")
        known_names.update(row.name for row in reader.rows(recorded))
    return [name for name in unknown_names if name not in known_names]


#: The reasons why a definition needs attention, most urgent first. ``missed``: it missed slots in
#: the last 24 hours. ``dead``: it has dead runs that were neither retried nor discarded. ``doubt``:
#: effects of its runs are in doubt. ``late``: no tick records a due slot.
Need: TypeAlias = Literal["missed", "dead", "doubt", "late"]
#: The words for each need.
NEEDS: Mapping[Need, str] = {
    "missed": "missed slots",
    "dead": "dead runs",
    "doubt": "effect in doubt",
    "late": "late",
}
#: At most this many dead runs are read, newest first.
DEAD_ROWS_READ = 10_000
#: The maximum number of definitions that are found for each need.
_MOST_DEFINITIONS = 1_000


@dataclass(frozen=True)
class Needs:
    """The definitions that need attention.

    :ivar ids: the ids of definitions with missed slots, dead runs or effects in doubt.
    :ivar late_before: the time before which a due slot makes its definition late.
    """

    reader: Reader
    ids: Mapping[Need, Set[int]]
    late_before: datetime

    def of(self, row: Row[Any]) -> tuple[Need, ...]:
        """Return the needs of the definition *row*, most urgent first."""
        at: datetime | None = row.next_run_at
        applies: dict[Need, bool] = {need: row.id in ids for need, ids in self.ids.items()}
        applies["late"] = row.paused_at is None and at is not None and at < self.late_before
        return tuple(need for need in NEEDS if applies[need])

    def condition(self, need: Need) -> ColumnElement[bool]:
        """Return the condition that a definition has *need*."""
        if need == "late":
            return and_(text(SCHEDULED), DEFINITIONS.c.next_run_at < self.late_before)
        return is_one_of(self.reader, DEFINITIONS.c.id, self.ids[need])

    @property
    def order(self) -> ColumnElement[int]:
        """The rank of a definition by its most urgent need; definitions without one come last."""
        places = [(self.condition(need), literal(at, Integer)) for at, need in enumerate(NEEDS)]
        return case(*places, else_=literal(len(NEEDS), Integer))


@read_once
def needs(reader: Reader) -> Needs:
    """Return the definitions that need attention."""
    missed = missed_slots(reader)
    newest = latest_dead()
    with_dead_runs = _having("dead", newest.c.definition_id).select_from(newest)
    queries = [with_dead_runs, *([_in_doubt(reader)] if "effects" in present(reader) else [])]
    union = union_all(*(select(query.subquery()) for query in queries))
    ids_by_need: dict[Need, set[int]] = {"missed": set(), "dead": set(), "doubt": set()}
    ids_by_need["missed"].update(
        () if missed is None else missed.definition_ids[:_MOST_DEFINITIONS]
    )
    for row in reader.rows(union):
        ids_by_need[row.need].add(row.definition_id)
    overdue = timedelta(seconds=reader.state.settings.health_overdue)
    return Needs(reader, ids_by_need, reader.now - overdue)


def latest_dead() -> Query:
    """Return a subquery of the latest dead runs with their errors."""
    names = "id", "job_type", "definition_id", "error_type", "fingerprint", "finished_at", "label"
    dead = select(*(RUNS.c[name] for name in names)).where(text(DEAD))
    return dead.order_by(RUNS.c.finished_at.desc()).limit(DEAD_ROWS_READ).subquery()


def _in_doubt(reader: Reader) -> Query:
    doubted = (
        select(EFFECTS.c.run_id)
        .where(text(OPEN_EFFECT), EFFECTS.c.run_id.is_not(None), text(is_in_doubt(reader.dialect)))
        .limit(_MOST_DEFINITIONS)
        .subquery()
    )
    runs = RUNS.join(doubted, doubted.c.run_id == RUNS.c.id)
    return _having("doubt", RUNS.c.definition_id).select_from(runs)


def _having(need: Need, definition_id: ColumnElement[int]) -> Query:
    """Return a SELECT of the distinct values of *definition_id*, each with *need*."""
    columns = literal(need, String).label("need"), definition_id.label("definition_id")
    return select(*columns).where(definition_id.is_not(None)).distinct().limit(_MOST_DEFINITIONS)
