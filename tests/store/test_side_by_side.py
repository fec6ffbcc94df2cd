"""What a worker may claim whose handlers are at work side by side."""

from __future__ import annotations

from tests.rows import ago
from tests.store.kit import Kit


def test_retries_are_claimed_together_with_first_attempts(kit: Kit) -> None:
    retries = kit.runs(2, status="failed", attempts=1, error_type="ValueError")
    fresh = kit.runs(2)
    claims = kit.claim(side_by_side=True)
    assert [claim.id for claim in claims] == [*retries, *fresh]
    assert not any(claim.alone for claim in claims)


def test_last_attempt_and_one_after_a_lost_worker_are_claimed_by_themselves(kit: Kit) -> None:
    last = kit.run(status="failed", attempts=2, max_attempts=3, error_type="ValueError")
    lost = kit.run(status="failed", attempts=1, error_type="WorkerLost")
    fresh = kit.runs(2)
    for expected in (last, lost):
        claim = kit.claim_one(side_by_side=True)
        assert (claim.id, claim.alone) == (expected, True)
    assert kit.claim_ids(side_by_side=True) == fresh


def test_those_are_passed_over_by_a_worker_that_holds_something(kit: Kit) -> None:
    kit.run(max_attempts=1)
    kit.run(status="failed", attempts=1, error_type="WorkerLost")
    fresh = kit.runs(2)
    assert kit.claim_ids(side_by_side=True, idle=False) == fresh
    assert kit.claim_ids(side_by_side=True, idle=False) == []


def test_first_is_what_an_idle_worker_would_claim(kit: Kit) -> None:
    tasks = ("task", "other")
    assert kit.claims.first(tasks) is None
    run = kit.run(run_at=ago(minutes=5))
    kit.run(job_type="other", priority=-1, queue="slow")
    kit.run(job_type="of another app", priority=9)
    assert kit.claims.first(tasks) == ("task", False)
    assert kit.claims.first(("other",)) == ("other", False)
    assert kit.claims.first(tasks, ("slow",)) == ("other", False)
    assert kit.row(run).status == "queued"


def test_first_says_whether_it_must_run_alone(kit: Kit) -> None:
    run = kit.run(status="failed", attempts=1, error_type="WorkerLost")
    assert kit.claims.first(("task",)) == ("task", True)
    kit.sql("UPDATE job_runs SET error_type = 'ValueError'")
    assert kit.claims.first(("task",)) == ("task", False)
    kit.sql("UPDATE job_runs SET max_attempts = 2")
    assert kit.claims.first(("task",)) == ("task", True)
    assert kit.row(run).attempts == 1
