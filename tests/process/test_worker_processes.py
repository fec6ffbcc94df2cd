"""``--workers 2``: forked processes that share nothing but the table."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.process.support import Site, run_patched, wait_until

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
    # Of a queue that has no runs: the minute may have passed, and with it a slot have come.
    done = site.run_tick("--workers", "2", "--queue", "none")
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


@pytest.mark.parametrize(("workers", "most"), [(2, 3), (3, 7), (4, 1)])
def test_max_runs_is_the_tick_s_and_shared_out_among_its_workers(
    site: Site, workers: int, most: int
) -> None:
    site.enqueue_many("note", [{}] * 10)
    done = site.run_tick("--workers", str(workers), "--max-runs", str(most))
    assert done.returncode == 0
    assert site.statuses() == {"succeeded": most, "queued": 10 - most}


def test_worker_that_fails_by_an_error_of_its_own_fails_the_tick_with_its_traceback(
    site: Site,
) -> None:
    site.config["CRONJOBS_LEASE"] = 300
    site.enqueue("later", {"delay": 300}, priority=1)
    site.enqueue_many("note", [{}] * 20)
    done = run_patched(
        site,
        """
        from flask_cronjobs.engine.worker.keeper import Keeper
        report = Keeper._report
        def broken(self, outcome, recorded):
            if outcome.job_type == "later":
                raise RuntimeError("a bug of ours")
            report(self, outcome, recorded)
        Keeper._report = broken
        """,
        "jobs", "tick", "--workers", "2",
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: A worker process failed: RuntimeError")
    assert "queued" not in site.statuses(), "the other worker did what it could"
    (row,) = site.query("SELECT * FROM job_ticks")
    assert row.finished_at is None


def test_tick_whose_workers_were_all_killed_has_not_done_its_work(site: Site) -> None:
    site.enqueue_many("kill_self", [{}] * 2)
    done = site.run_tick("--workers", "2")
    assert done.returncode == 1
    assert "Error: Every worker ended before its time" in done.stderr


def test_sigterm_between_the_forks_reaches_all_workers(site: Site) -> None:
    site.enqueue_many("sleep", [{"seconds": 300}] * 2)
    done = run_patched(
        site,
        """
        import os, signal
        fork = os.fork
        def fork_and_be_stopped():
            pid = fork()
            if pid:
                os.kill(os.getpid(), signal.SIGTERM)
            return pid
        os.fork = fork_and_be_stopped
        """,
        "jobs", "work", "--workers", "2",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert {row.status for row in site.query("SELECT status FROM job_runs")} == {"queued"}


def test_lost_outcomes_of_all_workers_are_counted(site: Site) -> None:
    gate = site.folder / "gate"
    site.enqueue_many("wait_for", [{"path": str(gate)}] * 2)
    tick = site.start_tick("--workers", "2")
    site.wait_for("begun", 2)
    site.query("UPDATE job_runs SET locked_by = 'other:1:x' WHERE status = 'running'")
    gate.touch()
    done = tick.wait()
    assert "2 lost" in done.stdout
    assert site.query("SELECT lost FROM job_ticks WHERE finished_at IS NOT NULL")[0].lost == 2


def test_trouble_of_long_ago_is_not_what_a_resident_crew_ends_with(site: Site) -> None:
    tally = site.folder / "tally"
    done = run_patched(
        site,
        f"""
        import os, signal
        from flask_cronjobs import DatabaseTrouble
        from flask_cronjobs.engine import processes
        work = processes.work
        def troubled(*args, **more):
            with open({str(tally)!r}, "ab", buffering=0) as file:
                file.write(b"x")
                number = file.tell()
            if number <= 4:
                raise DatabaseTrouble("a blip, long ago", transient=True)
            if number == 6:
                os.kill(os.getppid(), signal.SIGTERM)
            return work(*args, **more)
        processes.work, processes.RESTART_PAUSE = troubled, 0.01
        """,
        "jobs", "work", "--workers", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ended before its time") == 4


def test_workers_end_with_a_tick_that_is_killed_or_their_runs_come_back(site: Site) -> None:
    run = site.enqueue("wait_once")
    tick = site.start_tick("--workers", "2")
    site.wait_for("begun")
    tick.end()
    site.wait_for_expiry(run)
    assert site.run_tick().returncode == 0
    wait_until(lambda: site.run(run).status == "succeeded")
    assert site.failures(run) == ["WorkerLost"]
