"""Durable steps for people: what a run's page says of them, and to go on from one of them."""

from __future__ import annotations

from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs, NotFound, StateConflict
from flask_cronjobs.jobs.runs.detail import facts_of
from flask_cronjobs.jobs.state import State
from flask_cronjobs.jobs.step_views import SHOWN
from flask_cronjobs.models import JobStep
from tests.rows import Rows, ago, view_of


def test_a_run_has_its_steps_in_order(state: State, rows: Rows) -> None:
    run_id, soon = rows.run(), ago(-60)
    rows.step(run_id, "totals", result={"password": "x", "sum": 1})
    rows.step(run_id, "invoices", "each", result=9, chunks=3, finished_at=None)
    rows.step(run_id, "lines", "each", result=9, chunks=1)
    rows.step(run_id, "slept", "sleep", due_at=ago(8))
    rows.step(run_id, "nap", "sleep", due_at=soon, finished_at=None)
    rows.step(run_id, "approved", "wait", due_at=soon, finished_at=None)
    rows.step(run_id, "signed", "wait", result="by ann")
    rows.step(run_id, "counted", "wait", due_at=ago(8))
    rows.step(rows.run(), "another's")
    steps = view_of(state, run_id).steps
    assert {step.name: step.state for step in steps} == {
        "totals": "done",
        "invoices": "3 chunks done",
        "lines": "done, 1 chunk",
        "slept": "slept",
        "nap": "sleeps",
        "approved": "waits for a signal",
        "signed": "signal came",
        "counted": "timed out",
    }
    first = steps[0]
    assert (first.worker, first.result) == ("web-1:7", {"password": "***", "sum": 1})
    assert first.seconds == pytest.approx(3, abs=0.1)
    assert steps[1].seconds is None


def test_the_latest_steps_are_shown(state: State, rows: Rows) -> None:
    run_id = rows.run()
    for number in range(SHOWN + 1):
        rows.step(run_id, str(number))
    assert [step.name for step in view_of(state, run_id).steps] == [
        str(number) for number in range(1, SHOWN + 1)
    ]


def test_a_run_says_which_attempts_do_not_count(state: State, rows: Rows) -> None:
    notes = {
        "the first does not count, since steps ended": {"attempts": 2, "forgiven": 1},
        "the first 2 do not count, since steps ended": {"attempts": 2, "forgiven": 2},
        None: {"attempts": 1, "forgiven": 2},
    }
    for note, values in notes.items():
        (fact,) = [
            fact
            for fact in facts_of(view_of(state, rows.run("failed", **values)))
            if fact.label == "attempts"
        ]
        assert fact.note == note


def test_to_go_on_from_a_step_removes_it_and_those_behind(
    context: None, db: SQLAlchemy, jobs: CronJobs, rows: Rows
) -> None:
    run_id = rows.run("dead", max_attempts=1)
    for name in ("totals", "invoices", "mail"):
        rows.step(run_id, name)
    rows.step(run_id, "timed out", "wait", due_at=ago(8))
    rows.step(run_id, "approved", "wait", result=True)
    other = rows.run("dead")
    rows.step(other, "mail")
    assert jobs.retry(run_id, from_step="invoices").status == "queued"
    left = db.session.execute(select(JobStep.run_id, JobStep.name).order_by(JobStep.id))
    # The signal was sent to the run, and nobody would send it again.
    assert list(map(tuple, left)) == [(run_id, "totals"), (run_id, "approved"), (other, "mail")]
    assert jobs.retry(other, from_step="mail").status == "queued"


@pytest.mark.parametrize(
    ("status", "step", "error"),
    [
        ("dead", "other", NotFound),
        ("dead", "no\0name", NotFound),
        ("queued", "totals", StateConflict),
        ("running", "totals", StateConflict),
        ("succeeded", "totals", StateConflict),
    ],
)
def test_it_is_refused_where_a_retry_is(
    context: None, db: SQLAlchemy, jobs: CronJobs, rows: Rows, status: str, step: str, error: Any
) -> None:
    run_id = rows.run(status)
    rows.step(run_id, "totals")
    with pytest.raises(error):
        jobs.retry(run_id, from_step=step)
    with pytest.raises(NotFound):
        jobs.retry(run_id + 1, from_step=step)
    with pytest.raises(TypeError):
        jobs.retry(run_id, {}, from_step=step)
    assert db.session.scalars(select(JobStep.name)).all() == ["totals"]
    assert rows.get(run_id).status == status
