"""Write definitions, and read them for ticks and operators."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, TextClause, text

from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import PINGED, SCHEDULED
from ..schedule.catchup import SlotPlan
from ..types import JSON, RecordedSlot, json_object, stored_json, stored_time, time_or_none
from .columns import assigned
from .new_run import TYPES
from .slots import insert_slots
from .tasks.registry import DefinitionSpec

#: The largest number of due definitions that are read, and whose slots are recorded, at a time.
DEFINITIONS_READ = 500
_SPEC = tuple(field.name for field in fields(DefinitionSpec))
_STATE = (
    *("origin", "paused_at", "next_run_at"),
    *("considered_until", "undeclared_since", "app"),
)


class DefinitionRow(NamedTuple):
    """A definition as read from its row.

    :ivar next_run_at: the *watermark*: the first slot that is not recorded yet.
    :ivar now: the database's time when the row was read.
    :ivar considered_until: every slot up to this time has been recorded, or never will be.
    :ivar undeclared_since: when a tick first found that its code does not declare the definition. A
        later tick whose code declares it sets this back to None.
    :ivar app: the name of the app whose code declared it.
    :ivar broken: why a column cannot be read. The payload is then empty, or *next_run_at* None.
    :ivar lacks_payload: whether the payload is empty because it cannot be read.
    """

    id: int
    spec: DefinitionSpec
    origin: str
    paused: bool
    next_run_at: datetime | None
    now: datetime
    broken: str | None = None
    considered_until: datetime | None = None
    undeclared_since: datetime | None = None
    app: str | None = None
    lacks_payload: bool = False

    @property
    def due(self) -> bool:
        """Whether a slot is due, or may be due because the row cannot be read."""
        if self.paused:
            return False
        if self.next_run_at is None:
            return self.broken is not None
        return self.next_run_at <= self.now


def read(
    books: Bookkeeping, declared: Sequence[str], tasks: Sequence[str], after: int = 0
) -> list[DefinitionRow]:
    """Return the definitions that this process must check, ordered by id.

    1. Due definitions with an id above *after*, at most `DEFINITIONS_READ`: those of code if they
       are in *declared*, those of the database if their task is in *tasks*.
    2. If *after* is 0, also those in *declared* that are not due, and those of the database whose
       *next_run_at* is too late to be a time.
    """
    parameters = {
        "declared": books.dialect.many(declared),
        "tasks": books.dialect.many(tasks),
        "after": after,
        "chunk": DEFINITIONS_READ,
        "all": after == 0,
    }
    rows = books.rows(read_definitions(books.dialect), parameters)
    return sorted((_row(row) for row in rows), key=lambda row: row.id)


def find(books: Bookkeeping, name: str) -> DefinitionRow | None:
    """Return the definition called *name*, or None."""
    d = books.dialect
    statement = f"SELECT {_columns(d)}, {d.now} AS now FROM job_definitions WHERE name = :name"
    rows = books.rows(text(statement), {"name": name})
    return _row(rows[0]) if rows else None


def name_and_timezone(books: Bookkeeping, id_: int) -> tuple[str, str] | None:
    """Return the name and the time zone of a definition, or None if it has been removed."""
    statement = text("SELECT name, timezone FROM job_definitions WHERE id = :id")
    rows = books.rows(statement, {"id": id_})
    return (rows[0].name, rows[0].timezone) if rows else None


def ping_urls(books: Bookkeeping) -> dict[int, str]:
    """Return the ping URL of each definition that has one, by the definition's id."""
    rows = books.rows(text(f"SELECT id, ping_url FROM job_definitions WHERE {PINGED}"))
    return {row.id: str(row.ping_url) for row in rows}


def now(books: Bookkeeping) -> datetime:
    """Return the database's time."""
    (row,) = books.rows(text(f"SELECT {books.dialect.now} AS now"))
    return stored_time(row.now)


def declare(
    books: Bookkeeping,
    specs: Iterable[tuple[DefinitionSpec, datetime | None]],
    origin: str,
    app: str | None = None,
) -> int:
    """Insert the missing definitions, each with its first slot; return how many were inserted.

    :param origin: ``code`` or ``database``.
    :param app: the name of the app whose code declares them.
    """
    d = books.dialect
    rows = [{**asdict(spec), "next_run_at": first and d.instant(first)} for spec, first in specs]
    types = {name: TYPES.get(name, "text") for name in _SPEC} | {"next_run_at": "timestamptz"}
    names = ", ".join(types)
    statement = f"""
        INSERT INTO job_definitions
            ({names}, origin, app, considered_until, created_at, updated_at)
        SELECT {names}, CAST(:origin AS text), CAST(:app AS text), {d.now}, {d.now}, {d.now}
        FROM {d.table("specs", **types)} AS specs WHERE true
        ON CONFLICT (name) DO NOTHING RETURNING id
    """
    values = {"specs": json.dumps(rows), "origin": origin, "app": app}
    return len(books.rows(text(statement), values))


