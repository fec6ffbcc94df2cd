"""Definitions and their slots: the watermark moves, and the runs come to be, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Connection, Row, bindparam, delete, text, update
from sqlalchemy.dialects import postgresql, sqlite

from .. import failpoints
from ..models import JobDefinition
from ..types import JSON, DefinitionRow, DefinitionSpec, RecordedSlot, SlotPlan
from .clock import database_now
from .connection import Bookkeeping
from .sql.definitions import (
    COLUMNS,
    SPEC_COLUMNS,
    insert_slots,
    move_watermarks,
    read_definitions,
    record_at_once,
)

#: How many due definitions are read, planned and recorded at a time.
BATCH = 500


class Definitions:
    """Every write about definitions and slots.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._dialect = books.dialect

    def read(
        self, declared: Sequence[str], tasks: Sequence[str], after: int = 0
    ) -> list[DefinitionRow]:
        """The definitions that are this process's business, by id.

        Those that are due and whose task (or, from code, whose name) this process knows, at most
        `BATCH` with an id beyond *after*; and, if *after* is 0, those from code that are not due.
        """
        parameters = {
            "declared": self._dialect.array(tuple(declared)),
            "tasks": self._dialect.array(tuple(tasks)),
            "after": after,
            "batch": BATCH,
            "all": after == 0,
        }
        rows = self._books.rows(text(read_definitions(self._dialect)), parameters)
        return sorted((self._definition(row) for row in rows), key=lambda definition: definition.id)

    def record_slots(self, plans: Sequence[SlotPlan]) -> list[RecordedSlot]:
        """Move the watermarks of *plans* and insert the rows of their slots.

        1. A watermark moves only from where its plan expected it: whoever is later does nothing.
        2. A slot's row is inserted in the same transaction, as ``queued`` or as ``skipped``; with
           ``overlap='skip'`` it is skipped while an earlier run of the definition is live.
        """
        if not plans:
            return []
        parameters = {"plans": self._plans(plans), "slots": self._slots(plans)}
        if self._dialect.one_statement:
            rows = self._books.rows(text(record_at_once(self._dialect)), parameters)
        else:
            rows = self._books.transaction(lambda c: self._record_in_steps(c, parameters))
        return [self._recorded(row) for row in rows]

    def declare(self, specs: Iterable[tuple[DefinitionSpec, datetime | None]], origin: str) -> int:
        """Insert definitions that do not exist yet, each with its first slot; how many were."""
        insert = postgresql.insert if self._dialect.name == "postgresql" else sqlite.insert
        values = [{**asdict(spec), "origin": origin, "next_run_at": first} for spec, first in specs]
        statement = (
            insert(JobDefinition)
            .values([{**row, **_stamps()} for row in values])
            .on_conflict_do_nothing(index_elements=["name"])
            .returning(JobDefinition.id)
        )
        return len(self._books.rows(statement))

    def change(
        self, definition: DefinitionRow, spec: DefinitionSpec, first: datetime | None
    ) -> bool:
        """Bring a row into step with *spec*; False if its watermark has moved since it was read.

        Record first what is due: it was owed under the schedule of then. So old and new code side
        by side lose no slot on which both agree.

        :param first: the next slot, where the schedule or the zone changed.
        """
        moved = (spec.schedule, spec.timezone) != (
            definition.spec.schedule,
            definition.spec.timezone,
        )
        values: dict[str, Any] = {**asdict(spec), "updated_at": database_now()}
        if moved or definition.next_run_at is None:
            values["next_run_at"] = first
        expected = definition.next_run_at and self._dialect.instant(definition.next_run_at)
        same = text(self._dialect.same_instant("next_run_at", ":expected"))
        statement = (
            update(JobDefinition)
            .where(JobDefinition.id == definition.id, same.bindparams(expected=expected))
            .values(values)
            .returning(JobDefinition.id)
        )
        return bool(self._books.rows(statement))

    def pause(self, name: str) -> bool:
        """Pause a definition; False if there is none by that name."""
        statement = (
            update(JobDefinition)
            .where(JobDefinition.name == name)
            .values(paused_at=database_now(), updated_at=database_now())
            .returning(JobDefinition.id)
        )
        return bool(self._books.rows(statement))

    def resume(self, name: str, next_run_at: datetime | None) -> bool:
        """Resume a definition from its next slot: what passed during the pause is not made up."""
        statement = (
            update(JobDefinition)
            .where(JobDefinition.name == name, JobDefinition.paused_at.is_not(None))
            .values(paused_at=None, next_run_at=next_run_at, updated_at=database_now())
            .returning(JobDefinition.id)
        )
        return bool(self._books.rows(statement))

    def remove(self, name: str) -> bool:
        """Delete a definition; its runs stay. Whether there was one."""
        statement = (
            delete(JobDefinition).where(JobDefinition.name == name).returning(JobDefinition.id)
        )
        return bool(self._books.rows(statement))

    def find(self, name: str) -> DefinitionRow | None:
        """The definition called *name*."""
        statement = text(
            f"SELECT {COLUMNS}, {self._dialect.now} AS now FROM job_definitions WHERE name = :name"
        ).bindparams(bindparam("name", name))
        rows = self._books.rows(statement)
        return self._definition(rows[0]) if rows else None

    def now(self) -> datetime:
        """The database's now."""
        return self._dialect.moment(
            self._books.rows(text(f"SELECT {self._dialect.now} AS now"))[0].now
        )

    def _record_in_steps(
        self, connection: Connection, parameters: dict[str, Any]
    ) -> Sequence[Row[Any]]:
        moved = connection.execute(text(move_watermarks(self._dialect)), parameters).all()
        failpoints.reach("between-watermark-and-insert")
        ids = json.dumps([row.id for row in moved])
        insert = text(insert_slots(self._dialect, "SELECT value FROM json_each(:moved)"))
        return connection.execute(insert, {**parameters, "moved": ids}).all()

    def _definition(self, row: Row[Any]) -> DefinitionRow:
        payload, no_payload = self._payload(row.payload)
        next_run_at, no_time = self._watermark(row.next_run_at)
        values: dict[str, Any] = {name: getattr(row, name) for name in SPEC_COLUMNS}
        values["payload"] = payload
        return DefinitionRow(
            id=row.id,
            spec=DefinitionSpec(**values),
            origin=row.origin,
            paused=row.paused_at is not None,
            next_run_at=next_run_at,
            now=self._dialect.moment(row.now),
            broken=no_payload or no_time,
        )

    def _payload(self, value: Any) -> tuple[dict[str, JSON], str | None]:
        """The payload, or why it cannot be read: SQLite takes any text."""
        try:
            payload = self._dialect.parsed(value)
        except ValueError as error:
            return {}, f"its payload is no JSON ({error})."
        if not isinstance(payload, dict):
            return {}, "its payload is no JSON object."
        return cast("dict[str, JSON]", payload), None

    def _watermark(self, value: Any) -> tuple[datetime | None, str | None]:
        """The watermark, or why it cannot be read."""
        try:
            return None if value is None else self._dialect.moment(value), None
        except (ValueError, AttributeError):  # No time, or no text at all.
            return None, f"its next_run_at is {value!r}, which is no time."

    def _recorded(self, row: Row[Any]) -> RecordedSlot:
        result = self._dialect.parsed(row.result)
        return RecordedSlot(
            run_id=row.id,
            definition_id=row.definition_id,
            job_type=row.job_type,
            at=self._dialect.moment(row.scheduled_for),
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
                }
                for plan in plans
            ]
        )

    def _slots(self, plans: Sequence[SlotPlan]) -> str:
        instant = self._dialect.instant
        return json.dumps(
            [
                {
                    "definition_id": slot.definition_id,
                    "at": instant(slot.at),
                    "skipped": slot.skipped,
                    "reason": slot.reason,
                    "note": slot.first
                    and json.dumps(
                        {
                            "skipped": slot.skipped,
                            "from": slot.first.isoformat(),
                            "to": slot.at.isoformat(),
                        }
                    ),
                }
                for plan in plans
                for slot in plan.slots
            ]
        )


def _stamps() -> dict[str, Any]:
    return {"created_at": database_now(), "updated_at": database_now()}
