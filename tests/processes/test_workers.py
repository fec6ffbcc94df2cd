"""``--workers 2``: forked processes that share nothing but the table."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.processes.support import Site, wait_until

pytestmark = pytest.mark.slow


def test_two_workers_execute_each_run_once(site: Site) -> None:
    gate = site.folder / "gate"
    ids = site.enqueue_many("wait_for", [{"path": str(gate)}] * 2, priority=1)
    ids += site.enqueue_many("entry", [{"label": str(n)} for n in range(100)])
    tick = site.start_tick("--workers", "2")
    pids = {line["pid"] for line in site.wait_for("begun", 2)}
    assert len(pids) == 2
    assert tick.pid not in pids
    gate.touch()
    done = tick.wait()
    assert (done.returncode, done.stderr) == (0, "")
    assert Counter(line["run"] for line in site.trace("note", "ended")) == Counter(ids)
    assert site.statuses() == {"succeeded": 102}
    assert done.stdout.count("succeeded  entry") == 100
    assert "tick: 102 succeeded in" in done.stdout
    (row,) = site.query("SELECT * FROM job_ticks")
    assert (row.succeeded, row.finished_at is not None) == (102, True)


def test_workers_with_nothing_due_are_silent(site: Site) -> None:
    site.run_tick()
    done = site.run_tick("--workers", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_killed_worker_harms_neither_the_other_nor_the_tick(site: Site) -> None:
    killer = site.enqueue("kill_self", {"attempts": 1}, priority=1)
    site.enqueue_many("note", [{}] * 50)
    done = site.run_tick("--workers", "2")
    assert done.returncode == 0
    assert "ended before its time" in done.stderr
    assert site.statuses() == {"running": 1, "succeeded": 50}
    site.wait_for_expiry(killer)
    assert site.run_tick("--workers", "2").returncode == 0
    assert site.statuses() == {"succeeded": 51}
    assert site.failures(killer) == ["WorkerLost"]


def test_sigterm_reaches_all_workers(site: Site) -> None:
    ids = site.enqueue_many("sleep", [{"seconds": 300}] * 2)
    tick = site.start_tick("--workers", "2")
    site.wait_for("begun", 2)
    tick.send(signal.SIGTERM)
    done = tick.wait()
    assert done.returncode == 0, done.stderr
    assert [line["by"] for line in site.trace("interrupted")] == ["ShuttingDown"] * 2
    assert {site.run(run).status for run in ids} == {"queued"}
    assert {site.run(run).attempts for run in ids} == {0}


def test_max_runs_is_counted_in_each_worker(site: Site) -> None:
    site.enqueue_many("note", [{}] * 10)
    done = site.run_tick("--workers", "2", "--max-runs", "3")
    assert done.returncode == 0
    assert site.statuses() == {"succeeded": 6, "queued": 4}


def test_workers_end_with_a_tick_that_is_killed_or_their_runs_come_back(site: Site) -> None:
    run = site.enqueue("wait_once")
    tick = site.start_tick("--workers", "2")
    site.wait_for("begun")
    tick.end()
    site.wait_for_expiry(run)
    assert site.run_tick().returncode == 0
    wait_until(lambda: site.run(run).status == "succeeded")
    assert site.failures(run) == ["WorkerLost"]
