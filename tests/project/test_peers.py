"""What the comparison with the peers reports, without measuring."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.peers import contestants
from benchmarks.peers.calls import Tally, tally
from benchmarks.peers.environments import NODE, OURS, PYTHON
from benchmarks.peers.figures import Figure, ratio
from benchmarks.peers.work import Plan

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "benchmarks/peers/programs"
GROUPS = [
    contestants.DRAIN,
    contestants.MANY,
    contestants.TWO,
    contestants.SQLITE,
    contestants.ENQUEUE,
    contestants.BULK,
    contestants.IDLE,
    contestants.LATENCY,
]

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

NOTE = """
import os, sys
from pathlib import Path
from benchmarks.peers.calls import Calls

calls = Calls(Path(sys.argv[1]), int(sys.argv[2]))
calls.note(0)
if os.fork() == 0:
    calls.note(1)
    os._exit(0)
os.wait()
calls.note(int(sys.argv[3]))
"""


@pytest.fixture
def noted(tmp_path: Path) -> Callable[[int, int], Tally]:
    """Let one process note the jobs 0 and *last*, and its child the job 1."""

    def noted(jobs: int, last: int) -> Tally:
        command = [sys.executable, "-c", NOTE, str(tmp_path), str(jobs), str(last)]
        subprocess.run(command, cwd=ROOT, check=True)
        return tally(tmp_path, jobs)

    return noted


@forks
def test_calls_of_all_processes_are_counted(noted: Callable[[int, int], Tally]) -> None:
    found = noted(3, 2)
    assert found.fault() is None
    assert 0 < found.times[0] <= found.times[1] <= found.times[2]
    assert (found.first, found.last) == (found.times[0] / 1e9, found.times[2] / 1e9)


@forks
def test_a_job_that_nobody_called_is_a_fault(noted: Callable[[int, int], Tally]) -> None:
    assert noted(4, 2).fault() == "1 jobs never ran, 0 ran more than once"


@forks
def test_a_job_that_two_processes_called_is_a_fault(noted: Callable[[int, int], Tally]) -> None:
    assert noted(2, 1).fault() == "0 jobs never ran, 1 ran more than once"


def test_a_figure_with_a_wide_spread_is_withheld() -> None:
    assert Figure([90, 100, 115]).quoted(0) == "100 (25%)"
    assert Figure([90, 100, 116]).quoted(0) == "withheld: spread 26%"
    assert Figure([90, 100, 116]).shown(0) == "100 (26%)"


def test_a_figure_of_a_round_that_went_wrong_is_not_shown() -> None:
    wrong = Figure([100, 100], ["2 jobs never ran, 0 ran more than once"])
    assert wrong.quoted(0) == wrong.shown(0) == "wrong: 2 jobs never ran, 0 ran more than once"


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    assert ratio(Figure([10, 20, 90]), Figure([10, 10, 30])).values == [1, 2, 3]


def test_each_round_begins_with_another_contestant() -> None:
    order = [one.label for one in Plan(["ours", "raw"], 3).interleaved(contestants.DRAIN)]
    assert len(order) == 9
    assert len({order[0], order[3], order[6]}) == 3
    assert sorted(order[:3]) == sorted(order[3:6]) == sorted(order[6:])


@pytest.mark.parametrize("group", GROUPS)
def test_each_contestant_has_a_program_and_pinned_versions(
    group: dict[str, list[contestants.Contestant]],
) -> None:
    labels = [one.label for ones in group.values() for one in ones]
    assert len(labels) == len(set(labels))
    for one in (one for ones in group.values() for one in ones):
        assert list(PROGRAMS.glob(f"{one.program}.*")), one.program
        wanted = {**PYTHON, **NODE, OURS: ["flask-cronjobs==0"]}[one.environment]
        assert all("==" in each or "@" in each for each in wanted), one.environment
