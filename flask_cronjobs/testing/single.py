"""One run that a test makes and performs, and no other."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import select

from ..engine.scheduler import announce_slot, first_slot
from ..enqueue import enqueue_one
from ..errors import NotFound, StateConflict
from ..models import JobRun
from ..registry.options import EnqueueOptions, is_moment
from ..schedule import Schedule
from ..schedule.slots import Slot, SlotPlan
from ..state import State
from ..store import Definitions
from ..store.for_testing import prepare_run
from ..store.rows import DefinitionRow
from ..text import did_you_mean
from ..types import RecordedSlot
from .inline import inline_worker


def enqueue_alone(state: State, name: str, payload: Mapping[str, object], attempt: int) -> int:
    """Commit a run in a session of its own, and return its id."""
    with state.app.app_context():
        handler = state.registry.get(name)
        enqueued = enqueue_one(
            state, handler, handler.payload_from(payload), EnqueueOptions(commit=True)
        )
        if not 1 <= attempt <= enqueued.max_attempts:
            state.db.session.delete(enqueued)
            state.db.session.commit()
            most = enqueued.max_attempts
            raise ValueError(f"attempt is {attempt}, but a run of {name!r} has {most} at most.")
        return enqueued.id


def perform_alone(
    state: State, run_id: int, values: Mapping[str, object], raise_errors: bool
) -> None:
    """Perform the run *run_id*, and no other: it has a queue of its own until it is claimed."""
    own = f"testing-{secrets.token_hex(8)}"
    with state.bookkeeping() as books:
        queue = loaded(state, run_id).queue
        prepare_run(books, run_id, queue=own, **values)
        with inline_worker(state, (own,), raise_errors) as worker:
            claim = worker.claim()
            prepare_run(books, run_id, queue=queue)
            if claim is None:
                raise StateConflict(
                    f"Run {run_id} cannot be claimed: as many runs of its concurrency key as may "
                    "are running already, or it is paused."
                )
            worker.perform(claim)


def loaded(state: State, run_id: int) -> JobRun:
    """Return a run as it is now, in ``db.session``."""
    found = state.db.session.get(JobRun, run_id, populate_existing=True)
    if found is None:
        raise NotFound(f"Run {run_id} was deleted.")
    return found


def find_definition(state: State, name: str) -> DefinitionRow:
    """Return a definition; insert it as a tick would, if only the code has it."""
    with state.bookkeeping() as books:
        definitions = Definitions(books)
        declared = state.registry.declarations.get(name)
        found = definitions.find(name)
        if found is None and declared is not None:
            spec = declared.spec(state.settings)
            definitions.declare(
                [(spec, first_slot(spec, definitions.now()))], "code", state.app.name
            )
            found = definitions.find(name)
    if found is None:
        hint = did_you_mean(name, state.registry.declarations)
        raise NotFound(f"There is no definition {name!r}.{hint}")
    return found


def slot_of(found: DefinitionRow, at: datetime | None) -> datetime:
    """Return *at*, or the next slot of a definition.

    :raises ValueError: its schedule does not name it.
    """
    schedule = Schedule(found.spec.schedule, found.spec.timezone)
    moment = schedule.next_after(found.now) if at is None else aware(at)
    if moment is None or not schedule.is_slot(moment):
        following = schedule.next_after(moment or found.now)
        raise ValueError(
            f"The schedule {found.spec.schedule!r} ({found.spec.timezone}) of {found.spec.name!r} "
            f"does not name {moment}. Next after that: {following}."
        )
    return moment


def record_slot(state: State, name: str, moment: datetime) -> RecordedSlot:
    """Insert the row of a definition's slot, and leave its watermark.

    :raises StateConflict: there is one already, or the definition is paused.
    """
    with state.bookkeeping() as books:
        definitions = Definitions(books)
        found = definitions.find(name)
        if found is None or found.next_run_at is None or found.paused:
            raise StateConflict(f"The definition {name!r} is paused, or has no slot to come.")
        watermark = found.next_run_at  # Stays: the slots until then are owed as before.
        plan = SlotPlan(found.id, watermark, watermark, (Slot(found.id, moment),))
        slots = definitions.record_slots([plan])
    if not slots:
        raise StateConflict(f"The slot of {name!r} at {moment} has a run already.")
    announce_slot(state, slots[0])
    return slots[0]


def refuse_taken(state: State, found: DefinitionRow, moment: object) -> None:
    """Refuse a run of a definition for a time for which it has one.

    :raises StateConflict: it has.
    """
    taken = state.db.session.scalar(
        select(JobRun.id).filter_by(definition_id=found.id, scheduled_for=moment)
    )
    if taken is not None:
        raise StateConflict(
            f"The slot of {found.spec.name!r} at {moment} has a run already: {taken}. Leave "
            "scheduled_for out, or give another time."
        )


def aware(moment: datetime) -> datetime:
    """Return *moment*, a time.

    :raises ValueError: it is naive, or no time.
    """
    if not is_moment(moment):
        raise ValueError(
            f"{str(moment)!r} is not a time with a time zone, in the years 1000 to 9999. Give an "
            "aware datetime, such as datetime.now(timezone.utc)."
        )
    return moment
