"""Failed attempts in groups: which errors there are, and what an operator decides about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from sqlalchemy import Integer, Row, func, literal_column, select, text, union_all

from ..errors import NotFound
from ..log import DEFAULT_ACTOR
from ..text import one_line
from .definitions.needs import DEAD_LOOKED_AT, latest_dead
from .operations import Act, perform
from .reader import (
    CAP,
    ERROR_GROUPS,
    FAILURES,
    RUNS,
    Count,
    Page,
    Query,
    Reader,
    Source,
    count_of,
    reading,
    steps,
    values_of,
)
from .runs.outcomes import pattern_of
from .runs.rows import ERROR_SHOWN, first_line
from .state import State

#: For how many seconds a group is muted: a week.
MUTED_FOR = 7 * 86400.0
#: How many days the bars of a group stand for.
DAYS = 14
#: Of more groups than these, others than those of the latest failures may be left out.
MOST_GROUPS = 1_000
#: How many of the latest failures are looked at for groups.
LOOKED_AT = 10_000
#: How many labels a group shows, and of how many of its latest failures.
_LABELS, _SAMPLES = 3, 20
GroupState: TypeAlias = Literal["open", "resolved", "muted"]
STATES: tuple[GroupState, ...] = ("open", "resolved", "muted")


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failed attempts of one task with one type of error and one message, but for what varies.

    :ivar pattern: the message, with ``…`` for what varies.
    :ivar message: the first line of the latest one.
    :ivar run_id: the run of the latest one.
    :ivar first: when the first that is kept failed.
    :ivar last: when the latest failed.
    :ivar count: of the failed attempts that are kept, capped.
    :ivar dead: of runs that are dead because of it, capped.
    :ivar days: attempts in each of the last 14 times 24 hours, the oldest first; of a capped group,
        only its latest 1,000.
    :ivar came_back: it was resolved, and has been seen again since.
    :ivar changed_by: who resolved or muted it last.
    :ivar labels: of the runs of its latest 20 attempts, three at most.
    """

    fingerprint: str
    task: str
    error_type: str
    pattern: str
    message: str
    run_id: int
    first: datetime
    last: datetime
    count: Count
    dead: Count
    days: tuple[int, ...]
    state: GroupState
    came_back: bool = False
    changed_at: datetime | None = None
    changed_by: str | None = None
    muted_until: datetime | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorPage(Page[ErrorGroup]):
    """Groups of errors, that which was seen last first.

    :ivar numbers: how many there are in each state; capped if not all were looked at.
    """

    numbers: Mapping[str, Count] = field(default_factory=dict[str, Count])


def list_errors(source: Source, state: GroupState = "open", limit: int = 50) -> ErrorPage:
    """Return the groups of errors in *state*.

    1. Go from fingerprint to fingerprint in their index, and look when each was seen first and
       last, and what operators have decided. 2. Count only what is shown, up to a cap.

    :param limit: at most 200.
    """
    limit = max(1, min(limit, 200))
    with reading(source) as reader:
        seen, capped = _seen(reader)
        by_state: dict[str, list[Row[Any]]] = {each: [] for each in STATES}
        for row in seen:
            by_state[_state(row, reader.now)].append(row)
        numbers = {name: Count(len(rows), capped) for name, rows in by_state.items()}
        groups = _groups(reader, by_state[state][:limit], state)
        return ErrorPage(groups, None, reader.now, numbers[state], numbers)


#: The columns of what an operator has decided.
_DECISION = ("resolved_at", "muted_until", "changed_at", "changed_by")


def _seen(reader: Reader) -> tuple[list[Row[Any]], bool]:
    """Return fingerprints with when they were seen, the latest first, and what was decided.

    And whether there are more.
    """
    found = reader.rows(steps(FAILURES.c.fingerprint, most=MOST_GROUPS + 1))
    names = [row.value for row in found]
    capped = len(names) > MOST_GROUPS
    if capped:
        names += [row.fingerprint for row in reader.rows(_latest())]
    each = values_of(reader, list(dict.fromkeys(names)))
    own = FAILURES.c.fingerprint == each.c.value
    first, last = (
        select(moment(FAILURES.c.failed_at)).where(own).correlate(each).scalar_subquery()
        for moment in (func.min, func.max)
    )
    decided = (ERROR_GROUPS.c[name] for name in _DECISION)
    moments = select(
        each.c.value.label("fingerprint"), first.label("first"), last.label("last"), *decided
    ).join_from(each, ERROR_GROUPS, ERROR_GROUPS.c.fingerprint == each.c.value, isouter=True)
    rows = [row for row in reader.rows(moments) if row.last is not None]
    return sorted(rows, key=lambda row: (row.last, row.fingerprint), reverse=True), capped


def _latest() -> Query:
    """Return a SELECT of the fingerprints of the latest failures."""
    latest = select(FAILURES.c.fingerprint).order_by(FAILURES.c.id.desc()).limit(LOOKED_AT)
    some = latest.subquery()
    found = select(some.c.fingerprint).where(some.c.fingerprint.is_not(None)).distinct()
    return found.limit(MOST_GROUPS)


def _state(seen: Row[Any], now: datetime) -> GroupState:
    if seen.muted_until is not None and seen.muted_until > now:
        return "muted"
    is_over = seen.resolved_at is not None and seen.last <= seen.resolved_at
    return "resolved" if is_over else "open"


