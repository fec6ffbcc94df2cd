"""No two runs of a definition with ``overlap="skip"`` are at work at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flask_cronjobs.schedule.catchup import Slot
from tests.kit import Kit, plan
from tests.rows import ago, now


def define_with_slots(kit: Kit, *minutes: int, **values: Any) -> int:
    """A definition with a queued run for the slot of each of *minutes* ago."""
    times = [ago(minutes=each) for each in minutes]
    definition = kit.define(due=times[0], **values)
    kit.slots.record_slots([plan(definition, times[0], *(Slot(definition, at) for at in times))])
    return definition


def test_slots_that_are_caught_up_run_one_after_the_other(kit: Kit) -> None:
    define_with_slots(kit, 4, 3, 2)
    done = []
    other = kit.another()
    with other.books:
        for _ in range(3):
            claim = kit.claim_one()
            assert other.claim() == ()
            done.append(claim.scheduled_for)
            assert kit.finish(claim)
    assert done == sorted(done)
    assert kit.claim() == ()


def test_retry_and_the_next_slot_s_run_are_not_at_work_at_once(kit: Kit) -> None:
    definition = define_with_slots(kit, 2)
    first = kit.claim_one()
    assert kit.finish(first, "failed", delay=3600)
    watermark = kit.definition(definition).next_run_at
    assert watermark is not None
    (recorded,) = kit.slots.record_slots(
        [plan(definition, watermark, Slot(definition, ago(minutes=1)))]
    )
    assert recorded.skipped == 0
    second = kit.claim_one()
    assert second.id == recorded.run_id
    kit.sql("UPDATE job_runs SET run_at = scheduled_for WHERE status = 'failed'")
    assert kit.claim() == ()
    assert kit.finish(second)
    assert kit.claim_one().id == first.id


def test_definition_with_a_wider_key_of_its_own_is_alone_in_it(kit: Kit) -> None:
    definition = define_with_slots(kit, 4, 3, concurrency_key="shop", concurrency_limit=3)
    other = kit.run(concurrency_key="shop", concurrency_limit=3, run_at=now())
    claim = kit.claim_one()
    assert claim.definition_id == definition
    kit.sql("UPDATE job_runs SET run_at = :late WHERE status = 'queued' AND definition_id > 0",
            late=now() + timedelta(hours=1))  # fmt: skip
    assert kit.claim_ids() == [other]


def test_overlap_that_is_allowed_runs_side_by_side(kit: Kit) -> None:
    define_with_slots(kit, 4, 3, 2, overlap="allow")
    assert len(kit.claim()) == 3
