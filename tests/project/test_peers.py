"""What the comparison with the peers reports, without measuring."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.peers import contestants, environments
from benchmarks.peers.calls import tally
from benchmarks.peers.environments import NODE, OURS, PYTHON
from benchmarks.peers.figures import Table
from benchmarks.peers.report import HEADLINES, Results
from benchmarks.peers.work import Plan
from tests.python import ROOT, python

PROGRAMS = ROOT / "benchmarks/peers/programs"
GROUPS: list[dict[str, list[contestants.Contestant]]] = [
    group for name, group in vars(contestants).items() if name.isupper() and isinstance(group, dict)
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
    assert python("-c", NOTE, str(tmp_path), str(jobs), str(last)).returncode == 0
    found = tally(tmp_path, jobs)
    assert found.fault() == fault
    times = [time for time in found.times if time]
    assert times == sorted(times)
    assert found.first == times[0] / 1e9


def table() -> Table:
    made = Table("drain", "Drain", {"jobs/s": 0}, {"jobs/s": "ours to it"})
    for ours, theirs in ((100, 50), (102, 51)):
        made.add("Flask-CronJobs", {"jobs/s": ours})
        made.add("Peer & Co", {"jobs/s": theirs})
        made.add("Wrong", {"jobs/s": 1.0}, "1 jobs never ran, 0 ran more than once")
    return made


def test_the_page_has_figures_ratios_and_plots(tmp_path: Path) -> None:
    results = Results("18.4", 2, load=0.1, tables=[table()])
    results.write(tmp_path / "RESULTS.md")
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| Flask-CronJobs | 101 (100 to 102) | - |" in page
    assert "| Peer & Co | 50 (50 to 51) | 2.00 (2.00 to 2.00) |" in page
    assert "| Wrong | wrong: 1 jobs never ran" in page
    assert "pgqueuer 1.6.0" in page
    assert "busy" not in page
    assert "## Measure yourself" in page
    assert "![Drain: jobs/s](plots/results-drain-jobs-s.svg)" in page
    assert (tmp_path / "plots/results-drain-jobs-s.svg").exists()


def test_the_first_table_compares_with_the_nearest_peer(tmp_path: Path) -> None:
    made = Table("enqueue", "Enqueue", {"jobs/s": 0}, {"jobs/s": "ours to it"})
    made.add("Flask-CronJobs", {"jobs/s": 300})
    made.add("Procrastinate", {"jobs/s": 100})
    lines = Results("18.4", 1, tables=[made]).headlines().splitlines()
    assert lines[2:] == [
        "| one job and its commit | jobs/s | 300 (300 to 300) "
        "| Procrastinate: 100 (100 to 100) | 3.00 (3.00 to 3.00) |"
    ]
    labels = {one.label for group in GROUPS for ones in group.values() for one in ones}
    assert {each.peer for each in HEADLINES} <= labels


def test_a_peer_whose_environment_cannot_be_made_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str, folder: Path) -> None:
        raise subprocess.CalledProcessError(1, ["pip"])

    monkeypatch.setattr(environments, "_make", fail)
    monkeypatch.setattr(environments, "FOLDER", Path("/nonexistent"))
    environments.is_available.cache_clear()
    labels = {one.label for one in Plan(["ours", "pgqueuer"]).chosen(contestants.DRAIN)}
    environments.is_available.cache_clear()
    assert labels == {"Flask-CronJobs"}
    assert "pgqueuer is left out" in capsys.readouterr().err


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
