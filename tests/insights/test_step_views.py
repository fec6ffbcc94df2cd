"""A run's page shows durable steps, and lets a person restart from one of them."""

from __future__ import annotations

import pytest

from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.run_detail import facts_of
from flask_cronjobs.insights.step_views import SHOWN
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
        "signed": "signal received",
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
        "the first does not count, since a step ended in it": {"attempts": 2, "forgiven": 1},
        "the first 2 do not count, since a step ended in the last of them": {
            "attempts": 2,
            "forgiven": 2,
        },
        None: {"attempts": 1, "forgiven": 2},
    }
    for note, values in notes.items():
        (fact,) = [
            fact
            for fact in facts_of(view_of(state, rows.run("failed", **values)))
            if fact.label == "attempts"
        ]
        assert fact.note == note
