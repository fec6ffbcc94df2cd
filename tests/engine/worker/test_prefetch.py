"""How many runs a worker claims ahead: about fifty milliseconds of them."""

from __future__ import annotations

import pytest

from flask_cronjobs.engine.worker.admission import AHEAD, LONG, MOST, Prefetch


def test_first_claim_is_of_one_run_and_the_second_waits_for_its_outcome() -> None:
    prefetch = Prefetch()
    assert prefetch.wanted(0, idle=True) == 1
    assert prefetch.wanted(0, idle=False) == 0


def test_nothing_is_claimed_behind_long_runs() -> None:
    prefetch = Prefetch()
    prefetch.note([LONG * 2])
    assert prefetch.wanted(0, idle=True) == 1
    assert prefetch.wanted(0, idle=False) == 0


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(0.0, MOST), (1e-9, MOST), (0.0001, 500), (0.001, 50), (0.01, 5), (0.05, 1), (10.0, 1)],
)
def test_as_many_are_claimed_as_the_mean_says(seconds: float, wanted: int) -> None:
    prefetch = Prefetch()
    prefetch.note([seconds])
    assert prefetch.wanted(0, idle=True) == pytest.approx(wanted, abs=1)
    assert wanted * seconds <= AHEAD * 1.01 or wanted == 1


def test_nothing_is_claimed_until_half_of_them_are_gone() -> None:
    prefetch = Prefetch()
    prefetch.note([0.001])
    target = prefetch.wanted(0, idle=True)
    assert prefetch.wanted(target, idle=True) == 0
    assert prefetch.wanted(target // 2 + 1, idle=True) == 0
    assert prefetch.wanted(target // 2, idle=True) == target - target // 2


def test_statement_that_records_claims_too() -> None:
    prefetch = Prefetch()
    prefetch.note([0.001])
    target = prefetch.wanted(0, idle=True)
    assert prefetch.wanted(target - 1, idle=False, recording=True) == 1
    assert prefetch.wanted(target, idle=False, recording=True) == 0


def test_many_runs_count_more_than_the_few_before() -> None:
    prefetch = Prefetch()
    prefetch.note([0.01])  # The first run of a process is slow.
    prefetch.note([0.0001] * 5)
    assert prefetch.wanted(0, idle=True) > AHEAD / 0.005


def test_slow_runs_soon_shrink_what_is_claimed_ahead() -> None:
    prefetch = Prefetch()
    prefetch.note([0.0001] * 500)
    prefetch.note([1.0])
    assert prefetch.wanted(0, idle=True) == 1


def test_fast_runs_grow_it_again() -> None:
    prefetch = Prefetch()
    prefetch.note([1.0])
    for _ in range(40):
        prefetch.note([0.001])
    assert prefetch.wanted(0, idle=True) > 40


def test_first_batch_counts_by_its_own_mean() -> None:
    one, other = Prefetch(), Prefetch()
    one.note([0.001, 0.003])
    other.note([0.002])
    assert one.wanted(0, idle=True) == other.wanted(0, idle=True)


def test_nothing_noted_changes_nothing() -> None:
    prefetch = Prefetch()
    prefetch.note([])
    assert prefetch.wanted(0, idle=True) == 1