def change(
    books: Bookkeeping,
    definition: DefinitionRow,
    spec: DefinitionSpec,
    first: datetime | None,
    app: str | None = None,
) -> bool:
    """Update a row to *spec*; return False if it cannot be updated; see `assign`.

    Call this after recording the due slots, which belong to the old schedule. Otherwise a slot that
    is in both schedules could be lost while old and new code run at the same time.

    :param first: the new watermark, used if the schedule or the zone changed, or if the row has no
        watermark.
    :param app: the name of the app whose code declares it.
    """
    values: dict[str, Any] = {**asdict(spec), "app": app}
    if moves(definition.spec, spec) or definition.next_run_at is None:
        values |= {"next_run_at": first, "considered_until": definition.now}
    return assign(books, definition, **values)


def moves(old: DefinitionSpec, new: DefinitionSpec) -> bool:
    """Return whether a change from *old* to *new* changes the slots."""
    return (new.schedule, new.timezone) != (old.schedule, old.timezone)


def mark_undeclared(books: Bookkeeping, declared: Sequence[str], app: str) -> None:
    """Mark the definitions of *app*, or of no app, that are not among the *declared* ones.

    They are marked and not removed: old and new code may run at the same time, and the other code
    may still declare them.
    """
    d = books.dialect
    ids = f"SELECT id FROM job_definitions WHERE {undeclared(d)} LIMIT :chunk {d.skip_locked}"
    statement = f"""
        UPDATE job_definitions SET undeclared_since = {d.now} WHERE {d.any_of("id", ids)}
    """
    names = d.many(declared)
    books.rows(text(statement), {"declared": names, "app": app, "chunk": DEFINITIONS_READ})


def undeclared(d: Dialect) -> str:
    """Return the condition of ``app``'s definitions that are neither in ``declared`` nor marked."""
    # "= ANY" with thousands of names would compare each row with every name.
    return f"""
        origin = 'code' AND undeclared_since IS NULL AND (app IS NULL OR app = :app)
        AND name NOT IN (SELECT name FROM {d.each("declared", "name")})
    """


def mark_declared(books: Bookkeeping, ids: Sequence[int], app: str) -> None:
    """Record that the code of *app* declares the definitions *ids*."""
    d = books.dialect
    statement = f"""
        UPDATE job_definitions SET undeclared_since = NULL, app = COALESCE(app, :app)
        WHERE {_free(d, d.among("id"))}
    """
    books.rows(text(statement), {"ids": d.many(ids), "app": app})


def pause(books: Bookkeeping, definition: DefinitionRow) -> bool:
    """Pause a definition; return False if it was paused already, or its row is locked or gone."""
    now = books.dialect.now
    change = f"UPDATE job_definitions SET paused_at = {now}, updated_at = {now}"
    return _change_unless_locked(books, definition, change, "id = :id AND paused_at IS NULL")


def skip_pause(
    books: Bookkeeping, definition: DefinitionRow, plan: SlotPlan, resume: bool = False
) -> list[RecordedSlot] | None:
    """Record the slots of *plan*, which a pause has skipped so far, in one transaction.

    :param resume: whether to end the pause, too.
    :returns: None if the watermark has moved since it was read, if the definition is no longer
        paused, or if its row is locked.
    """
    values: dict[str, Any] = {"next_run_at": plan.following, "considered_until": definition.now}
    if resume:
        values["paused_at"] = None
    condition, expected = _as_read(books.dialect, definition)
    statement, parameters = _update(books.dialect, f"{condition} AND paused_at IS NOT NULL", values)

    def move(connection: Connection) -> list[RecordedSlot] | None:
        if not connection.execute(statement, {**parameters, **expected}).all():
            return None
        return insert_slots(connection, books.dialect, {definition.id: plan.slots})

    return books.transaction(move)


def remove(books: Bookkeeping, definition: DefinitionRow) -> bool:
    """Delete a definition, but not its runs; return False if its row is locked or gone."""
    return _change_unless_locked(books, definition, "DELETE FROM job_definitions")


def _change_unless_locked(
    books: Bookkeeping, definition: DefinitionRow, change: str, where: str = "id = :id"
) -> bool:
    """Execute *change*, a statement without WHERE, unless another transaction locks the row."""
    statement = text(f"{change} WHERE {_free(books.dialect, where)} RETURNING id")
    return bool(books.rows(statement, {"id": definition.id}))


