"""Slots: one row each, ever; the watermark and the row move together."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from flask_cronjobs.models import JobDefinition
from flask_cronjobs.schedule.catchup import Slot
from tests.kit import Kit, in_threads, plan
from tests.rows import ago, now


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
    (recorded,) = kit.slots.record_slots([plan(definition, at, following=following)])
    assert kit.definition(definition).next_run_at == following
    row = kit.row(recorded.run_id)
    assert (row.definition_id, row.job_type, row.status) == (definition, "task", "queued")
    assert {name: getattr(row, name) for name in columns} == columns
    assert row.scheduled_for == row.run_at == at
    assert (recorded.at, recorded.skipped, recorded.reason) == (at, 0, None)
    assert kit.claim_one().scheduled_for == at


def test_slot_whose_row_is_there_makes_no_second_one(kit: Kit, at: datetime) -> None:
    """Whatever moved the watermark back: a restored backup, a hand."""
    definition = kit.define(due=at, overlap="allow")
    kit.slots.record_slots([plan(definition, at)])
    with kit.engine.begin() as connection:
        connection.execute(update(JobDefinition).values(next_run_at=at))
    assert kit.slots.record_slots([plan(definition, at)]) == []
    assert len(kit.all_rows()) == 1


def test_paused_definition_records_nothing(kit: Kit, at: datetime) -> None:
    definition = kit.define("one", due=at)
    assert kit.definitions.pause(kit.found("one"))
    assert kit.slots.record_slots([plan(definition, at)]) == []
    assert kit.definition(definition).next_run_at == at


class TestOverlap:
    LIVE: tuple[dict[str, Any], ...] = (
        {"status": "queued"},
        {"status": "running", "attempts": 1, "locked_by": "host:1:x", "locked_until": ago(-3600)},
    )
    #: Ended, or waiting for its retry.
    OTHERS: tuple[dict[str, Any], ...] = (
        {"status": "failed", "run_at": ago(-3600)},
        *(
            {"status": status, "finished_at": ago()}
            for status in ("succeeded", "dead", "cancelled", "skipped")
        ),
    )

    @pytest.mark.parametrize("live", LIVE, ids=lambda live: live["status"])
    def test_slot_is_skipped_and_recorded_while_an_earlier_run_is_live(
        self, kit: Kit, at: datetime, live: dict[str, Any]
    ) -> None:
        definition = kit.define(due=at)
        kit.run(definition_id=definition, scheduled_for=ago(hours=1), **live)
        (recorded,) = kit.slots.record_slots([plan(definition, at)])
        row = kit.row(recorded.run_id)
        assert (row.status, row.error_type, row.attempts) == ("skipped", "Overlap", 0)
        assert row.finished_at is not None
        assert row.last_error == recorded.reason == "overlap: an earlier run was not finished"
        assert recorded.skipped == 1

    @pytest.mark.parametrize("run", OTHERS, ids=lambda run: run["status"])
    def test_run_that_has_ended_or_waits_for_its_retry_does_not_stand_in_the_way(
        self, kit: Kit, at: datetime, run: dict[str, Any]
    ) -> None:
        definition = kit.define(due=at)
        kit.run(definition_id=definition, scheduled_for=ago(hours=1), **run)
        (recorded,) = kit.slots.record_slots([plan(definition, at)])
        assert recorded.skipped == 0

    @pytest.mark.parametrize("overlap", ["skip", "allow"])
    def test_another_definition_s_run_or_an_allowed_one_does_not_either(
        self, kit: Kit, at: datetime, overlap: str
    ) -> None:
        definition, other = kit.define(due=at, overlap=overlap), kit.define("other")
        live = definition if overlap == "allow" else other
        kit.run(definition_id=live, scheduled_for=ago(hours=1))
        (recorded,) = kit.slots.record_slots([plan(definition, at)])
        assert (recorded.skipped, kit.row(recorded.run_id).status) == (0, "queued")


def test_gap_is_one_skipped_row_with_its_count_and_reason(kit: Kit, at: datetime) -> None:
    first, last = ago(hours=5), ago(hours=1)
    definition = kit.define(due=first)
    gap = Slot(definition, last, skipped=240, first=first, reason="missed: no tick ran in time")
    recorded = kit.slots.record_slots([plan(definition, first, gap, Slot(definition, at))])
    skipped, run = sorted(recorded, key=lambda slot: slot.at)
    assert (skipped.skipped, skipped.reason) == (240, "missed: no tick ran in time")
    row = kit.row(skipped.run_id)
    assert (row.status, row.error_type, row.scheduled_for) == ("skipped", "Missed", last)
    assert row.result == {"skipped": 240, "from": first.isoformat(), "to": last.isoformat()}
    assert kit.row(run.run_id).status == "queued"


def test_racing_ticks_record_each_slot_once(kit: Kit, at: datetime) -> None:
    plans = [plan(kit.define(f"definition {number}", due=at), at) for number in range(30)]
    recorded: list[int] = []

    def compete() -> None:
        worker = kit.another()
        with worker.books:
            for each in (*([each] for each in plans), plans):
                recorded.extend(slot.definition_id for slot in worker.slots.record_slots(each))

    in_threads(*[compete] * 6)
    assert sorted(recorded) == sorted(each.definition_id for each in plans)
    assert len(kit.all_rows()) == 30
