"""Slots: one row each, ever; the watermark and the row move together."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from flask_cronjobs.models import JobDefinition
from flask_cronjobs.schedule.catchup import Slot
from tests.kit import Kit, plan
from tests.rows import ago, now


def test_due_slot_becomes_a_queued_run_and_the_watermark_moves_on(kit: Kit) -> None:
    at = ago(minutes=1)
    following = now() + timedelta(hours=1)
    definition = kit.define(
        due=at, payload={"a": 1}, queue="mail", priority=3, max_attempts=4, overlap="allow"
    )
    (recorded,) = kit.slots.record_slots([plan(definition, at, following=following)])
    assert kit.definition(definition).next_run_at == following
    row = kit.row(recorded.run_id)
    assert (row.definition_id, row.job_type, row.status) == (definition, "task", "queued")
    assert (row.payload, row.queue, row.priority, row.max_attempts) == ({"a": 1}, "mail", 3, 4)
    assert row.scheduled_for == row.run_at == at
    assert (recorded.at, recorded.skipped, recorded.reason) == (at, 0, None)
    assert kit.claim_one().scheduled_for == at


def test_run_of_a_definition_carries_its_concurrency(kit: Kit) -> None:
    at = ago(minutes=1)
    definition = kit.define(due=at, overlap="allow", concurrency_key="key", concurrency_limit=2)
    (recorded,) = kit.slots.record_slots([plan(definition, at)])
    row = kit.row(recorded.run_id)
    assert (row.concurrency_key, row.concurrency_limit) == ("key", 2)


def test_plan_made_from_an_older_watermark_is_dropped(kit: Kit) -> None:
    at = ago(minutes=1)
    definition = kit.define(due=at)
    stale = plan(definition, at)
    assert len(kit.slots.record_slots([stale])) == 1
    watermark = kit.definition(definition).next_run_at
    assert kit.slots.record_slots([stale]) == []
    assert kit.definition(definition).next_run_at == watermark
    assert len(kit.all_rows()) == 1


def test_slot_whose_row_is_there_makes_no_second_one(kit: Kit) -> None:
    """Whatever moved the watermark back: a restored backup, a hand."""
    at = ago(minutes=1)
    definition = kit.define(due=at, overlap="allow")
    kit.slots.record_slots([plan(definition, at)])
    kit.sql("UPDATE job_definitions SET next_run_at = NULL")
    kit.define("other", due=at)
    with kit.engine.begin() as connection:
        connection.execute(
            update(JobDefinition).where(JobDefinition.id == definition).values(next_run_at=at)
        )
    assert kit.slots.record_slots([plan(definition, at)]) == []
    assert len(kit.all_rows()) == 1


def test_paused_definition_records_nothing(kit: Kit) -> None:
    at = ago(minutes=1)
    definition = kit.define("one", due=at)
    assert kit.definitions.pause(kit.found("one"))
    assert kit.slots.record_slots([plan(definition, at)]) == []
    assert kit.definition(definition).next_run_at == at


def test_several_plans_are_recorded_at_once_and_stale_ones_dropped(kit: Kit) -> None:
    at = ago(minutes=1)
    one, two, three = (kit.define(name, due=at) for name in "abc")
    kit.slots.record_slots([plan(two, at)])
    recorded = kit.slots.record_slots([plan(each, at) for each in (one, two, three)])
    assert {slot.definition_id for slot in recorded} == {one, three}


def test_no_plans_are_no_statement(kit: Kit) -> None:
    assert kit.slots.record_slots([]) == []


class TestOverlap:
    @pytest.mark.parametrize(
        "live",
        [
            {"status": "queued"},
            {
                "status": "running",
                "attempts": 1,
                "locked_by": "host:1:x",
                "locked_until": now() + timedelta(hours=1),
            },
        ],
        ids=lambda live: live["status"],
    )
    def test_slot_is_skipped_and_recorded_while_an_earlier_run_is_live(
        self, kit: Kit, live: dict[str, Any]
    ) -> None:
        at = ago(minutes=1)
        definition = kit.define(due=at)
        kit.run(definition_id=definition, scheduled_for=ago(hours=1), **live)
        (recorded,) = kit.slots.record_slots([plan(definition, at)])
        row = kit.row(recorded.run_id)
        assert (row.status, row.error_type, row.attempts) == ("skipped", "Overlap", 0)
        assert row.finished_at is not None
        assert row.last_error == recorded.reason == "overlap: an earlier run was not finished"
        assert recorded.skipped == 1

    @pytest.mark.parametrize("status", ["failed", "succeeded", "dead", "cancelled", "skipped"])
    def test_run_that_has_ended_or_waits_for_its_retry_does_not_stand_in_the_way(
        self, kit: Kit, status: str
    ) -> None:
        at = ago(minutes=1)
        definition = kit.define(due=at)
        ended: dict[str, Any] = (
            {"finished_at": now()} if status != "failed" else {"run_at": ago(hours=-1)}
        )
        kit.run(definition_id=definition, status=status, scheduled_for=ago(hours=1), **ended)
        (recorded,) = kit.slots.record_slots([plan(definition, at)])
        assert recorded.skipped == 0

    def test_another_definition_s_run_does_not_stand_in_the_way(self, kit: Kit) -> None:
        at = ago(minutes=1)
        definition = kit.define(due=at)
        kit.run(definition_id=kit.define("other"), scheduled_for=ago(hours=1))
        (recorded,) = kit.slots.record_slots([plan(definition, at)])
        assert recorded.skipped == 0

    def test_allowed_overlap_queues_the_slot(self, kit: Kit) -> None:
        at = ago(minutes=1)
        definition = kit.define(due=at, overlap="allow")
        kit.run(definition_id=definition, scheduled_for=ago(hours=1))
        (recorded,) = kit.slots.record_slots([plan(definition, at)])
        assert (recorded.skipped, kit.row(recorded.run_id).status) == (0, "queued")


def test_gap_is_one_skipped_row_with_its_count_and_reason(kit: Kit) -> None:
    first, last, newest = ago(hours=5), ago(hours=1), ago(minutes=1)
    definition = kit.define(due=first)
    gap = Slot(definition, last, skipped=240, first=first, reason="missed: no tick ran in time")
    recorded = kit.slots.record_slots([plan(definition, first, gap, Slot(definition, newest))])
    skipped, run = sorted(recorded, key=lambda slot: slot.at)
    assert (skipped.skipped, skipped.reason) == (240, "missed: no tick ran in time")
    row = kit.row(skipped.run_id)
    assert (row.status, row.error_type, row.scheduled_for) == ("skipped", "Missed", last)
    assert row.result == {"skipped": 240, "from": first.isoformat(), "to": last.isoformat()}
    assert kit.row(run.run_id).status == "queued"


def test_catch_up_of_several_slots_queues_each(kit: Kit) -> None:
    times = [ago(minutes=minutes) for minutes in (4, 3, 2)]
    definition = kit.define(due=times[0], overlap="allow")
    recorded = kit.slots.record_slots(
        [plan(definition, times[0], *(Slot(definition, at) for at in times))]
    )
    assert [kit.row(slot.run_id).status for slot in recorded] == ["queued"] * 3
    assert [claim.scheduled_for for claim in kit.claim()] == times


def test_racing_ticks_record_each_slot_once(kit: Kit) -> None:
    at = ago(minutes=1)
    plans = [plan(kit.define(f"definition {number}", due=at), at) for number in range(30)]
    start = threading.Barrier(6)
    recorded: list[int] = []

    def compete(order: int) -> None:
        worker = kit.another()
        mine = plans[order:] + plans[:order]
        start.wait()
        with worker.books:
            for each in mine:
                recorded.extend(slot.definition_id for slot in worker.slots.record_slots([each]))
            recorded.extend(slot.run_id for slot in worker.slots.record_slots(plans))

    threads = [threading.Thread(target=compete, args=(order * 5,)) for order in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(recorded) == sorted(each.definition_id for each in plans)
    assert len(kit.all_rows()) == 30
