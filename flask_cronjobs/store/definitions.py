"""Write definitions, and record their slots as runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Row,
    Update,
    any_,
    delete,
    func,
    select,
    text,
    update,
)

from .. import failpoints, models
from ..models.conditions import PINGED
from ..schedule.slots import Slot, SlotPlan
from ..types import JSON, DefinitionSpec, RecordedSlot, stored_time
from .clock import database_now
from .connection import Bookkeeping, Rows
from .definition_statements import (
    COLUMNS,
    SPEC_COLUMNS,
    insert_slots,
    mark_undeclared,
    move_watermarks,
    read_definitions,
    record_at_once,
)
from .dialect import insert_into
from .errors import LOCK_WAIT, still_locked
from .ticks import TickHistory

#: How many due definitions are read and recorded at a time.
CHUNK = 500
#: Of how many definitions a tick looks whether an update of the time zones moved the next slot.
SOME = 50
#: How near that slot is, in seconds. No update moves a slot by more than a day.
NEAR = 90_000.0
T = TypeVar("T")


class DefinitionRow(NamedTuple):
    """A definition as read from its row.

    :ivar now: the database's time when the row was read.
    :ivar considered_until: every slot up to here has been recorded, or was never owed.
    :ivar undeclared_since: from when on the code that ticked did not declare it.
    :ivar app: the name of the app whose code declared it.
    :ivar broken: which column cannot be read; *spec* or *next_run_at* then has an empty value.
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

    @property
    def due(self) -> bool:
        """Whether a slot has to be recorded, or may have to be because the row cannot be read."""
        if self.next_run_at is None:
            return not self.paused and self.broken is not None
        return not self.paused and self.next_run_at <= self.now


