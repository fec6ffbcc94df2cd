"""The row of a run after its outcome, and the record of a failed attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from flask_cronjobs.core import outcome as outcomes
from flask_cronjobs.core.leases import look_for_expired
from flask_cronjobs.core.outcome import FAILURES_KEPT, write_output
from flask_cronjobs.types import MAX_OUTPUT_BYTES, OUTCOME_KINDS, WORKER_LOST, Claim, OutcomeKind
from tests.kit import Kit, outcome
from tests.marks import on_postgresql
from tests.rows import ago

ERROR = ("it broke", "RuntimeError")
KEPT = 5


@pytest.mark.parametrize(
    ("kind", "status", "attempts", "error", "failures"),
    [
        ("succeeded", "succeeded", 3, (None, None), 0),
        ("failed", "failed", 3, ERROR, 1),
        ("dead", "dead", 3, ERROR, 1),
        ("cancelled", "cancelled", 3, ("not wanted", "Discard"), 0),
        ("released", "failed", 2, ("before", "KeyError"), 0),
        ("snoozed", "failed", 2, ("not wanted", "Discard"), 0),
    ],
)
def test_outcome_leaves_the_row(
    kit: Kit, kind: OutcomeKind, status: str, attempts: int, error: object, failures: int
) -> None:
    slot = ago(days=1)
    run = kit.run(
        status="failed", attempts=2, last_error="before", error_type="KeyError", scheduled_for=slot
    )
    details = {"error": "not wanted", "error_type": "Discard"}
    own = {} if kind in ("failed", "dead", "succeeded") else details
    assert kit.finish(kit.claim_one(), kind, delay=60.0, **own)
    row = kit.get(run)
    assert (row.status, row.attempts, row.scheduled_for) == (status, attempts, slot)
    assert (row.last_error, row.error_type) == error
    assert (row.locked_by, row.locked_until, row.concurrency_share) == (None, None, None)
    assert (row.finished_at is None) == (status == "failed")
    assert len(kit.failures(run)) == failures


def test_failure_waits_for_its_delay_by_the_database_s_clock(kit: Kit) -> None:
    run = kit.run()
    claim = kit.claim_one()
    before = kit.definitions.now()
    assert kit.finish(claim, "failed", delay=300.0)
    after = kit.definitions.now()
    row = kit.get(run)
    assert row.status == "failed"
    slack = timedelta(milliseconds=2)
    delay = timedelta(minutes=5)
    assert before + delay - slack <= row.run_at <= after + delay + slack
    assert row.failed_at is not None
    assert kit.claim() == ()


def test_each_failed_attempt_leaves_a_row_with_its_worker_and_stack(kit: Kit) -> None:
    run = kit.run(max_attempts=2)
    first = kit.claim_one()
    kit.finish(first, "failed", error="one", stack="first stack")
    second = kit.claim_one()
    kit.finish(second, "dead", error="two", error_type="KeyError")
    early, late = kit.failures(run)
    assert (early.attempt, early.worker, early.error, early.stack) == (
        1,
        first.token,
        "one",
        "first stack",
    )
    assert (late.attempt, late.worker, late.error_type) == (2, second.token, "KeyError")
    assert early.started_at is not None
    assert early.started_at <= early.failed_at


def test_batch_of_mixed_outcomes_is_recorded_at_once(kit: Kit) -> None:
    ids = kit.runs(6)
    outcomes = [outcome(*pair) for pair in zip(kit.claim(), OUTCOME_KINDS, strict=True)]
    assert kit.claims.record_and_claim(outcomes, None).recorded == set(ids)
    statuses = [kit.get(run).status for run in ids]
    assert statuses == [*OUTCOME_KINDS[:4], "queued", "queued"]


def test_text_that_no_database_takes_is_cleaned_not_refused(kit: Kit) -> None:
    run = kit.run()
    ugly = "a\0b\ud800c"
    assert kit.finish(kit.claim_one(), "failed", error=ugly, error_type=ugly, stack=ugly)
    (failure,) = kit.failures(run)
    assert failure.error == failure.error_type == failure.stack == "a\ufffdb\ufffdc"


def test_only_expired_leases_are_found_oldest_first(kit: Kit) -> None:
    kit.runs(3, max_attempts=4)
    holding, older, newer = kit.claim()
    kit.expire(older, seconds=60)
    kit.expire(newer, seconds=5)
    expired = look_for_expired(kit.books)
    assert [lease.id for lease in expired] == [older.id, newer.id]
    assert (expired[0].token, expired[0].job_type) == (older.token, "task")
    assert (expired[0].attempt, expired[0].max_attempts) == (1, 4)
    assert kit.get(holding.id).status == "running"


class TestLostAnswers:
    """The connection broke while the database answered: did it commit or not?"""

    @pytest.mark.parametrize("cancelled", [False, True])
    @pytest.mark.parametrize("kind", OUTCOME_KINDS)
    def test_outcome_is_already_recorded_once_it_was_committed(
        self, kit: Kit, kind: OutcomeKind, cancelled: bool
    ) -> None:
        run = kit.run()
        recorded = outcome(kit.claim_one(), kind)
        assert kit.claims.already_recorded([recorded]).recorded == frozenset()
        if cancelled:
            kit.sql("UPDATE job_runs SET cancel_requested_at = CURRENT_TIMESTAMP")
        answer = kit.claims.record_and_claim([recorded], None)
        assert kit.claims.already_recorded([recorded]).recorded == answer.recorded == {run}
        if cancelled and kind in ("failed", "released", "snoozed"):
            assert kit.get(run).status == answer.stored(recorded).kind == "cancelled"
            assert kit.claims.already_recorded([recorded]) == answer

    def test_failure_is_already_recorded_though_the_next_attempt_has_begun(self, kit: Kit) -> None:
        run = kit.run(max_attempts=9)
        failed = outcome(kit.claim_one(), "failed", delay=0.0, error_type="ValueError")
        kit.claims.record_and_claim([failed], None)
        assert kit.claim_one().attempt == 2
        answer = kit.claims.already_recorded([failed])
        assert (answer.recorded, answer.stored(failed).kind) == ({run}, "failed")
        lost = failed._replace(error_type=WORKER_LOST)
        assert kit.claims.already_recorded([lost]).recorded == frozenset()

    def test_another_attempt_s_end_does_not_pass_for_this_one(self, kit: Kit) -> None:
        kit.run()
        first = kit.claim_one()
        kit.expire(first)
        kit.finish(first, "failed", reclaimed=True)
        assert kit.claims.already_recorded([outcome(first, "succeeded")]).recorded == frozenset()
        kit.finish(kit.claim_one(), "succeeded")
        assert kit.claims.already_recorded([outcome(first, "succeeded")]).recorded == frozenset()


def test_outcome_with_another_s_id_but_the_own_token_touches_nothing(kit: Kit) -> None:
    kit.runs(2)
    mine, foreign = (kit.claim(limit=1)[0] for _ in range(2))
    assert not kit.finish(mine._replace(id=foreign.id), "dead")
    assert kit.get(foreign.id).status == "running"


# An output is written for its own attempt, even if another worker holds the run by then.


def kept(kit: Kit) -> list[tuple[int, str]]:
    rows = kit.sql("SELECT attempt, output FROM job_outputs ORDER BY attempt")
    return [(row.attempt, row.output) for row in rows]


def write(kit: Kit, claim: Claim, output: str) -> None:
    write_output(kit.books, outcome(claim, "succeeded", output=output))


def test_a_second_write_of_the_same_claim_changes_nothing(kit: Kit) -> None:
    """This happens if the first answer was lost."""
    kit.run()
    claim = kit.claim_one()
    write(kit, claim, "one")
    kit.finish(claim)
    write(kit, claim, "one")
    assert kept(kit) == [(1, "one")]


def test_a_second_write_keeps_what_the_attempt_printed_before_a_release(kit: Kit) -> None:
    kit.run()
    kit.finish(kit.claim_one(), "released")
    for output in ("one ", "two"):
        claim = kit.claim_one()
        write(kit, claim, output)
        write(kit, claim, output)
        kit.finish(claim, "released")
    assert kept(kit) == [(1, "one two")]


def test_an_attempt_appends_to_its_output_and_a_stale_worker_does_not(kit: Kit) -> None:
    """A released attempt does not count, so the next claim has the same number."""
    kit.run()
    stale = kit.claim_one()
    write(kit, stale, "stale ")
    kit.finish(stale, "released")
    holder = kit.claim_one()
    assert holder.attempt == stale.attempt
    write(kit, holder, "holder")
    write(kit, stale, "stale again")
    assert kept(kit) == [(1, "stale holder")]
    kit.sql("UPDATE job_outputs SET worker = 'before'")
    write(kit, holder, "x" * (MAX_OUTPUT_BYTES - 3))
    assert kept(kit) == [(1, "der" + "x" * (MAX_OUTPUT_BYTES - 3))]


def test_only_as_many_attempts_as_failures_keep_an_output(kit: Kit) -> None:
    kit.run(max_attempts=FAILURES_KEPT + 5, attempts=FAILURES_KEPT)
    claim = kit.claim_one()
    write(kit, claim._replace(attempt=1), "first")
    write(kit, claim._replace(attempt=2), "second")
    write(kit, claim, "latest")
    assert kept(kit) == [(2, "second"), (FAILURES_KEPT + 1, "latest")]


@on_postgresql
def test_a_locked_run_does_not_hold_up_the_worker(kit: Kit) -> None:
    kit.run()
    claim = kit.claim_one()
    with kit.engine.begin() as operator:
        operator.execute(text("SELECT 1 FROM job_runs FOR UPDATE"))
        with kit.books.trying_once():
            write(kit, claim, "while locked")
    assert kept(kit) == []


class TestGrowthOfFailures:
    @pytest.fixture(autouse=True)
    def keep_few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep `KEPT` failures of a run."""
        monkeypatch.setattr(outcomes, "FAILURES_KEPT", KEPT)

    def fail(self, kit: Kit, run_id: int, times: int) -> None:
        """Let a run fail *times* times, as if another attempt was allowed by hand after each."""
        for _ in range(times):
            kit.finish(kit.claim_one(), "dead", error="boom")
            kit.sql(
                "UPDATE job_runs SET status = 'queued', finished_at = NULL,"
                " max_attempts = attempts + 1 WHERE id = :id",
                id=run_id,
            )

    def test_a_run_keeps_its_latest_failures(self, kit: Kit) -> None:
        run = kit.run(max_attempts=1)
        self.fail(kit, run, KEPT)
        assert [failure.attempt for failure in kit.failures(run)] == [1, 2, 3, 4, 5]
        self.fail(kit, run, 3)
        assert [failure.attempt for failure in kit.failures(run)] == [4, 5, 6, 7, 8]

    def test_those_of_other_runs_stay(self, kit: Kit) -> None:
        other_run = kit.run(max_attempts=1)
        kit.finish(kit.claim_one(), "dead")
        run = kit.run(max_attempts=1)
        self.fail(kit, run, KEPT + 1)
        assert len(kit.failures(other_run)) == 1

    def test_lost_workers_count_as_failures(self, kit: Kit) -> None:
        run = kit.run(max_attempts=100, attempts=20)
        for _ in range(KEPT + 2):
            claim = kit.claim_one(idle=True)
            kit.expire(claim)
            assert kit.finish(claim, "failed", reclaimed=True, delay=-60.0)
        assert [failure.attempt for failure in kit.failures(run)] == [23, 24, 25, 26, 27]

    def test_an_outcome_whose_lease_was_lost_deletes_no_failure_of_the_latest(
        self, kit: Kit
    ) -> None:
        run = kit.run(max_attempts=1)
        self.fail(kit, run, KEPT)
        lost_claim = kit.claim_one()
        kit.expire(lost_claim)
        kit.finish(lost_claim, "dead", reclaimed=True)
        assert not kit.finish(lost_claim, "dead")
        assert [failure.attempt for failure in kit.failures(run)] == [2, 3, 4, 5, 6]

    @on_postgresql
    def test_a_locked_failure_holds_up_no_outcome(self, kit: Kit) -> None:
        run = kit.run(max_attempts=1)
        self.fail(kit, run, KEPT)
        with kit.engine.begin() as operator:
            operator.execute(text("SELECT 1 FROM job_failures FOR UPDATE"))
            self.fail(kit, run, 1)
        assert [failure.attempt for failure in kit.failures(run)] == [1, 2, 3, 4, 5, 6]
        self.fail(kit, run, 1)
        assert [failure.attempt for failure in kit.failures(run)] == [3, 4, 5, 6, 7]