def assign(books: Bookkeeping, definition: DefinitionRow, **values: object) -> bool:
    """Set *values*.

    :returns: False if the watermark has moved since the definition was read, or if the row is
        locked or gone.
    """
    condition, expected = _as_read(books.dialect, definition)
    statement, parameters = _update(books.dialect, condition, values)
    return bool(books.rows(statement, {**parameters, **expected}))


def _update(
    d: Dialect, condition: str, values: Mapping[str, object]
) -> tuple[TextClause, dict[str, object]]:
    """Return the UPDATE of the unlocked definitions that match *condition*, and its parameters."""
    parameters = {
        name: d.instant(value) if isinstance(value, datetime)
        else json.dumps(value) if name == "payload" else value
        for name, value in values.items()
    }  # fmt: skip
    assignments = assigned({name: f":{name}" for name in values})
    statement = f"""
        UPDATE job_definitions SET {assignments}, updated_at = {d.now} WHERE {_free(d, condition)}
        RETURNING id
    """
    return text(statement), parameters


def _as_read(d: Dialect, definition: DefinitionRow) -> tuple[str, dict[str, object]]:
    """Return the condition that the watermark has not moved since it was read, with parameters."""
    expected = definition.next_run_at and d.instant(definition.next_run_at)
    condition = f"id = :id AND {d.same_instant('next_run_at', ':expected')}"
    return condition, {"id": definition.id, "expected": expected}


def _free(d: Dialect, condition: str) -> str:
    """Return *condition*, limited to rows that no other transaction has locked."""
    return d.any_of("id", f"SELECT id FROM job_definitions WHERE {condition} {d.skip_locked}")


#: No schedule has a slot this far in the future. So a later watermark is not a time: it is
#: ``infinity``, or a blob, which SQLite sorts after any text. It would never become due, so it is
#: read as well, and reported.
_NO_SLOT_IN_SECONDS = 100 * 366 * 86_400


@lru_cache(maxsize=4)
def read_definitions(d: Dialect) -> TextClause:
    """Return the SELECT of `read`."""
    due = f"{SCHEDULED} AND next_run_at <= {d.now}"
    # The plus keeps SQLite from reading all definitions by id instead of only the due ones.
    return text(f"""
    SELECT * FROM (
        SELECT {_columns(d)}, {d.now} AS now FROM job_definitions
        WHERE {due} AND {enqueued_here(d)} AND +id > :after ORDER BY +id LIMIT :chunk
    ) AS due
    UNION ALL
    SELECT {_columns(d)}, {d.now} AS now FROM job_definitions
    WHERE :all AND origin = 'code' AND {d.one_of("name", "declared")}
        AND (paused_at IS NOT NULL OR next_run_at IS NULL OR next_run_at > {d.now})
    UNION ALL
    SELECT {_columns(d)}, {d.now} AS now FROM job_definitions
    WHERE :all AND origin = 'database' AND {d.one_of("job_type", "tasks")}
        AND {SCHEDULED} AND next_run_at > {d.later(str(_NO_SLOT_IN_SECONDS))}
    """)


def _columns(d: Dialect) -> str:
    expressions = {"payload": f"{d.unparsed('payload')} AS payload"}
    return ", ".join(expressions.get(name, name) for name in ("id", *_SPEC, *_STATE))


def enqueued_here(d: Dialect) -> str:
    """Return the condition for the definitions whose slots this app records.

    They are those of code that are in ``declared``, and those of the database whose task is in
    ``tasks``.
    """
    return (
        f"((origin = 'code' AND {d.one_of('name', 'declared')})"
        f" OR (origin = 'database' AND {d.one_of('job_type', 'tasks')}))"
    )


def _row(row: Row[Any]) -> DefinitionRow:
    payload, broken = _payload(row.payload)
    lacks_payload = broken is not None
    next_run_at = time_or_none(row.next_run_at)
    if next_run_at is None and row.next_run_at is not None:
        broken = broken or f"its next_run_at is {row.next_run_at!r}, which is not a time."
    values: dict[str, Any] = {name: getattr(row, name) for name in _SPEC}
    values["payload"] = payload
    return DefinitionRow(
        id=row.id,
        spec=DefinitionSpec(**values),
        origin=row.origin,
        paused=row.paused_at is not None,
        next_run_at=next_run_at,
        now=stored_time(row.now),
        broken=broken,
        considered_until=time_or_none(row.considered_until),
        undeclared_since=time_or_none(row.undeclared_since),
        app=row.app,
        lacks_payload=lacks_payload,
    )


def _payload(value: Any) -> tuple[dict[str, JSON], str | None]:
    """Return the payload, or {} and why it cannot be read: SQLite accepts any text."""
    try:
        return json_object(stored_json(value)), None
    except ValueError as error:
        return {}, f"its payload cannot be read: {error}."
