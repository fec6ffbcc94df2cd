"""What a finalized run's row becomes, and what a failed attempt leaves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flask_cronjobs.jobs.runs.leases import look_for_expired
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import OutcomeKind
from tests.kit import Kit, outcome
from tests.rows import ago, now


def is_unlocked(row: JobRun) -> bool:
    return (row.locked_by, row.locked_until, row.concurrency_share) == (None, None, None)


@pytest.mark.parametrize("result", [None, 0, "", False, [1, {"a": "é"}], {"a": None}])
def test_success_is_terminal_and_keeps_the_result(kit: Kit, result: object) -> None:
    run = kit.run(last_error="before", error_type="RuntimeError")
    assert kit.finish(kit.claim_one(), "succeeded", result=result)
    row = kit.row(run)
    assert row.status == "succeeded"
    assert row.result == result
    assert row.finished_at is not None
    assert is_unlocked(row)
    assert (row.last_error, row.error_type, row.failed_at) == (None, None, None)
    assert kit.failures(run) == []


def test_failure_waits_for_its_delay_by_the_database_s_clock(kit: Kit) -> None:
    run = kit.run()
    claim = kit.claim_one()
    before = kit.definitions.now()
    assert kit.finish(claim, "failed", delay=300.0)
    after = kit.definitions.now()
    row = kit.row(run)
    assert row.status == "failed"
    slack = timedelta(milliseconds=2)
    delay = timedelta(minutes=5)
    assert before + delay - slack <= row.run_at <= after + delay + slack
    assert row.finished_at is None
    assert row.failed_at is not None
    assert (row.last_error, row.error_type) == ("it broke", "RuntimeError")
    assert is_unlocked(row)
    assert kit.claim() == ()


def test_slot_and_first_due_time_survive_a_failure(kit: Kit) -> None:
    slot = ago(days=1)
    run = kit.run(scheduled_for=slot)
    kit.finish(kit.claim_one(), "failed", delay=60.0)
    assert kit.row(run).scheduled_for == slot


def test_each_failed_attempt_leaves_a_row_with_its_worker_and_stack(kit: Kit) -> None:
    run = kit.run(max_attempts=2)
    first = kit.claim_one()
    kit.finish(first, "failed", error="one", stack="first stack")
    second = kit.claim_one()
    kit.finish(second, "dead", error="two", error_type="KeyError")
    one, two = kit.failures(run)
    assert (one.attempt, one.worker, one.error, one.stack) == (1, first.token, "one", "first stack")
    assert (two.attempt, two.worker, two.error_type) == (2, second.token, "KeyError")
    assert one.started_at is not None
    assert one.started_at <= one.failed_at


def test_cancelled_is_terminal_and_keeps_the_reason(kit: Kit) -> None:
    run = kit.run()
    kit.finish(kit.claim_one(), "cancelled", error="not wanted", error_type="Discard")
    row = kit.row(run)
    assert (row.status, row.last_error, row.error_type) == ("cancelled", "not wanted", "Discard")
    assert row.finished_at is not None
    assert is_unlocked(row)


def test_released_retry_stays_failed_with_its_error(kit: Kit) -> None:
    run = kit.run(status="failed", attempts=2, last_error="before", error_type="RuntimeError")
    kit.finish(kit.claim_one(), "released", error="the worker was told to stop")
    row = kit.row(run)
    assert (row.status, row.attempts) == ("failed", 2)
    assert (row.last_error, row.error_type) == ("before", "RuntimeError")


def test_batch_of_mixed_outcomes_is_recorded_at_once(kit: Kit) -> None:
    ids = kit.runs(6)
    kinds: list[OutcomeKind] = ["succeeded", "failed", "dead", "cancelled", "released", "snoozed"]
    outcomes = [outcome(claim, kind) for claim, kind in zip(kit.claim(), kinds, strict=True)]
    assert kit.claims.exchange(outcomes, None).recorded == set(ids)
    assert [kit.row(run).status for run in ids] == [
        "succeeded", "failed", "dead", "cancelled", "queued", "queued",
    ]  # fmt: skip
    assert [len(kit.failures(run)) for run in ids] == [0, 1, 1, 0, 0, 0]


def test_text_that_no_database_takes_is_cleaned_not_refused(kit: Kit) -> None:
    run = kit.run()
    ugly = "a\0b\ud800c"
    assert kit.finish(kit.claim_one(), "failed", error=ugly, error_type=ugly, stack=ugly)
    (failure,) = kit.failures(run)
    assert failure.error == failure.error_type == failure.stack == "a\ufffdb\ufffdc"


def test_thousand_outcomes_are_recorded_in_one_exchange(kit: Kit) -> None:
    placeholder = kit.run()
    kit.sql(
        "INSERT INTO job_runs (job_type, run_at) WITH RECURSIVE n(i) AS"
        " (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999)"
        " SELECT 'task', '2000-01-01' FROM n"
    )
    claims = kit.claim(limit=1000)
    assert len(claims) == 1000
    exchange = kit.claims.exchange([outcome(claim, "succeeded") for claim in claims], None)
    assert len(exchange.recorded) == 1000
    assert placeholder in exchange.recorded


class TestReclaim:
    """A lease that ran out: taken back as a failed attempt, unless its worker came back."""

    def test_only_expired_leases_are_found_oldest_first(self, kit: Kit) -> None:
        kit.runs(3, max_attempts=4)
        holding, older, newer = kit.claim()
        kit.expire(older, seconds=60)
        kit.expire(newer, seconds=5)
        found = look_for_expired(kit.books).leases
        assert [lease.id for lease in found] == [older.id, newer.id]
        assert (found[0].token, found[0].job_type) == (older.token, "task")
        assert (found[0].attempt, found[0].max_attempts) == (1, 4)
        assert kit.row(holding.id).status == "running"

    def test_limit_of_expired_leases_is_kept(self, kit: Kit) -> None:
        kit.runs(3)
        for claim in kit.claim():
            kit.expire(claim)
        assert len(look_for_expired(kit.books, limit=2).leases) == 2


class TestLostAnswers:
    """The connection broke while the database answered: did it commit or not?"""

    @pytest.mark.parametrize(
        "kind", ["succeeded", "failed", "dead", "cancelled", "released", "snoozed"]
    )
    def test_outcome_that_was_committed_is_already_recorded(
        self, kit: Kit, kind: OutcomeKind
    ) -> None:
        run = kit.run()
        recorded = outcome(kit.claim_one(), kind)
        kit.claims.exchange([recorded], None)
        assert kit.claims.already_recorded([recorded]).recorded == {run}

    @pytest.mark.parametrize("kind", ["failed", "released", "snoozed"])
    def test_outcome_that_became_a_cancellation_is_already_recorded(
        self, kit: Kit, kind: OutcomeKind
    ) -> None:
        run = kit.run()
        recorded = outcome(kit.claim_one(), kind)
        kit.sql("UPDATE job_runs SET cancel_requested_at = CURRENT_TIMESTAMP")
        exchange = kit.claims.exchange([recorded], None)
        assert kit.row(run).status == exchange.stored(recorded).kind == "cancelled"
        assert kit.claims.already_recorded([recorded]) == exchange
        assert exchange.recorded == {run}

    @pytest.mark.parametrize(
        "kind", ["succeeded", "failed", "dead", "cancelled", "released", "snoozed"]
    )
    def test_outcome_that_was_not_committed_is_not_already_recorded(
        self, kit: Kit, kind: OutcomeKind
    ) -> None:
        kit.run()
        assert kit.claims.already_recorded([outcome(kit.claim_one(), kind)]).recorded == frozenset()

    def test_another_attempt_s_end_does_not_pass_for_this_one(self, kit: Kit) -> None:
        kit.run()
        first = kit.claim_one()
        kit.expire(first)
        kit.finish(first, "failed", reclaimed=True)
        kit.finish(kit.claim_one(), "succeeded")
        assert kit.claims.already_recorded([outcome(first, "succeeded")]).recorded == frozenset()

    def test_reclaimed_attempt_does_not_pass_for_a_success(self, kit: Kit) -> None:
        kit.run()
        first = kit.claim_one()
        kit.expire(first)
        kit.finish(first, "failed", reclaimed=True)
        assert kit.claims.already_recorded([outcome(first, "succeeded")]).recorded == frozenset()

    def test_claim_whose_answer_was_lost_is_given_back_whole(self, kit: Kit) -> None:
        ids = kit.runs(3)
        (other,) = kit.claim(limit=1, token="host:1:other")
        kit.claim(token="host:1:lost")
        assert kit.claims.release_token("host:1:lost") == 2
        assert [kit.row(run).status for run in ids] == ["running", "queued", "queued"]
        assert {kit.row(run).attempts for run in ids[1:]} == {0}
        assert kit.finish(other)

    def test_retry_whose_claim_s_answer_was_lost_is_failed_again(self, kit: Kit) -> None:
        run = kit.run(status="failed", attempts=1)
        kit.claim(token="host:1:lost")
        assert kit.claims.release_token("host:1:lost") == 1
        assert (kit.row(run).status, kit.row(run).attempts) == ("failed", 1)

    def test_cancel_that_came_meanwhile_holds_for_claims_given_back(self, kit: Kit) -> None:
        """As it does for a run that a worker releases."""
        unheard, held = kit.runs(2)
        kit.claim(limit=1, token="host:1:lost")
        claim = kit.claim_one()
        kit.sql("UPDATE job_runs SET cancel_requested_at = updated_at")
        assert kit.claims.release_token("host:1:lost") == 1
        assert kit.finish(claim, "released")
        for run in (unheard, held):
            row = kit.row(run)
            assert (row.status, row.attempts, row.finished_at is None) == ("cancelled", 0, False)

    def test_token_that_holds_nothing_releases_nothing(self, kit: Kit) -> None:
        kit.run()
        kit.claim()
        assert kit.claims.release_token("host:1:none") == 0


def test_outcome_with_another_s_id_but_the_own_token_touches_nothing(kit: Kit) -> None:
    kit.runs(2)
    mine, other = (kit.claim(limit=1)[0] for _ in range(2))
    assert not kit.finish(mine._replace(id=other.id), "dead")
    assert kit.row(other.id).status == "running"
    assert now() > kit.row(other.id).created_at
