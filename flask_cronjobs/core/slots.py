"""Record the slots of definitions as runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, text

from ..db import failpoints
from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import LIVE
from ..schedule.catchup import Slot, SlotPlan
from ..types import RecordedSlot, stored_json, stored_time
from .columns import insert_into_runs, rate_gate
from .new_run import POLICY

_SLOT_COLUMNS = {
    **dict.fromkeys(("at", "reason", "kind", "note"), "text"),
    "definition_id": "bigint",
    "skipped": "integer",
}
_PLAN_COLUMNS = {
    "definition_id": "bigint",
    **dict.fromkeys(("expected", "following", "considered"), "text"),
}
_ONE_SKIPPED = """'{"skipped": 1}'"""
# A run that waits for its retry does not overlap, but a run that sleeps does. Either may have the
# status ``failed``; if it sleeps, an attempt has begun after the last failure. The condition
# contains LIVE, because SQLite uses a partial index only if the query repeats the index's condition
# literally.
_OVERLAPS = f"{LIVE} AND (live.status <> 'failed' OR live.failed_at < live.started_at)"
# Two runs of a definition with overlap='skip' never run at once: each takes the first share of the
# definition's key or, without one, of a key made from the definition's name. So a slot's limit is 1
# even if enqueued runs of the same key have a higher one.
_KEY = "COALESCE(d.concurrency_key, CASE WHEN d.overlap = 'skip' THEN 'definition:' || d.name END)"
_LIMIT = "CASE WHEN d.overlap = 'skip' THEN 1 ELSE d.concurrency_limit END"


def record_slots(books: Bookkeeping, plans: Mapping[int, SlotPlan]) -> list[RecordedSlot]:
    """Move the watermarks of definitions, and insert a row for each slot of their *plans*.

    *plans* are keyed by the definition's id. All is done in one transaction:

    1. Move a watermark only if it has the value that its plan expects. Otherwise another tick was
       faster, and the plan is dropped.
    2. Insert each slot as ``queued`` or ``skipped``. With ``overlap='skip'``, skip it while an
       earlier run of the definition has not ended, unless that run waits for a retry.
    """
    return books.transaction(partial(_record, d=books.dialect, plans=plans))


def insert_slots(
    connection: Connection, d: Dialect, slots: Mapping[int, Sequence[Slot]]
) -> list[RecordedSlot]:
    """Insert a row for each of the *slots* of definitions, in *connection*'s transaction."""
    rows = [
        {**slot._asdict(), "definition_id": id_, "note": _note(slot)}
        for id_, due_slots in slots.items()
        for slot in due_slots
    ]
    parameters = {"ids": d.many(slots), "slots": _table(d, rows, _SLOT_COLUMNS)}
    return [_recorded(row) for row in connection.execute(text(insert_of_slots(d)), parameters)]


def _record(
    connection: Connection, d: Dialect, plans: Mapping[int, SlotPlan]
) -> list[RecordedSlot]:
    rows = ({**plan._asdict(), "definition_id": id_} for id_, plan in plans.items())
    parameters = {"plans": _table(d, rows, _PLAN_COLUMNS)}
    moved_rows = connection.execute(text(_move_watermarks(d)), parameters).all()
    failpoints.reach("between-watermark-and-insert")
    return insert_slots(connection, d, {row.id: plans[row.id].slots for row in moved_rows})


def _move_watermarks(d: Dialect) -> str:
    """Return the UPDATE that moves each watermark from ``expected`` to ``following``.

    On PostgreSQL, a locked definition is left to the next tick.
    """
    free = ""
    if d.skip_locked:
        planned = f"SELECT definition_id FROM {d.table('plans', definition_id='bigint')} AS p"
        ids = f"SELECT id FROM job_definitions WHERE {d.any_of('id', planned)} {d.skip_locked}"
        free = f"AND {d.any_of('job_definitions.id', ids)}"
    plans = d.table("plans", **_PLAN_COLUMNS)
    return f"""
    UPDATE job_definitions SET next_run_at = {d.typed("p.following", "timestamptz")},
        considered_until = COALESCE({d.typed("p.considered", "timestamptz")}, considered_until),
        undeclared_since = NULL, updated_at = {d.now}
    FROM {plans} AS p
    WHERE job_definitions.id = p.definition_id AND job_definitions.paused_at IS NULL
        AND {d.same_instant("job_definitions.next_run_at", "p.expected")}
        {free}
    RETURNING job_definitions.id AS id
    """


