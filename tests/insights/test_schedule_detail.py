"""The views of one definition and of one task."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs import CronJobs, Retry
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights import schedule_detail as detail
from flask_cronjobs.insights.reader import Count
from flask_cronjobs.insights.schedule_detail import find_definition, task_code
from tests.rows import Rows, ago


def test_a_definition_has_its_own_last_runs(state: State, rows: Rows) -> None:
    own = rows.definition("own", payload={"password": "x", "user": 1})
    foreign = rows.definition("other")
    for age in range(60, 0, -1):
        rows.run("succeeded", age=age * 60, definition_id=own)
    rows.run("dead", definition_id=foreign)
    view = find_definition(state, "own")
    assert view is not None
    assert view.view.name == "own"
    assert view.payload == {"password": "***", "user": 1}
    assert len(view.runs) == 10
    assert {run.definition for run in view.runs} == {"own"}
    assert view.runs[0].scheduled_for > view.runs[1].scheduled_for
    assert view.task is None


def test_a_broken_or_paused_definition_has_no_slots(state: State, rows: Rows) -> None:
    rows.definition("broken", schedule="61 * * * *")
    rows.definition("paused", paused_at=ago(5))
    broken, paused = find_definition(state, "broken"), find_definition(state, "paused")
    assert broken is not None
    assert broken.view.next_slots == ()
    assert paused is not None
    assert paused.view.next_slots == ()
    assert find_definition(state, "absent") is None


def test_a_definition_has_the_slots_that_it_missed(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, foreign = rows.definition("own"), rows.definition("other")
    first = ago(hours=3).isoformat()
    why: dict[str, Any] = {"error_type": "Missed", "last_error": "missed: no tick ran in time"}
    gap = {"skipped": 60, "from": first, "to": ago(7200).isoformat()}
    old = rows.run("skipped", 7200, definition_id=own, result=gap, **why)
    edited = rows.run("skipped", 60, definition_id=own, result=["x"], **why)
    rows.run("skipped", definition_id=own, error_type="Overlap")
    rows.run("skipped", definition_id=foreign, **why)
    view = find_definition(state, "own")
    assert view is not None
    late, early = view.missed
    assert (late.run_id, late.number, late.first) == (edited, 1, late.last)
    assert (early.run_id, early.number, early.first.isoformat()) == (old, 60, first)
    assert early.why == "missed: no tick ran in time"
    assert view.gaps == Count(2)
    monkeypatch.setattr(detail, "GAPS", 1)
    view = find_definition(state, "own")
    assert view is not None
    assert (len(view.missed), view.gaps) == (1, Count(2))


def test_the_code_of_a_task_is_told_without_default_values(state: State, jobs: CronJobs) -> None:
    @jobs.task(retry=Retry(max_attempts=3, base=60), timeout=90, queue="mail", atomic=True)
    def send(user: int, *, secret: str = "hunter2", **more: object) -> None:
        """Send it.

        At once.
        """

    code = task_code(state, "send")
    assert code is not None
    assert code.arguments == ("user", "secret=…", "**more")
    assert code.doc == "Send it.\n\nAt once."
    assert dict(code.options) == {
        "retry": "3 attempts, exponential delays from 1 min to 1 h",
        "timeout": "1 min 30 s",
        "queue": "mail",
        "atomic": "yes",
    }
