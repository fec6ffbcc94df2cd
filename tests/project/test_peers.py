"""What the comparison with the peers reports, without measuring."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import contestants
from benchmarks.peers.calls import tally
from benchmarks.peers.environments import NODE, OURS, PYTHON
from benchmarks.peers.figures import Figure, ratio

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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("jobs", "last", "fault"),
    [
        (3, 2, None),
        (4, 2, "1 jobs never ran, 0 ran more than once"),
        (2, 1, "0 jobs never ran, 1 ran more than once"),
    ],
)
def test_calls_of_all_processes_are_counted(
    tmp_path: Path, jobs: int, last: int, fault: str | None
) -> None:
    """One process notes the jobs 0 and *last*, and its child the job 1."""
    command = [sys.executable, "-c", NOTE, str(tmp_path), str(jobs), str(last)]
    subprocess.run(command, cwd=ROOT, check=True)
    found = tally(tmp_path, jobs)
    assert found.fault() == fault
    times = [time for time in found.times if time]
    assert times == sorted(times)
    assert found.first == times[0] / 1e9


def test_a_figure_with_a_wide_spread_is_withheld() -> None:
    assert Figure([90, 100, 115]).quoted(0) == "100 (25%)"
    assert Figure([90, 100, 116]).quoted(0) == "withheld: spread 26%"
    assert Figure([90, 100, 116]).shown(0) == "100 (26%)"


def test_a_figure_of_a_round_that_went_wrong_is_not_shown() -> None:
    wrong = Figure([100, 100], ["2 jobs never ran, 0 ran more than once"])
    assert wrong.quoted(0) == wrong.shown(0) == "wrong: 2 jobs never ran, 0 ran more than once"


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    assert ratio(Figure([10, 20, 90]), Figure([10, 10, 30])).values == [1, 2, 3]


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