def _groups(reader: Reader, seen: Sequence[Row[Any]], state: GroupState) -> tuple[ErrorGroup, ...]:
    """Return the groups of *seen* with what is counted of them."""
    if not seen:
        return ()
    names = [row.fingerprint for row in seen]
    samples, days, dead = _samples(reader, names), _by_day(reader, names), _dead(reader)
    return tuple(
        ErrorGroup(
            fingerprint=row.fingerprint,
            task=latest[0].task,
            error_type=latest[0].error_type,
            pattern=pattern_of(latest[0].error),
            message=first_line(latest[0].error) or "",
            run_id=latest[0].run_id,
            first=row.first,
            last=row.last,
            count=count_of(sum(days[row.fingerprint].values())),
            dead=dead.get(row.fingerprint, Count(0)),
            days=tuple(days[row.fingerprint].get(day, 0) for day in reversed(range(DAYS))),
            state=state,
            came_back=row.resolved_at is not None and state == "open",
            changed_at=row.changed_at,
            changed_by=row.changed_by,
            muted_until=row.muted_until if state == "muted" else None,
            labels=_labels(latest),
        )
        for row in seen
        if (latest := samples.get(row.fingerprint))
    )


def _labels(latest: Sequence[Row[Any]]) -> tuple[str, ...]:
    labels = (one_line(str(row.label)) for row in latest if row.label is not None)
    return tuple(dict.fromkeys(labels))[:_LABELS]


def _samples(reader: Reader, fingerprints: Sequence[str]) -> dict[str, list[Row[Any]]]:
    """Return some of the latest failures of each, the latest first."""
    columns = (FAILURES.c[name] for name in ("run_id", "error_type", "failed_at"))
    error = func.substr(FAILURES.c.error, 1, ERROR_SHOWN).label("error")
    some = _latest_of(fingerprints, _SAMPLES, *columns, error)
    wanted = select(some, RUNS.c.job_type.label("task"), RUNS.c.label)
    joined = wanted.join(RUNS, RUNS.c.id == some.c.run_id).order_by(some.c.failed_at.desc())
    found: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in reader.rows(joined):
        found[row.fingerprint].append(row)
    return found


def _by_day(reader: Reader, fingerprints: Sequence[str]) -> dict[str, dict[int, int]]:
    """Return how many of the latest 1,001 failures of each were so many whole days ago."""
    at = literal_column(reader.dialect.epoch("job_failures.failed_at"), Integer)
    day = ((int(reader.now.timestamp()) - at) // 86400).label("day")
    some = _latest_of(fingerprints, CAP + 1, day)
    counted = select(*some.c, func.count().label("number")).group_by(*some.c)
    found: dict[str, dict[int, int]] = {each: {} for each in fingerprints}
    for row in reader.rows(counted):
        found[row.fingerprint][int(row.day)] = row.number
    return found


def _latest_of(fingerprints: Sequence[str], number: int, *columns: Any) -> Query:
    """Return a subquery of the latest *number* failures of each: its fingerprint, and *columns*."""
    c = FAILURES.c
    latest = select(c.fingerprint, *columns).order_by(c.failed_at.desc()).limit(number)
    parts = [latest.where(c.fingerprint == each).subquery() for each in fingerprints]
    return union_all(*(select(part) for part in parts)).subquery()


def _dead(reader: Reader) -> dict[str, Count]:
    """Return how many of the latest dead runs have each fingerprint."""
    newest = latest_dead()
    counted = select(newest.c.fingerprint, func.count().label("number"))
    rows = reader.rows(counted.group_by(newest.c.fingerprint))
    full = sum(row.number for row in rows) >= DEAD_LOOKED_AT
    return {row.fingerprint: Count(row.number, full) for row in rows if row.fingerprint}


Decision: TypeAlias = Literal["resolved", "muted", "reopened"]


def decide(state: State, what: Decision, fingerprint: str, actor: str = DEFAULT_ACTOR) -> None:
    """Write down what becomes of a group of errors, in place of what was decided before.

    :param what: ``resolved``: until it is seen again; ``muted``: for a week, though it is seen
        again; ``reopened``: it is open, whatever was decided.
    :raises NotFound: no failed attempt that is kept has this fingerprint.
    """
    given: dict[str, Any] = {"fingerprint": fingerprint, "actor": actor}
    if what == "muted":
        given["seconds"] = MUTED_FOR
    with state.bookkeeping() as books:
        d = books.dialect
        resolved = d.now if what == "resolved" else "NULL"
        muted = d.later(":seconds") if what == "muted" else "NULL"
        statement = f"""
            INSERT INTO job_error_groups
                (fingerprint, resolved_at, muted_until, changed_at, changed_by)
            SELECT {d.typed(":fingerprint", "text")}, {d.typed(resolved, "timestamptz")},
                {d.typed(muted, "timestamptz")}, {d.now}, {d.typed(":actor", "text")}
            WHERE EXISTS (SELECT 1 FROM job_failures WHERE fingerprint = :fingerprint)
            ON CONFLICT (fingerprint) DO UPDATE SET resolved_at = excluded.resolved_at,
                muted_until = excluded.muted_until, changed_at = excluded.changed_at,
                changed_by = excluded.changed_by
            RETURNING id
        """
        act = Act(what, f"errors of group {fingerprint}", actor)
        if not perform(books, act, lambda inner: inner.rows(text(statement), given)):
            raise NotFound(
                f"No failed attempt that is kept is of the group {fingerprint!r}. To list the "
                "groups: flask jobs admin errors"
            )