def insert_of_slots(d: Dialect) -> str:
    """Return the INSERT of a run for each slot in ``slots`` whose definition is in ``ids``."""
    # With EXISTS instead, PostgreSQL might choose to read all live runs.
    overlapping = (
        "(d.overlap = 'skip' AND (SELECT live.id FROM job_runs live"
        f" WHERE live.definition_id = d.id AND live.{_OVERLAPS} LIMIT 1) IS NOT NULL)"
    )
    at = d.typed("s.at", "timestamptz")
    skipped = f"(s.skipped > 0 OR {overlapping})"
    overlap = "'overlap: an earlier run was not finished'"
    values = {
        **{name: f"d.{name}" for name in ("payload", *POLICY)},
        "definition_id": "d.id",
        "concurrency_key": _KEY,
        "concurrency_limit": _LIMIT,
        "status": f"CASE WHEN {skipped} THEN 'skipped' ELSE 'queued' END",
        "finished_at": f"CASE WHEN {skipped} THEN {d.now} END",
        "gate": f"CASE WHEN NOT {skipped} THEN {rate_gate('d.rate_key')} END",
        **{
            name: f"CASE WHEN s.skipped > 0 THEN {by_plan} WHEN {overlapping} THEN {by_overlap} END"
            for name, by_plan, by_overlap in (
                ("last_error", "s.reason", overlap),
                ("error_type", "s.kind", "'Overlap'"),
                ("result", d.json("s.note"), d.json(_ONE_SKIPPED)),
            )
        },
    }
    source = f"""
    FROM {d.table("slots", **_SLOT_COLUMNS)} AS s JOIN job_definitions d ON d.id = s.definition_id
    WHERE {d.among("d.id")}
    ORDER BY s.at
    ON CONFLICT DO NOTHING
    RETURNING id, definition_id, job_type, scheduled_for, status, last_error,
        {d.unparsed("result")} AS result
    """
    return insert_into_runs(values, at, d.now, source)


def slots_of(result: Any, last: datetime) -> tuple[int, datetime]:
    """Return the number of skipped slots that a row stands for, and the first of them.

    :param result: the row's result. If it names no first slot, as after an overlap, or cannot be
        read, the row counts as one slot.
    :param last: the last of the slots.
    """
    try:
        return int(result["skipped"]), datetime.fromisoformat(result["from"])
    except (TypeError, KeyError, ValueError):
        return 1, last


def _recorded(row: Row[Any]) -> RecordedSlot:
    result = stored_json(row.result)
    return RecordedSlot(
        run_id=row.id,
        definition_id=row.definition_id,
        job_type=row.job_type,
        at=stored_time(row.scheduled_for),
        skipped=result["skipped"] if row.status == "skipped" else 0,
        reason=row.last_error,
    )


def _table(d: Dialect, rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> str:
    """Return *columns* of *rows* as JSON, with times in the database's format."""

    def plain(value: Any) -> Any:
        return d.instant(value) if isinstance(value, datetime) else value

    return json.dumps([{name: plain(row[name]) for name in columns} for row in rows])


def _note(slot: Slot) -> str | None:
    """Return the result of a skipped run, which names the skipped slots."""
    if slot.first is None:
        return None
    first, last = slot.first.isoformat(), slot.at.isoformat()
    return json.dumps({"skipped": slot.skipped, "from": first, "to": last})
