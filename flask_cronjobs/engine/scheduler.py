"""Turn due slots into runs, and keep the definitions in step with the code."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache

from .. import failpoints, signals
from ..errors import CronJobsError, DatabaseTrouble
from ..log import log_run, logger
from ..schedule import Schedule
from ..schedule.slots import plan_slots
from ..signals import notify
from ..state import State
from ..store import Definitions
from ..store.definitions import BATCH
from ..store.errors import is_about_the_rows
from ..types import DefinitionRow, DefinitionSpec, RecordedSlot, SlotPlan
from .observer import Observer


def enqueue_slots(
    state: State, definitions: Definitions, observer: Observer
) -> tuple[Counter[str], list[DefinitionRow]]:
    """Turn due slots into runs. Do this before `sync_definitions`.

    A slot that is due is owed under the schedule that its row still has.

    :returns: how many rows were recorded and skipped, and the definitions that were read, with
        their watermarks as they now stand.
    """
    counts: Counter[str] = Counter()
    seen: list[DefinitionRow] = []
    declared, tasks = list(state.registry.declarations), list(state.registry.tasks)
    after = 0
    while True:
        rows = definitions.read(declared, tasks, after)
        due = [row for row in rows if row.due]
        plans = [plan for row in due if (plan := plan_due(row)) is not None]
        for slot in _record(definitions, rows, plans):
            counts["skipped" if slot.skipped else "recorded"] += 1
            announce_slot(state, slot, observer)
        following = {plan.definition_id: plan.following for plan in plans}
        seen += [
            replace(row, next_run_at=following[row.id]) if row.id in following else row
            for row in rows
        ]
        if len(due) < BATCH:
            break
        after = due[-1].id
    failpoints.reach("after-slots")
    return counts, seen


def sync_definitions(state: State, definitions: Definitions, rows: Sequence[DefinitionRow]) -> None:
    """Insert the definitions that only the code has; change the rows that differ from the code.

    :param rows: the definitions that `enqueue_slots` read.
    """
    by_name = {row.spec.name: row for row in rows}
    missing: list[DefinitionSpec] = []
    for name, declaration in state.registry.declarations.items():
        try:
            spec = declaration.spec(state.settings)
        except CronJobsError as error:
            logger.error("The definition %r is declared wrongly, and left out: %s", name, error)
            continue
        row = by_name.get(name)
        if row is None:
            missing.append(spec)
        elif spec != row.spec or row.broken is not None:
            definitions.change(row, spec, first_slot(spec, row.now))
    if missing:
        now = definitions.now()
        made = definitions.declare([(spec, first_slot(spec, now)) for spec in missing], "code")
        if made < len(missing):
            _log_taken_names(definitions, missing)


def _record(
    definitions: Definitions, rows: Sequence[DefinitionRow], plans: Sequence[SlotPlan]
) -> list[RecordedSlot]:
    """Record *plans*, one by one if the database refuses a row, so that it stops no other."""
    try:
        return definitions.record_slots(plans)
    except DatabaseTrouble as trouble:
        if not is_about_the_rows(trouble):
            raise
        if len(plans) == 1:
            _log_broken(next(row for row in rows if row.id == plans[0].definition_id), trouble)
            return []
    return [slot for plan in plans for slot in _record(definitions, rows, [plan])]


def _log_taken_names(definitions: Definitions, specs: Sequence[DefinitionSpec]) -> None:
    """Log which of *specs*, declared in code, have a name that `add_definition` took before."""
    for spec in specs:
        row = definitions.find(spec.name)
        if row is not None and row.origin == "database":
            logger.error(
                "The definition %r is declared in code, but add_definition() made one of that name "
                "before, which holds. Rename one of them, or call remove_definition(%r).",
                spec.name,
                spec.name,
            )


def first_slot(spec: DefinitionSpec, now: datetime) -> datetime | None:
    """Return the first slot of *spec* after *now*."""
    return Schedule(spec.schedule, spec.timezone).next_after(now)


@lru_cache(maxsize=1024)
def _schedule(cron: str, timezone: str) -> Schedule:
    return Schedule(cron, timezone)


def plan_due(row: DefinitionRow) -> SlotPlan | None:
    """Return the plan for a due definition's slots; None if the row is broken, which is logged."""
    if row.broken is not None or row.next_run_at is None:
        _log_broken(row, row.broken)
        return None
    try:
        schedule = _schedule(row.spec.schedule, row.spec.timezone)
        return plan_slots(row.id, schedule, row.spec.catchup, row.next_run_at, row.now)
    except CronJobsError as error:
        _log_broken(row, error)
        return None


def _log_broken(row: DefinitionRow, why: object) -> None:
    logger.error(
        "The definition %r is broken, and its slots wait: %s Mend it in the code or in "
        "job_definitions, or run: flask jobs admin pause %s",
        row.spec.name,
        why,
        row.spec.name,
    )


def announce_slot(state: State, slot: RecordedSlot, observer: Observer) -> None:
    """Log a recorded slot, send its signal, and notify *observer*."""
    if slot.skipped:
        why = f"{slot.skipped} slot(s) up to {slot.at.isoformat()}: {slot.reason}"
        log_run(
            logging.WARNING, "skipped", task=slot.job_type, run_id=slot.run_id, attempt=0, why=why
        )
        signals.send(signals.slot_skipped, state.app, slot=slot)
    else:
        why = f"slot of {slot.at.isoformat()}"
        log_run(logging.INFO, "queued", task=slot.job_type, run_id=slot.run_id, attempt=0, why=why)
    notify(observer.slot, slot)
