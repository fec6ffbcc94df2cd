"""Each slot has one row, ever; the watermark and the row change together."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from flask_cronjobs.core import gate
from flask_cronjobs.models import JobDefinition
from flask_cronjobs.schedule.catchup import Slot
from flask_cronjobs.types import OutcomeKind
from tests.kit import Kit, in_threads, plan
from tests.rows import TERMINAL, ago, now


@pytest.fixture
def at() -> datetime:
    """The slot that is due."""
    return ago(minutes=1)


def test_due_slot_becomes_a_queued_run_and_the_watermark_moves_on(kit: Kit, at: datetime) -> None:
    following = now() + timedelta(hours=1)
    columns: dict[str, Any] = {
        "payload": {"a": 1}, "queue": "mail", "priority": 3, "max_attempts": 4,
        "concurrency_key": "key", "concurrency_limit": 2,
    }  # fmt: skip
    definition = kit.define(due=at, overlap="allow", **columns)
    (recorded,) = kit.slots.record_slots({definition: plan(at, following=following)})
    assert kit.defined(definition).next_run_at == following
    row = kit.get(recorded.run_id)
    assert (row.definition_id, row.job_type, row.status) == (definition, "task", "queued")
    assert {name: getattr(row, name) for name in columns} == columns
    assert row.scheduled_for == row.run_at == at
    assert (recorded.at, recorded.skipped, recorded.reason) == (at, 0, None)
    assert kit.claim_one().scheduled_for == at


def test_plan_made_from_an_older_watermark_is_dropped(kit: Kit, at: datetime) -> None:
    first, second = (kit.define(name, due=at) for name in "ab")
    kit.slots.record_slots({second: plan(at)})
    watermark = kit.defined(second).next_run_at
    late = plan(at, Slot(ago(seconds=30)), following=now())
    recorded = kit.slots.record_slots({first: plan(at), second: late})
    assert [slot.definition_id for slot in recorded] == [first]
    assert kit.defined(second).next_run_at == watermark


def test_slot_whose_row_is_there_makes_no_second_one(kit: Kit, at: datetime) -> None:
    """The watermark may have moved back through a restored backup or by hand."""
    definition = kit.define(due=at, overlap="allow")
    kit.slots.record_slots({definition: plan(at)})
    with kit.engine.begin() as connection:
        connection.execute(update(JobDefinition).values(next_run_at=at))
    assert kit.slots.record_slots({definition: plan(at)}) == []
    assert len(kit.all_rows()) == 1


def test_paused_definition_records_nothing(kit: Kit, at: datetime) -> None:
    definition = kit.define("one", due=at)
    assert kit.definitions.pause(kit.find("one"))
    assert kit.slots.record_slots({definition: plan(at)}) == []
    assert kit.defined(definition).next_run_at == at


#: Earlier runs of a definition by their status, and whether each is live.
EARLIER: dict[str, tuple[dict[str, Any], bool]] = {
    "queued": ({}, True),
    "running": ({"attempts": 1, "locked_by": "host:1:x", "locked_until": ago(-3600)}, True),
    "failed": ({"run_at": ago(-3600)}, False),  # The run waits for its retry.
    **{status: ({"finished_at": ago()}, False) for status in TERMINAL},
}


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_slot_is_skipped_and_recorded_while_an_earlier_run_of_its_definition_is_live(
    kit: Kit, at: datetime, overlap: str
) -> None:
    for status, (values, live) in EARLIER.items():
        definition = kit.define(status, due=at, overlap=overlap)
        values = {"scheduled_for": ago(3600), **values}
        kit.run(status, job_type=status, definition_id=definition, **values)
        (recorded,) = kit.slots.record_slots({definition: plan(at)})
        row, skips = kit.get(recorded.run_id), live and overlap == "skip"
        assert (recorded.skipped, row.status) == (skips, "skipped" if skips else "queued"), status
        assert row.last_error == recorded.reason
        if skips:
            assert (row.error_type, row.attempts) == ("Overlap", 0)
            assert row.finished_at is not None
            assert recorded.reason == "overlap: an earlier run was not finished"


@pytest.mark.parametrize("kind", ["released", "snoozed"])
def test_a_run_that_waits_on_purpose_is_live_though_an_attempt_has_failed(
    kit: Kit, at: datetime, kind: OutcomeKind
) -> None:
    """For example, it sleeps at a step, or a deploy gave it back."""
    definition = kit.define(due=at)
    run = kit.run(definition_id=definition, scheduled_for=ago(3600))
    assert kit.finish(kit.claim_one(), "failed", delay=0)
    # SQLite's clock counts milliseconds, so this must be long enough ago.
    kit.sql("UPDATE job_runs SET failed_at = :at", at=ago(1))
    assert kit.finish(kit.claim_one(), kind, delay=3600)
    assert kit.get(run).status == "failed"
    (recorded,) = kit.slots.record_slots({definition: plan(at)})
    assert recorded.reason == "overlap: an earlier run was not finished"


def test_gap_is_one_skipped_row_with_its_count_and_reason(kit: Kit, at: datetime) -> None:
    first, last = ago(hours=5), ago(hours=1)
    definition = kit.define(due=first)
    gap = Slot(last, skipped=240, first=first, reason="missed: no tick ran in time")
    recorded = kit.slots.record_slots({definition: plan(first, gap, Slot(at))})
    skipped, run = sorted(recorded, key=lambda slot: slot.at)
    assert (skipped.skipped, skipped.reason) == (240, "missed: no tick ran in time")
    row = kit.get(skipped.run_id)
    assert (row.status, row.error_type, row.scheduled_for) == ("skipped", "Missed", last)
    assert row.result == {"skipped": 240, "from": first.isoformat(), "to": last.isoformat()}
    assert kit.get(run.run_id).status == "queued"


def test_racing_ticks_record_each_slot_once(kit: Kit, at: datetime) -> None:
    plans = {kit.define(f"definition {number}", due=at): plan(at) for number in range(30)}
    recorded: list[int] = []

    def compete() -> None:
        worker = kit.another()
        with worker.books:
            for batch in (*({id_: plans[id_]} for id_ in plans), plans):
                recorded.extend(slot.definition_id for slot in worker.slots.record_slots(batch))

    in_threads(*[compete] * 6)
    assert sorted(recorded) == sorted(plans)
    assert len(kit.all_rows()) == 30


# No two runs of a definition with overlap="skip" run at once


def define_with_slots(kit: Kit, *minutes: int, **values: Any) -> int:
    """Insert a definition with a queued run for the slot of each of *minutes* ago."""
    times = [ago(minutes=age) for age in minutes]
    definition = kit.define(due=times[0], **values)
    kit.slots.record_slots({definition: plan(times[0], *map(Slot, times))})
    return definition


def test_slots_that_are_caught_up_run_one_after_the_other(kit: Kit) -> None:
    define_with_slots(kit, 4, 3, 2)
    payloads = []
    second_worker = kit.another()
    with second_worker.books:
        for _ in range(3):
            claim = kit.claim_one()
            assert second_worker.claim() == ()
            payloads.append(claim.scheduled_for)
            assert kit.finish(claim)
            gate.open_behind(kit.books, [claim.id])
    assert payloads == sorted(payloads)
    assert kit.claim() == ()


def test_retry_and_the_next_slot_s_run_are_not_at_work_at_once(kit: Kit) -> None:
    definition = define_with_slots(kit, 2)
    first = kit.claim_one()
    assert kit.finish(first, "failed", delay=3600)
    watermark = kit.defined(definition).next_run_at
    assert watermark is not None
    caught_up = plan(watermark, Slot(ago(minutes=1)))
    (recorded,) = kit.slots.record_slots({definition: caught_up})
    assert recorded.skipped == 0
    second = kit.claim_one()
    assert second.id == recorded.run_id
    kit.sql("UPDATE job_runs SET run_at = scheduled_for WHERE status = 'failed'")
    assert kit.claim() == ()
    assert kit.finish(second)
    assert gate.open_behind(kit.books, [second.id]) == 1
    assert kit.claim_one().id == first.id


def test_overlap_that_is_allowed_runs_side_by_side(kit: Kit) -> None:
    define_with_slots(kit, 4, 3, 2, overlap="allow")
    assert len(kit.claim()) == 3
