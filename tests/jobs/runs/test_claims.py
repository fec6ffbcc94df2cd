"""What a claim takes, in which order, and what it leaves."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest

from tests.kit import Kit, outcome
from tests.rows import ago


def test_claim_tells_what_the_runner_needs(kit: Kit) -> None:
    slot = ago(hours=1)
    payload = {"text": "é\n\"'", "list": [1, 2.5, None, True], "object": {"a": {}}}
    run = kit.run(
        payload=payload, scheduled_for=slot, idempotency_key="key", max_attempts=7, definition_id=3
    )
    claim = kit.claim_one(token="host:1:abc")
    assert (claim.id, claim.token, claim.job_type) == (run, "host:1:abc", "task")
    assert claim.payload == payload
    assert (claim.attempt, claim.max_attempts) == (1, 7)
    assert (claim.idempotency_key, claim.definition_id) == ("key", 3)
    assert claim.scheduled_for == slot
    assert claim.scheduled_for.tzinfo is timezone.utc


def test_claimed_row_is_running_locked_and_its_attempt_counted(kit: Kit) -> None:
    run = kit.run()
    claim = kit.claim_one(lease=60.0)
    row = kit.row(run)
    assert (row.status, row.attempts, row.locked_by) == ("running", 1, claim.token)
    assert row.started_at is not None
    assert row.locked_until is not None
    lease = (row.locked_until - row.started_at).total_seconds()
    assert lease == pytest.approx(60.0, abs=2.0)
    assert row.finished_at is None


def test_claim_forgets_the_progress_of_an_earlier_attempt(kit: Kit) -> None:
    run = kit.run(progress=0.5, progress_message="half")
    kit.claim_one()
    assert (kit.row(run).progress, kit.row(run).progress_message) == (None, None)


def test_due_is_told_by_the_database_s_clock_to_the_millisecond(kit: Kit) -> None:
    clock = kit.definitions.now()
    due = kit.run(run_at=clock - timedelta(milliseconds=2))
    kit.run(run_at=clock + timedelta(minutes=1))
    assert kit.claim_ids() == [due]


def test_run_that_is_due_in_this_very_second_is_claimed(kit: Kit) -> None:
    """On SQLite times are texts, and one of whole seconds sorts before the same with digits."""
    due = kit.run(run_at=kit.definitions.now().replace(microsecond=0))
    assert kit.claim_ids() == [due]


def test_outcomes_and_claims_go_in_one_exchange(kit: Kit) -> None:
    first, second = kit.runs(2)
    (held,) = kit.claim(limit=1)
    answer = kit.claims.record_and_claim([outcome(held, "succeeded")], kit.request(1))
    assert answer.recorded == {first}
    assert [claim.id for claim in answer.claims] == [second]