class Definitions:
    """The writes about definitions and slots.

    :param books: a bookkeeping connection.
    :ivar history: when ticks came.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self.history: TickHistory = TickHistory(books)
        self._books = books
        self._dialect = books.dialect

    def read(
        self, declared: Sequence[str], tasks: Sequence[str], after: int = 0
    ) -> list[DefinitionRow]:
        """Return the definitions that this process has to look at, by id.

        1. Due definitions with an id above *after*, at most `CHUNK`: from code those in *declared*,
           from the database those whose task is in *tasks*.
        2. If *after* is 0, also those in *declared* that are not due, and from the database `SOME`,
           chosen at random, whose next slot is `NEAR` in a zone other than UTC.
        """
        parameters = {
            "declared": self._dialect.array(tuple(declared)),
            "tasks": self._dialect.array(tuple(tasks)),
            "after": after,
            "chunk": CHUNK,
            "all": after == 0,
            "near": NEAR,
            "some": SOME,
        }
        rows = self._books.rows(text(read_definitions(self._dialect)), parameters)
        return sorted((self._definition(row) for row in rows), key=lambda definition: definition.id)

    def move(self, definition: DefinitionRow, next_run_at: datetime) -> bool:
        """Set the watermark; return False if it has moved since the definition was read."""
        moved = update(models.JobDefinition).where(self._is_free(*self._as_read(definition)))
        return self._changes(moved.values(next_run_at=next_run_at, updated_at=database_now()))

    def mark_undeclared(self, declared: Sequence[str], app: str) -> None:
        """Record that the code that ticks now does not declare the other definitions of *app*.

        Old and new code may run side by side, so this does not yet mean that no code declares them.
        """
        parameters = {
            "declared": self._dialect.array(tuple(declared)), "app": app, "chunk": CHUNK,
        }  # fmt: skip
        self._books.rows(text(mark_undeclared(self._dialect)), parameters)

    def mark_declared(self, ids: Sequence[int], app: str) -> None:
        """Record that the code of *app*, which ticks now, declares these definitions."""
        app_or_own = func.coalesce(models.JobDefinition.app, app)
        declared = update(models.JobDefinition).where(
            self._is_free(models.JobDefinition.id.in_(ids))
        )
        self._books.rows(declared.values(undeclared_since=None, app=app_or_own))

    def record_slots(self, plans: Sequence[SlotPlan]) -> list[RecordedSlot]:
        """Move the watermarks of *plans* and insert a row for each slot, in one transaction.

        1. Move a watermark only if it is where its plan expected it: otherwise another tick was
           faster, and the plan is dropped.
        2. Insert each slot as ``queued`` or ``skipped``. With ``overlap='skip'``, skip it while an
           earlier run of the definition is queued or running.
        """
        if not plans:
            return []
        each = [slot for plan in plans for slot in plan.slots]
        parameters = {"plans": self._plans(plans), "slots": self._slots(each)}
        if self._dialect.one_statement:
            rows = self._books.rows(text(record_at_once(self._dialect)), parameters)
        else:
            rows = self._books.transaction(lambda c: self._record_in_steps(c, parameters))
        return [self._recorded(row) for row in rows]

    def declare(
        self,
        specs: Iterable[tuple[DefinitionSpec, datetime | None]],
        origin: str,
        app: str | None = None,
    ) -> int:
        """Insert the definitions that do not exist yet, each with its first slot; return how many.

        :param origin: ``code`` or ``database``.
        :param app: the name of the app whose code declares them.
        """
        now = database_now()
        own = {"origin": origin, "app": app, "created_at": now, "updated_at": now}
        own["considered_until"] = now
        statement = (
            insert_into(models.JobDefinition, self._dialect.name)
            .values([{**spec._asdict(), "next_run_at": first, **own} for spec, first in specs])
            .on_conflict_do_nothing(index_elements=["name"])
            .returning(models.JobDefinition.id)
        )
        return len(self._books.rows(statement))

    def change(
        self,
        definition: DefinitionRow,
        spec: DefinitionSpec,
        first: datetime | None,
        app: str | None = None,
    ) -> bool:
        """Update a row to *spec*; return False if its watermark has moved since it was read.

        Record due slots first, since they belong to the old schedule. Then old and new code that
        run side by side lose no slot that both schedules name.

        :param first: the new watermark, used if the schedule or the zone changed.
        :param app: the name of the app whose code declares it.
        """
        old = definition.spec
        moved = (spec.schedule, spec.timezone) != (old.schedule, old.timezone)
        values: dict[str, Any] = {**spec._asdict(), "app": app, "updated_at": database_now()}
        if moved or definition.next_run_at is None:
            values |= {"next_run_at": first, "considered_until": definition.now}
        it = update(models.JobDefinition).where(self._is_free(*self._as_read(definition)))
        return self._changes(it.values(values))

    def pause(self, name: str) -> bool:
        """Pause a definition; return False if none has that name.

        :raises StateConflict: its row stays locked.
        """
        named = models.JobDefinition.name == name
        paused = update(models.JobDefinition).where(self._is_free(named))
        paused = paused.values(paused_at=database_now(), updated_at=database_now())
        return bool(self._when_free(name, lambda: self._changes(paused) or None, named))

    def resume(
        self,
        definition: DefinitionRow,
        next_run_at: datetime | None,
        slots: Sequence[Slot] = (),
    ) -> list[RecordedSlot] | None:
        """Resume a definition at *next_run_at*; return None if it was not paused.

        :param slots: what stands for the slots that passed during the pause; inserted in the same
            transaction, and returned.
        :raises StateConflict: its row stays locked.
        """
        own = models.JobDefinition.id == definition.id
        return self._when_free(
            definition.spec.name,
            lambda: self._move_paused(definition, next_run_at, slots, own, paused_at=None),
            *(own, models.JobDefinition.paused_at.is_not(None)),
        )

    def skip_pause(self, definition: DefinitionRow, plan: SlotPlan) -> list[RecordedSlot] | None:
        """Record the slots of *plan*, which a pause has skipped so far, and leave it paused.

        :returns: None if its watermark has moved since it was read, or it is not paused any more.
        """
        as_read = self._as_read(definition)
        return self._move_paused(definition, plan.following, plan.slots, *as_read)

    def _move_paused(
        self,
        definition: DefinitionRow,
        next_run_at: datetime | None,
        slots: Sequence[Slot],
        *conditions: Any,
        **values: object,
    ) -> list[RecordedSlot] | None:
        """Move the watermark of a paused definition, and insert *slots*, in one transaction."""
        values |= {
            "next_run_at": next_run_at,
            "considered_until": definition.now,
            "updated_at": database_now(),
        }
        moved = (
            update(models.JobDefinition)
            .where(self._is_free(*conditions, models.JobDefinition.paused_at.is_not(None)))
            .values(values)
            .returning(models.JobDefinition.id)
        )
        insert = text(insert_slots(self._dialect, "SELECT CAST(:id AS bigint)"))
        parameters = {"id": definition.id, "slots": self._slots(slots)}

        def move(connection: Connection) -> Rows | None:
            if not connection.execute(moved).all():
                return None
            return connection.execute(insert, parameters).all()

        rows = self._books.transaction(move)
        return None if rows is None else [self._recorded(row) for row in rows]

    def remove(self, name: str) -> bool:
        """Delete a definition, but not its runs; return whether there was one.

        :raises StateConflict: its row stays locked.
        """
        named = models.JobDefinition.name == name
        removed = delete(models.JobDefinition).where(self._is_free(named))
        return bool(self._when_free(name, lambda: self._changes(removed) or None, named))

    def find(self, name: str) -> DefinitionRow | None:
        """Return the definition called *name*, or None."""
        statement = (
            f"SELECT {COLUMNS}, {self._dialect.now} AS now FROM job_definitions WHERE name = :name"
        )
        rows = self._books.rows(text(statement), {"name": name})
        return self._definition(rows[0]) if rows else None

    def name_and_timezone(self, id_: int) -> tuple[str, str] | None:
        """Return the name and the time zone of a definition, or None if it has been removed."""
        statement = text("SELECT name, timezone FROM job_definitions WHERE id = :id")
        rows = self._books.rows(statement, {"id": id_})
        return (rows[0].name, rows[0].timezone) if rows else None

    def has_pings(self) -> bool:
        """Return whether a definition has a ping URL."""
        return bool(
            self._books.rows(text(f"SELECT id FROM job_definitions WHERE {PINGED} LIMIT 1"))
        )

    def ping_urls(self) -> dict[int, str]:
        """Return the ping URL of each definition that has one, by the definition's id."""
        rows = self._books.rows(text(f"SELECT id, ping_url FROM job_definitions WHERE {PINGED}"))
        return {row.id: str(row.ping_url) for row in rows}

    def now(self) -> datetime:
        """Return the database's time."""
        (row,) = self._books.rows(text(f"SELECT {self._dialect.now} AS now"))
        return stored_time(row.now)

    def _as_read(self, definition: DefinitionRow) -> tuple[Any, ...]:
        """Return the condition that the watermark is where it was read."""
        expected = definition.next_run_at and self._dialect.instant(definition.next_run_at)
        same = text(self._dialect.same_instant("next_run_at", ":expected"))
        return models.JobDefinition.id == definition.id, same.bindparams(expected=expected)

    def _is_free(self, *which: ColumnElement[bool]) -> ColumnElement[bool]:
        """Return the condition *which*, but for rows that another transaction has locked."""
        own = models.JobDefinition.id
        found = select(own).where(*which).with_for_update(key_share=True, skip_locked=True)
        if self._dialect.one_statement:  # So PostgreSQL looks the rows up, and reads no others.
            return own == any_(func.array(found.scalar_subquery()))
        return own.in_(found)

    def _when_free(
        self, name: str, change: Callable[[], T | None], *which: ColumnElement[bool]
    ) -> T | None:
        """Call *change* until another transaction no longer locks the definition *name*.

        :param change: changes it; returns None if it is locked, or not there.
        :param which: the condition under which it is there.
        :returns: what *change* returned; None if the definition is not there.
        :raises StateConflict: it stays locked.
        """
        until = time.monotonic() + LOCK_WAIT
        while (changed := change()) is None:
            if not self._books.rows(select(models.JobDefinition.id).where(*which)):
                return None
            if time.monotonic() > until:
                raise still_locked(f"The definition {name!r}")
            time.sleep(0.05)
        return changed

    def _changes(self, statement: Update | Delete) -> bool:
        return bool(self._books.rows(statement.returning(models.JobDefinition.id)))

    def _record_in_steps(self, connection: Connection, parameters: dict[str, Any]) -> Rows:
        moved = connection.execute(text(move_watermarks(self._dialect)), parameters).all()
        failpoints.reach("between-watermark-and-insert")
        ids = json.dumps([row.id for row in moved])
        insert = text(insert_slots(self._dialect, "SELECT value FROM json_each(:moved)"))
        return connection.execute(insert, {**parameters, "moved": ids}).all()

    def _definition(self, row: Row[Any]) -> DefinitionRow:
        payload, no_payload = self._payload(row.payload)
        next_run_at, no_time = _time(row.next_run_at)
        values: dict[str, Any] = {name: getattr(row, name) for name in SPEC_COLUMNS}
        values["payload"] = payload
        return DefinitionRow(
            id=row.id,
            spec=DefinitionSpec(**values),
            origin=row.origin,
            paused=row.paused_at is not None,
            next_run_at=next_run_at,
            now=stored_time(row.now),
            broken=no_payload or no_time,
            considered_until=_time(row.considered_until)[0],
            undeclared_since=_time(row.undeclared_since)[0],
            app=row.app,
        )

    def _payload(self, value: Any) -> tuple[dict[str, JSON], str | None]:
        """Return the payload, and why it cannot be read: SQLite accepts any text."""
        try:
            payload = self._dialect.parsed(value)
        except ValueError as error:
            return {}, f"its payload is not JSON ({error})."
        if not isinstance(payload, dict):
            return {}, "its payload is not a JSON object."
        return cast("dict[str, JSON]", payload), None

    def _recorded(self, row: Row[Any]) -> RecordedSlot:
        result = self._dialect.parsed(row.result)
        return RecordedSlot(
            run_id=row.id,
            definition_id=row.definition_id,
            job_type=row.job_type,
            at=stored_time(row.scheduled_for),
            skipped=result["skipped"] if row.status == "skipped" else 0,
            reason=row.last_error,
        )

    def _plans(self, plans: Sequence[SlotPlan]) -> str:
        instant = self._dialect.instant
        return json.dumps(
            [
                {
                    "definition_id": plan.definition_id,
                    "expected": instant(plan.expected),
                    "following": instant(plan.following) if plan.following else None,
                    "considered": instant(plan.considered) if plan.considered else None,
                }
                for plan in plans
            ]
        )

    def _slots(self, slots: Sequence[Slot]) -> str:
        return json.dumps(
            [
                {
                    "definition_id": slot.definition_id,
                    "at": self._dialect.instant(slot.at),
                    "skipped": slot.skipped,
                    "reason": slot.reason,
                    "kind": slot.kind,
                    "note": _note(slot),
                }
                for slot in slots
            ]
        )


def _note(slot: Slot) -> str | None:
    """Return the result of a skipped run: which slots it stands for."""
    if slot.first is None:
        return None
    first, last = slot.first.isoformat(), slot.at.isoformat()
    return json.dumps({"skipped": slot.skipped, "from": first, "to": last})


def _time(value: Any) -> tuple[datetime | None, str | None]:
    """Return a time as a row has it, and if it is the watermark, why it cannot be read."""
    try:
        return None if value is None else stored_time(value), None
    except (ValueError, AttributeError):  # Not a time, or not even a text.
        return None, f"its next_run_at is {value!r}, which is not a time."
