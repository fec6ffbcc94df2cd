"""How many runs a worker claims ahead: about fifty milliseconds of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flask_cronjobs.engine.worker.admission import AHEAD, LONG, MOST, Prefetch


def after(*noted: Sequence[float]) -> Prefetch:
    """What knows these durations."""
    prefetch = Prefetch()
    for seconds in noted:
        prefetch.note(seconds)
    return prefetch


@pytest.mark.parametrize("noted", [[], [[]], [[LONG * 2]]], ids=["none", "nothing", "long"])
def test_one_run_is_claimed_and_nothing_behind_it(noted: list[list[float]]) -> None:
    assert after(*noted).wanted(0, idle=True) == 1
    assert after(*noted).wanted(0, idle=False) == 0


@pytest.mark.parametrize(
    ("noted", "wanted"),
    [
        ([[0.0]], MOST),
        ([[1e-9]], MOST),
        ([[0.0001]], 500),
        ([[0.001]], 50),
        ([[0.01]], 5),
        ([[0.05]], 1),
        ([[0.001, 0.003]], 25),
        ([[0.0001] * 500, [1.0]], 1),
        ([[1.0], *[[0.001]] * 40], 50),
    ],
)
def test_as_many_are_claimed_as_the_recent_mean_says(noted: list[list[float]], wanted: int) -> None:
    assert after(*noted).wanted(0, idle=True) == pytest.approx(wanted, abs=1)


def test_many_runs_count_more_than_the_few_before() -> None:
    slow_at_first = after([0.01], [0.0001] * 5)
    assert slow_at_first.wanted(0, idle=True) > AHEAD / 0.005


def test_nothing_is_claimed_until_half_of_them_are_gone_unless_a_statement_records() -> None:
    prefetch = after([0.001])
    target = prefetch.wanted(0, idle=True)
    assert prefetch.wanted(target, idle=True) == 0
    assert prefetch.wanted(target // 2 + 1, idle=True) == 0
    assert prefetch.wanted(target // 2, idle=True) == target - target // 2
    assert prefetch.wanted(target - 1, idle=False, recording=True) == 1
    assert prefetch.wanted(target, idle=False, recording=True) == 0
