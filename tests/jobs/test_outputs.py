"""An output is written for its own attempt, whoever holds the run by then."""

from __future__ import annotations

from sqlalchemy import text

from flask_cronjobs.jobs.outcomes import FAILURES_KEPT, write_output
from tests.kit import Kit


def kept(kit: Kit) -> list[tuple[int, str]]:
    rows = kit.sql("SELECT attempt, output FROM job_outputs ORDER BY attempt")
    return [(row.attempt, row.output) for row in rows]


def test_a_later_write_of_the_same_claim_replaces_the_earlier(kit: Kit) -> None:
    kit.run()
    claim = kit.claim_one()
    assert write_output(kit.books, claim, "one")
    assert write_output(kit.books, claim, "one two")
    kit.finish(claim)
    assert write_output(kit.books, claim, "one two three")
    assert kept(kit) == [(1, "one two three")]


def test_a_stale_worker_does_not_replace_the_output_of_the_holder(kit: Kit) -> None:
    """A released attempt is not counted, so the next claim has the same number."""
    kit.run()
    stale = kit.claim_one()
    assert write_output(kit.books, stale, "stale")
    kit.finish(stale, "released")
    holder = kit.claim_one()
    assert holder.attempt == stale.attempt
    assert write_output(kit.books, holder, "holder")
    assert not write_output(kit.books, stale, "stale again")
    assert kept(kit) == [(1, "holder")]


def test_output_of_a_run_that_is_gone_is_dropped(kit: Kit) -> None:
    kit.run()
    claim = kit.claim_one()
    kit.sql("DELETE FROM job_runs")
    assert not write_output(kit.books, claim, "late")
    assert kept(kit) == []


def test_only_as_many_attempts_as_failures_keep_an_output(kit: Kit) -> None:
    kit.run(max_attempts=FAILURES_KEPT + 5, attempts=FAILURES_KEPT)
    claim = kit.claim_one()
    assert write_output(kit.books, claim._replace(attempt=1), "first")
    assert write_output(kit.books, claim._replace(attempt=2), "second")
    assert write_output(kit.books, claim, "latest")
    assert kept(kit) == [(2, "second"), (FAILURES_KEPT + 1, "latest")]


def test_a_locked_run_does_not_hold_up_the_worker(kit: Kit) -> None:
    if kit.engine.dialect.name == "sqlite":
        return
    kit.run()
    claim = kit.claim_one()
    with kit.engine.begin() as operator:
        operator.execute(text("SELECT 1 FROM job_runs FOR UPDATE"))
        with kit.books.trying_once():
            assert not write_output(kit.books, claim, "while locked")
    assert write_output(kit.books, claim, "afterwards")
