"""Definitions and their slots: the watermark moves, and the runs come to be, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, text, update
from sqlalchemy.dialects import postgresql, sqlite

from .. import crashpoints
from ..log import logger
from ..models import LIVE, SCHEDULED, JobDefinition
from ..types import DefinitionRow, DefinitionSpec, RecordedSlot, SlotPlan
from .clock import database_now
from .connection import Bookkeeping
from .dialect import Dialect

_SPEC_COLUMNS = tuple(field.name for field in fields(DefinitionSpec))
_COLUMNS = ", ".join(("id", *_SPEC_COLUMNS, "origin", "paused_at", "next_run_at"))
_SLOT_COLUMNS = {
    "definition_id": "bigint",
    "at": "text",
    "skipped": "integer",
    "reason": "text",
    "note": "text",
}
_ONE_SKIPPED = """'{"skipped": 1}'"""
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
        rows = self._books.rows(text(_read(self._dialect)), parameters)
        found = [read for row in rows if (read := self._readable(row)) is not None]
        return sorted(found, key=lambda definition: definition.id)

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
            rows = self._books.rows(text(_record_at_once(self._dialect)), parameters)
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
        """Bring a row into step with *spec*; whether it was done.

        A row with a slot due is left alone until the slot is recorded: what it names was owed under
        the schedule of then. So old and new code side by side lose no slot on which both agree.
        """
        moved = (spec.schedule, spec.timezone) != (
            definition.spec.schedule,
            definition.spec.timezone,
        )
        values: dict[str, Any] = {**asdict(spec), "updated_at": database_now()}
        if moved:
            values["next_run_at"] = first
        same = JobDefinition.next_run_at == definition.next_run_at
        if definition.next_run_at is None:
            same = JobDefinition.next_run_at.is_(None)
        statement = (
            update(JobDefinition)
            .where(JobDefinition.id == definition.id, same)
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
            f"SELECT {_COLUMNS}, {self._dialect.now} AS now FROM job_definitions WHERE name = :name"
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
        moved = connection.execute(text(_move(self._dialect)), parameters).all()
        crashpoints.reach("between-watermark-and-insert")
        ids = json.dumps([row.id for row in moved])
        insert = text(_insert(self._dialect, "SELECT value FROM json_each(:moved)"))
        return connection.execute(insert, {**parameters, "moved": ids}).all()

    def _readable(self, row: Row[Any]) -> DefinitionRow | None:
        """The definition in *row*; None if it cannot be read, which stops no other."""
        try:
            return self._definition(row)
        except (AttributeError, TypeError, ValueError) as error:  # SQLite takes any text.
            logger.error(
                "The definition %r cannot be read, and its slots wait: %r. Mend its row in "
                "job_definitions, or delete it.",
                row.name,
                error,
            )
            return None

    def _definition(self, row: Row[Any]) -> DefinitionRow:
        moment = self._dialect.moment
        values = {name: getattr(row, name) for name in _SPEC_COLUMNS}
        values["payload"] = self._dialect.parsed(row.payload)
        return DefinitionRow(
            id=row.id,
            spec=DefinitionSpec(**values),
            origin=row.origin,
            paused=row.paused_at is not None,
            next_run_at=None if row.next_run_at is None else moment(row.next_run_at),
            now=moment(row.now),
        )

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


def _read(d: Dialect) -> str:
    ours = (
        f"((origin = 'code' AND {d.one_of('name', 'declared')})"
        f" OR (origin = 'database' AND {d.one_of('job_type', 'tasks')}))"
    )
    due = f"{SCHEDULED} AND next_run_at <= {d.now}"
    # The plus keeps SQLite from walking all definitions by id instead of those that are due.
    return f"""
    SELECT * FROM (
        SELECT {_COLUMNS}, {d.now} AS now FROM job_definitions
        WHERE {due} AND {ours} AND +id > :after ORDER BY +id LIMIT :batch
    ) AS due
    UNION ALL
    SELECT {_COLUMNS}, {d.now} AS now FROM job_definitions
    WHERE :all AND origin = 'code' AND {d.one_of("name", "declared")}
        AND (paused_at IS NOT NULL OR next_run_at IS NULL OR next_run_at > {d.now})
    """


def _moment(d: Dialect, value: str) -> str:
    return f"CAST({value} AS timestamptz)" if d.name == "postgresql" else value


def _move(d: Dialect) -> str:
    plans = d.table("plans", definition_id="bigint", expected="text", following="text")
    return f"""
    UPDATE job_definitions SET next_run_at = {_moment(d, "p.following")}, updated_at = {d.now}
    FROM {plans} AS p
    WHERE job_definitions.id = p.definition_id AND job_definitions.paused_at IS NULL
        AND job_definitions.next_run_at = {_moment(d, "p.expected")}
    RETURNING job_definitions.id AS id
    """


def _insert(d: Dialect, moved: str) -> str:
    overlapping = (
        "(d.overlap = 'skip' AND EXISTS (SELECT 1 FROM job_runs live"
        f" WHERE live.definition_id = d.id AND live.{LIVE}))"
    )
    at = _moment(d, "s.at")
    return f"""
    INSERT INTO job_runs (definition_id, job_type, queue, payload, priority, scheduled_for, run_at,
        max_attempts, concurrency_key, concurrency_limit, created_at, updated_at,
        status, finished_at, last_error, error_type, result)
    SELECT d.id, d.job_type, d.queue, d.payload, d.priority, {at}, {at},
        d.max_attempts, d.concurrency_key, d.concurrency_limit, {d.now}, {d.now},
        CASE WHEN s.skipped > 0 OR {overlapping} THEN 'skipped' ELSE 'queued' END,
        CASE WHEN s.skipped > 0 OR {overlapping} THEN {d.now} END,
        CASE WHEN s.skipped > 0 THEN s.reason
             WHEN {overlapping} THEN 'overlap: an earlier run was not finished' END,
        CASE WHEN s.skipped > 0 THEN 'Missed' WHEN {overlapping} THEN 'Overlap' END,
        CASE WHEN s.skipped > 0 THEN {d.json("s.note")}
             WHEN {overlapping} THEN {d.json(_ONE_SKIPPED)} END
    FROM {d.table("slots", **_SLOT_COLUMNS)} AS s JOIN job_definitions d ON d.id = s.definition_id
    WHERE d.id IN ({moved})
    ORDER BY s.at
    ON CONFLICT DO NOTHING
    RETURNING id, definition_id, job_type, scheduled_for, status, result, last_error
    """


def _record_at_once(d: Dialect) -> str:
    return f"WITH moved AS ({_move(d)}) {_insert(d, 'SELECT id FROM moved')}"
