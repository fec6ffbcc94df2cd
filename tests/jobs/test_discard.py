"""Discard dead runs: they end cancelled, and can still be retried."""

from __future__ import annotations

import pytest

from flask_cronjobs import StateConflict, run_cancelled
from flask_cronjobs.jobs.reader import Count
from flask_cronjobs.jobs.runs.actions import CANCEL, DISCARD, RETRY
from flask_cronjobs.jobs.runs.list import RunFilter
from flask_cronjobs.jobs.state import State
from flask_cronjobs.types import STATUSES, Outcome
from tests.rows import Rows, ago


def test_a_dead_run_ends_cancelled_from_now_on(state: State, rows: Rows) -> None:
    run_id = rows.run("dead", age=20 * 86400, last_error="boom", error_type="ValueError")
    rows.failure(run_id, 1)
    heard: list[Outcome] = []

    def hear(sender: object, outcome: Outcome) -> None:
        heard.append(outcome)

    with run_cancelled.connected_to(hear):
        change = DISCARD.one(state, run_id, "ada")
    run = rows.get(run_id)
    assert (change.status, run.status) == ("cancelled", "cancelled")
    assert (run.last_error, run.error_type) == ("discarded by ada", "Discarded")
    assert run.finished_at is not None
    assert run.finished_at > ago(60)
    assert [outcome.id for outcome in heard] == [run_id]
    RETRY.one(state, run_id)
    assert rows.get(run_id).status == "queued"


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "dead"])
def test_no_other_run_is_discarded(state: State, rows: Rows, status: str) -> None:
    run_id = rows.run(status)
    with pytest.raises(StateConflict, match=r"is not dead|only dead runs"):
        DISCARD.one(state, run_id, "ada")
    assert rows.get(run_id).status == status


def test_a_filter_without_a_status_means_dead_runs(state: State, rows: Rows) -> None:
    ids = [rows.run(status) for status in ("dead", "dead", "failed", "queued")]
    assert DISCARD.many(state, RunFilter(task="send"), "ada").changed == 2
    assert [rows.get(run_id).status for run_id in ids] == [
        "cancelled", "cancelled", "failed", "queued",
    ]  # fmt: skip


def test_a_count_is_of_what_the_action_would_change(state: State, rows: Rows) -> None:
    for status in ("dead", "dead", "failed", "queued", "succeeded"):
        rows.run(status)
    rows.run("queued", concurrency_key="k", concurrency_limit=1)
    which = RunFilter(task="send")
    assert DISCARD.count(state, which, 100) == RETRY.count(state, which, 100) == Count(2)
    assert CANCEL.count(state, which, 100) == Count(3)
    assert CANCEL.count(state, which, 3) == Count(3)
    assert CANCEL.count(state, which, 2) == Count(2, capped=True)
    with pytest.raises(StateConflict):
        CANCEL.count(state, RunFilter(status="dead"), 100)
