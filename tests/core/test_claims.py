"""Which runs a claim takes, in which order, and what it leaves."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import insert

from flask_cronjobs.core import claim as claims
from flask_cronjobs.core import claim_statement
from flask_cronjobs.core.look import LOOKED_AT_RUNS
from flask_cronjobs.models import JobRun
from tests.kit import Kit, outcome
from tests.marks import on_postgresql
from tests.rows import ago


def test_claim_contains_what_the_runner_needs(kit: Kit) -> None:
    slot = ago(hours=1)
    payload = {"text": "é\n\"'", "list": [1, 2.5, None, True], "object": {"a": {}}}
    run = kit.run(
        payload=payload, scheduled_for=slot, idempotency_key="key", max_attempts=7, definition_id=3
    )
    claim = kit.claim_one(token="host:1:abc")
    assert (claim.id, claim.token, claim.job_type) == (run, "host:1:abc", "task")
    assert claim.read() == payload
    assert (claim.attempt, claim.max_attempts) == (1, 7)
    assert (claim.idempotency_key, claim.definition_id) == ("key", 3)
    assert claim.scheduled_for == slot
    assert claim.scheduled_for.tzinfo is timezone.utc


def test_claim_forgets_the_progress_of_an_earlier_attempt(kit: Kit) -> None:
    run = kit.run(progress=0.5, progress_message="half")
    kit.claim_one()
    assert (kit.get(run).progress, kit.get(run).progress_message) == (None, None)


def test_due_runs_are_found_by_the_database_s_clock_to_the_millisecond(kit: Kit) -> None:
    clock = kit.definitions.now()
    due = kit.run(run_at=clock - timedelta(milliseconds=2))
    kit.run(run_at=clock + timedelta(minutes=1))
    assert kit.claim_ids() == [due]


def test_run_that_is_due_in_this_very_second_is_claimed(kit: Kit) -> None:
    """SQLite stores times as texts, and whole seconds sort before the same time with digits."""
    due = kit.run(run_at=kit.definitions.now().replace(microsecond=0))
    assert kit.claim_ids() == [due]


# Checking the front says no only if a claim finds nothing


KEY = {"concurrency_key": "shop", "concurrency_limit": 1}
LATER = {"run_at": ago(hours=-1)}


@pytest.mark.parametrize("values", [{}, KEY], ids=["free", "keyed"])
def test_due_run_behind_those_of_higher_priority_that_are_not_is_found(
    kit: Kit, values: dict[str, Any]
) -> None:
    kit.runs(LOOKED_AT_RUNS - 1, priority=1, **LATER, **values)
    assert not kit.looks.look_at_queue()
    kit.run(**values)
    assert kit.looks.look_at_queue()


def test_runs_at_work_and_ended_ones_are_not_waiting(kit: Kit) -> None:
    kit.runs(2)
    claim, _ = kit.claim()
    assert kit.finish(claim)
    assert not kit.looks.look_at_queue()


@on_postgresql
def test_runs_that_another_claim_has_locked_are_skipped(kit: Kit) -> None:
    """They come after more runs of another task than a claim reads in order."""
    with kit.engine.begin() as connection:
        theirs = {"job_type": "theirs", "priority": 9}
        connection.execute(insert(JobRun), [theirs] * (2 * claim_statement.WINDOW + 11))
    ids = kit.runs(6)
    with kit.engine.begin() as connection:
        connection.exec_driver_sql(
            f"SELECT id FROM job_runs WHERE id IN ({ids[0]}, {ids[1]}) FOR UPDATE"
        )
        assert kit.claim_ids(2) == ids[2:4]
    assert kit.claim_ids(10) == [*ids[:2], *ids[4:]]


def test_outcomes_are_waited_for_only_if_their_rows_are_locked(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.runs(3)
    running = kit.claim()
    kit.sql("UPDATE job_runs SET locked_by = 'other:1:token' WHERE id = :id", id=running[0].id)
    monkeypatch.setattr(claims, "BLOCKED_PAUSES_SECONDS", (-1.0,))  # Even `time.sleep` refuses it.
    outcomes = [outcome(claim, "succeeded") for claim in running]
    answer = kit.claims.record_and_claim(outcomes, kit.request(3))
    assert set(answer.recorded) == {running[1].id, running[2].id}
