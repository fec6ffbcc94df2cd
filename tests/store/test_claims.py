"""What a claim takes, in which order, and what it leaves."""

from __future__ import annotations

import threading
from datetime import timedelta, timezone

import pytest

from tests.rows import ago, now
from tests.store.kit import Kit, outcome


def test_higher_priority_is_claimed_first_then_earlier_then_lower_id(kit: Kit) -> None:
    early, late = ago(minutes=5), ago(minutes=2)
    second = kit.run(run_at=late)
    third = kit.run(run_at=late)
    first = kit.run(run_at=early)
    low = kit.run(run_at=early, priority=-1)
    high = kit.run(run_at=late, priority=1)
    assert kit.claim_ids() == [high, first, second, third, low]


def test_limit_is_kept_in_the_same_order(kit: Kit) -> None:
    early, late = ago(minutes=5), ago(minutes=2)
    kit.runs(3, run_at=late)
    first = kit.runs(3, run_at=early)
    assert kit.claim_ids(limit=3) == first


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


def test_run_that_is_not_due_is_left(kit: Kit) -> None:
    kit.run(run_at=now() + timedelta(hours=1))
    assert kit.claim() == ()


def test_due_is_told_by_the_database_s_clock_to_the_millisecond(kit: Kit) -> None:
    clock = kit.definitions.now()
    due = kit.run(run_at=clock - timedelta(milliseconds=2))
    kit.run(run_at=clock + timedelta(minutes=1))
    assert kit.claim_ids() == [due]


def test_run_that_is_due_in_this_very_second_is_claimed(kit: Kit) -> None:
    """On SQLite times are texts, and one of whole seconds sorts before the same with digits."""
    due = kit.run(run_at=kit.definitions.now().replace(microsecond=0))
    assert kit.claim_ids() == [due]


def test_unknown_tasks_are_left_for_code_that_knows_them(kit: Kit) -> None:
    unknown = kit.run("unknown", priority=9)
    known = kit.run()
    assert kit.claim_ids() == [known]
    assert kit.row(unknown).status == "queued"
    assert kit.claim_ids(tasks=("unknown", "task")) == [unknown]


def test_worker_without_tasks_claims_nothing(kit: Kit) -> None:
    kit.run()
    assert kit.claim(tasks=()) == ()


def test_only_the_queues_asked_for_are_claimed(kit: Kit) -> None:
    mail = kit.run(queue="mail")
    other = kit.run(queue="other")
    default = kit.run()
    assert kit.claim_ids(queues=("mail", "other")) == [mail, other]
    assert kit.claim_ids() == [default]


@pytest.mark.parametrize("status", ["succeeded", "dead", "cancelled", "skipped"])
def test_finished_runs_are_never_claimed(kit: Kit, status: str) -> None:
    kit.run(status=status, finished_at=ago(minutes=1))
    assert kit.claim() == ()


def test_held_run_is_not_claimed_again_even_when_its_lease_ran_out(kit: Kit) -> None:
    """It is taken back first, and counted as a failed attempt: by reclaim, not by a claim."""
    kit.run()
    kit.expire(kit.claim_one())
    assert kit.claim() == ()


def test_run_with_no_attempt_left_is_not_claimed(kit: Kit) -> None:
    kit.run(status="failed", attempts=3, max_attempts=3)
    assert kit.claim() == ()


def test_each_claim_s_token_holds_only_its_own_runs(kit: Kit) -> None:
    one, two = kit.runs(2)
    kit.claim(limit=1, token="host:1:one")
    kit.claim(limit=1, token="host:1:two")
    assert (kit.row(one).locked_by, kit.row(two).locked_by) == ("host:1:one", "host:1:two")


class TestRetries:
    """A retry travels alone, so that a run which kills its process takes no neighbors along."""

    def test_retry_that_comes_first_is_claimed_by_itself(self, kit: Kit) -> None:
        retry = kit.run(status="failed", attempts=1, run_at=ago(minutes=9))
        fresh = kit.runs(3)
        assert kit.claim_ids() == [retry]
        assert kit.claim_ids() == fresh

    def test_run_with_one_attempt_is_claimed_by_itself(self, kit: Kit) -> None:
        """Its first attempt is its last: a neighbor that kills the process must not spend it."""
        fresh = kit.run(run_at=ago(minutes=9))
        only, other = kit.runs(2, max_attempts=1)
        assert kit.claim_ids() == [fresh]
        assert kit.claim_ids(idle=False) == []
        assert (kit.claim_ids(), kit.claim_ids()) == ([only], [other])

    def test_retry_counts_its_attempt(self, kit: Kit) -> None:
        retry = kit.run(status="failed", attempts=4)
        assert kit.claim_one().attempt == 5
        assert kit.row(retry).attempts == 5

    def test_retry_behind_first_attempts_is_left_for_a_claim_of_its_own(self, kit: Kit) -> None:
        fresh = kit.runs(2, run_at=ago(minutes=9))
        retry = kit.run(status="failed", attempts=1)
        later = kit.run(run_at=ago(seconds=1))
        assert kit.claim_ids() == [*fresh, later]
        assert kit.claim_ids() == [retry]

    def test_retry_is_not_claimed_by_a_worker_that_holds_something(self, kit: Kit) -> None:
        retry = kit.run(status="failed", attempts=1, run_at=ago(minutes=9))
        kit.run()
        assert kit.claim(idle=False) == ()
        assert kit.claim_ids(idle=True) == [retry]

    def test_two_retries_are_claimed_one_after_the_other(self, kit: Kit) -> None:
        one, two = kit.runs(2, status="failed", attempts=1)
        assert kit.claim_ids() == [one]
        assert kit.claim_ids() == [two]

    def test_queued_run_that_has_been_tried_counts_as_a_retry(self, kit: Kit) -> None:
        """As an operator's retry leaves it."""
        run = kit.run(status="queued", attempts=1, run_at=ago(minutes=9))
        kit.run()
        assert kit.claim_ids() == [run]


def test_outcomes_and_claims_go_in_one_exchange(kit: Kit) -> None:
    first, second = kit.runs(2)
    (held,) = kit.claim(limit=1)
    exchange = kit.claims.exchange([outcome(held, "succeeded")], kit.request(1))
    assert exchange.recorded == {first}
    assert [claim.id for claim in exchange.claims] == [second]


def test_exchange_of_nothing_does_nothing(kit: Kit) -> None:
    kit.run()
    exchange = kit.claims.exchange([], None)
    assert (exchange.recorded, exchange.claims) == (frozenset(), ())


def test_racing_claims_share_no_run_and_never_take_more_than_the_limit(kit: Kit) -> None:
    ids = kit.runs(60)
    taken: list[list[int]] = []
    lock = threading.Lock()
    start = threading.Barrier(4)

    def compete() -> None:
        worker = kit.another()
        start.wait()
        with worker.books:
            while claimed := worker.claim_ids(limit=5):
                with lock:
                    taken.append(claimed)

    threads = [threading.Thread(target=compete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(map(len, taken)) <= 5
    assert sorted(run for claimed in taken for run in claimed) == ids
    assert {row.attempts for row in kit.all_rows()} == {1}
