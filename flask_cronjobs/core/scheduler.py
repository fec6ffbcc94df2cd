"""Turn due slots into runs, and keep the definitions in sync with the code."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from .. import signals
from ..db import failpoints
from ..db.connection import Bookkeeping
from ..db.errors import is_about_the_rows
from ..errors import CronJobsError, DatabaseTrouble
from ..log import log_run, logger
from ..schedule import Schedule
from ..schedule.catchup import SlotPlan, plan_slots
from ..signals import News, notify, unheard
from ..text import argument
from ..types import Catchup, RecordedSlot
from . import definitions
from .app_state import State
from .definitions import DEFINITIONS_READ, DefinitionRow
from .slots import record_slots
from .tasks.registry import DefinitionSpec
from .ticks import TickHistory


def enqueue_slots(
    state: State, books: Bookkeeping, news: News
) -> tuple[Counter[str], list[DefinitionRow]]:
    """Turn due slots into runs. Do this before `sync_definitions`.

    Due slots are computed from the schedule in the row, even if the code has a new one, and from
    the current time zone data.

    :returns: the numbers of recorded and skipped rows, and the definitions that were read, with
        their new watermarks. If the database refuses a definition's slots, its watermark stays.
    """
    counts: Counter[str] = Counter()
    definition_rows: list[DefinitionRow] = []
    declared, tasks = list(state.registry.declarations), list(state.registry.tasks)
    after, history = 0, TickHistory(books)
    while True:
        rows = definitions.read(books, declared, tasks, after)
        due_rows = [row for row in rows if row.due]
        plans = {row.id: plan for row in due_rows if (plan := plan_due(row, history))}
        for slot in _record(books, rows, plans) if plans else ():
            counts["skipped" if slot.skipped else "recorded"] += 1
            announce_slot(state, slot, news)
        definition_rows += [
            row._replace(next_run_at=plans[row.id].following) if row.id in plans else row
            for row in rows
        ]
        if len(due_rows) < DEFINITIONS_READ:
            break
        # This is not always the last id: the first read adds broken definitions, whose ids may be
        # higher than those of due ones that are not read yet.
        after = due_rows[DEFINITIONS_READ - 1].id
    failpoints.reach("after-slots")
    return counts, definition_rows


def sync_definitions(
    state: State, books: Bookkeeping, rows: Sequence[DefinitionRow], undeclared: bool = False
) -> None:
    """Insert the definitions that only the code has, and update rows that differ from the code.

    :param rows: the definitions that `enqueue_slots` returned.
    :param undeclared: see `ticks.TickRow`.
    """
    by_name = {row.spec.name: row for row in rows if row.origin == "code"}
    app = state.app.name
    missing: list[DefinitionSpec] = []
    for name, declaration in state.registry.declarations.items():
        try:
            spec = declaration.spec(state.settings)
        except CronJobsError as error:
            logger.error("The definition %r is not valid, so it was not recorded: %s", name, error)
            continue
        row = by_name.get(name)
        if row is None:
            missing.append(spec)
        elif spec != row.spec or row.broken is not None:
            if row.app not in (None, app):
                _log_overwritten(row, app)
            row = record_pause(state, books, row, spec)
            definitions.change(books, row, spec, first_slot(spec, row.now), app)
    if missing:
        now = definitions.now(books)
        with_slots = [(spec, first_slot(spec, now)) for spec in missing]
        if definitions.declare(books, with_slots, "code", app) < len(missing):
            _log_taken_names(books, missing)
    if undeclared:
        definitions.mark_undeclared(books, list(state.registry.declarations), app)
    ids = [
        row.id
        for row in rows
        if row.origin == "code" and (row.undeclared_since is not None or row.app is None)
    ]
    if ids:
        definitions.mark_declared(books, ids[:DEFINITIONS_READ], app)


def find_or_record(state: State, books: Bookkeeping, name: str) -> DefinitionRow | None:
    """Return the definition *name*, inserting it first if only the code has it."""
    row = definitions.find(books, name)
    declaration = state.registry.declarations.get(name)
    if row is not None or declaration is None:
        return row
    spec = declaration.spec(state.settings)
    slot = first_slot(spec, definitions.now(books))
    definitions.declare(books, [(spec, slot)], "code", state.app.name)
    return definitions.find(books, name)


def _log_overwritten(row: DefinitionRow, app: str) -> None:
    logger.warning(
        "The app %r declares the definition %r differently from the app %r, and overwrites it. "
        "Two apps on one database need different names for their definitions and tasks.",
        app,
        row.spec.name,
        row.app,
    )


def _log_taken_names(books: Bookkeeping, specs: Sequence[DefinitionSpec]) -> None:
    """Log which of *specs*, which code declares, cannot be recorded under their names."""
    for spec in specs:
        row = definitions.find(books, spec.name)
        if row is not None and row.origin == "database":
            logger.error(
                "The definition %r of the code is not recorded, and its slots do not run, since "
                "add_definition made one of that name. Give it another name, or remove the other "
                "one: flask jobs admin remove %s",
                spec.name,
                argument(spec.name),
            )


def _record(
    books: Bookkeeping, rows: Sequence[DefinitionRow], plans: dict[int, SlotPlan]
) -> list[RecordedSlot]:
    """Record *plans*; if the database refuses a row, record them one by one.

    Plans that it refuses are removed from *plans*.
    """
    try:
        return record_slots(books, plans)
    except DatabaseTrouble as trouble:
        if not is_about_the_rows(trouble):
            raise
        if len(plans) == 1:
            _log_broken(next(row for row in rows if row.id in plans), trouble)
            plans.clear()
            return []
    recorded: list[RecordedSlot] = []
    for id_ in list(plans):
        plan_alone = {id_: plans.pop(id_)}
        recorded += _record(books, rows, plan_alone)
        plans |= plan_alone
    return recorded


def first_slot(spec: DefinitionSpec, now: datetime) -> datetime | None:
    """Return the first slot of *spec* after *now*."""
    return Schedule(spec.schedule, spec.timezone).next_after(now)


@lru_cache(maxsize=1024)
def _schedule(cron: str, timezone: str) -> Schedule:
    return Schedule(cron, timezone)


def plan_due(row: DefinitionRow, history: TickHistory) -> SlotPlan | None:
    """Return the plan for a due definition's slots; if its row is broken, log it and return None.

    If, for longer than `TickHistory.grace`, ticks have run code that does not declare the
    definition, its due slots do not run.
    """
    if row.broken is not None or row.next_run_at is None:
        _log_broken(row, row.broken)
        return None
    try:
        since = row.undeclared_since
        if since is not None and row.now - since > history.grace:
            reason = f"not declared by the code that ticks have run since {since.isoformat()}"
            return _plan(row, None, reason=reason, kind="Undeclared")
        plan = _plan(row, row.spec.catchup)
        if not any(slot.skipped for slot in plan.slots):
            return plan
        last, reason = history.last_finished, "missed: no tick ran in time"
        if last is not None and last >= row.next_run_at:
            reason = "missed: ticks ran, but none recorded it in time"
        return _plan(row, row.spec.catchup, grace=history.grace, reason=reason)
    except CronJobsError as error:
        _log_broken(row, error)
        return None


def plan_paused(row: DefinitionRow) -> SlotPlan:
    """Return the plan that skips all slots of a definition's pause so far.

    :raises ScheduleError: the schedule cannot be read.
    """
    return _plan(row, None, reason="paused: slots during a pause are not run", kind="Paused")


def _plan(row: DefinitionRow, catchup: Catchup | None, **why: Any) -> SlotPlan:
    """Return the plan for the slots up to now, passing *why* to `plan_slots`."""
    schedule, first = _schedule(row.spec.schedule, row.spec.timezone), row.next_run_at or row.now
    return plan_slots(schedule, catchup, first, row.now, row.considered_until, **why)


def record_pause(
    state: State, books: Bookkeeping, row: DefinitionRow, spec: DefinitionSpec
) -> DefinitionRow:
    """Record the slots that a pause has skipped so far, before *spec* changes the schedule.

    :returns: *row* with its new watermark.
    """
    if not row.paused or not definitions.moves(row.spec, spec):
        return row
    try:
        plan = plan_paused(row)
    except CronJobsError:
        return row  # The schedule cannot be read, so it names no slots.
    if not plan.slots:
        return row
    for slot in definitions.skip_pause(books, row, plan) or ():
        announce_slot(state, slot)
    return row._replace(next_run_at=plan.following, considered_until=row.now)


def _log_broken(row: DefinitionRow, why: object) -> None:
    logger.error(
        "The definition %r is broken, and its slots wait: %s Correct it in the code or in "
        "job_definitions, or pause it: flask jobs admin pause %s",
        row.spec.name,
        why,
        argument(row.spec.name),
    )


def announce_slot(state: State, slot: RecordedSlot, news: News = unheard) -> None:
    """Log a recorded slot, send its signal, and pass it to *news*."""
    if slot.skipped:
        why = f"{slot.skipped} slot(s) up to {slot.at.isoformat()}: {slot.reason}"
        log_run(
            logging.WARNING, "skipped", task=slot.job_type, run_id=slot.run_id, attempt=0, why=why
        )
        signals.send(signals.slot_skipped, state.app, slot=slot)
    else:
        why = f"slot of {slot.at.isoformat()}"
        log_run(logging.INFO, "queued", task=slot.job_type, run_id=slot.run_id, attempt=0, why=why)
    notify(news, "slot", {**slot._asdict(), "at": slot.at.isoformat()})
