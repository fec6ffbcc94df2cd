"""`Claims.front` says no only where a claim finds nothing, and looks at the front alone."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs.jobs.runs.record_and_claim import LOOKED_AT
from tests.kit import Kit
from tests.rows import ago

KEY = {"concurrency_key": "shop", "concurrency_limit": 1}
LATER = {"run_at": ago(hours=-1)}


def test_no_run_no_claim(kit: Kit) -> None:
    assert not kit.claims.look_at_queue().may_find


@pytest.mark.parametrize(
    "values",
    [{}, KEY, {"status": "failed", "attempts": 1}, {"job_type": "another app's"}, {"queue": "q"}],
    ids=["free", "keyed", "retry", "task", "queue"],
)
def test_due_run_may_be_claimed(kit: Kit, values: dict[str, Any]) -> None:
    kit.run(**values)
    assert kit.claims.look_at_queue().may_find


@pytest.mark.parametrize("values", [{}, KEY], ids=["free", "keyed"])
def test_due_run_behind_those_of_higher_priority_that_are_not_is_found(
    kit: Kit, values: dict[str, Any]
) -> None:
    kit.runs(LOOKED_AT - 1, priority=1, **LATER, **values)
    assert not kit.claims.look_at_queue().may_find
    kit.run(**values)
    assert kit.claims.look_at_queue().may_find


@pytest.mark.parametrize("values", [{}, KEY], ids=["free", "keyed"])
def test_front_that_is_full_of_later_runs_tells_nothing_of_those_behind(
    kit: Kit, values: dict[str, Any]
) -> None:
    kit.runs(LOOKED_AT + 1, priority=1, **LATER, **values)
    kit.run(**values)
    assert kit.claims.look_at_queue().may_find


def test_runs_at_work_and_ended_ones_are_not_waiting(kit: Kit) -> None:
    kit.runs(2)
    claim, _ = kit.claim()
    assert kit.finish(claim)
    assert not kit.claims.look_at_queue().may_find
