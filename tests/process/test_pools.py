"""Several workers: forked processes that share only the table, and a parent that listens."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from flask_cronjobs.core.processes import HOPELESS
from tests.marks import on_postgresql, on_sqlite
from tests.monitor import Monitor
from tests.process import jobs_app
from tests.process.support import Site, Tick, run_patched, wait_until

TOO_EARLY = "ended unexpectedly"
COUNTS = """
    SELECT count(*) AS ticks, count(finished_at) AS finished, sum(succeeded) AS succeeded,
        sum(cancelled) AS cancelled, count(DISTINCT pid) AS pids
    FROM job_ticks
"""


def alive(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    with suppress(FileNotFoundError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def start_workers(site: Site, *args: str) -> Tick:
    """Start two resident workers."""
    return site.start("jobs", "work", "--workers", "2", *args)


# A tick with several workers


def test_two_workers_execute_each_run_once(site: Site) -> None:
    ids = site.enqueue_many("wait_for", [{"path": str(site.gate)}] * 2, priority=1)
    ids += site.enqueue_many("entry", [{}] * 100)
    tick = site.start_tick("--workers", "2")
    pids = {line["pid"] for line in site.wait_for("begun", 2)}
    assert len(pids - {tick.pid}) == 2
    site.gate.touch()
    result = tick.wait()
    assert (result.returncode, result.stderr) == (0, "")
    assert Counter(line["run"] for line in site.trace("note", "ended")) == Counter(ids)
    assert site.statuses() == {"succeeded": 102}
    assert result.stdout.count("succeeded  entry") == 100
    assert "tick: 102 succeeded in" in result.stdout
    (row,) = site.query("SELECT * FROM job_ticks")
    assert (row.succeeded, row.finished_at is not None) == (102, True)
    # This queue has no runs, even if a minute has passed and brought a slot.
    idle = site.run_tick("--workers", "2", "--queue", "none")
    assert (idle.returncode, idle.stdout, idle.stderr) == (0, "", "")


@on_postgresql
def test_workers_share_no_connection_with_the_process_that_forked_them(site: Site) -> None:
    """Two processes on one socket read each other's answers, or wait for them forever.

    And if a child closes its copy properly, it ends the parent's connection.
    """
    site.env["JOBS_APP_CONNECTED"] = "2"
    ids = site.enqueue_many("entry", [{"with_backend": True}] * 60)
    result = site.run_tick("--workers", "3")
    assert (result.returncode, result.stderr) == (0, "")
    assert Counter(row.run_id for row in site.query("SELECT run_id FROM entries")) == Counter(ids)
    before, after = site.trace("connected")
    assert len(set(before["backends"])) == 2
    assert (after["pid"], after["backends"]) == (before["pid"], before["backends"])
    used = {(line["pid"], line["backend"]) for line in site.trace("note")}
    backends = [backend for _, backend in used]
    assert not set(backends) & set(before["backends"])
    assert len(set(backends)) == len(backends)


# Deaths


@on_sqlite
@pytest.mark.parametrize("leaves_a_process", [False, True])
def test_killed_workers_harm_neither_the_others_nor_the_tick(
    site: Site, leaves_a_process: bool
) -> None:
    """A process that a handler forked keeps its worker's pipe open, even after the worker's end."""
    if leaves_a_process:
        payload: dict[str, object] = {"path": str(site.gate)}
        killer = site.enqueue("leave_a_process_and_die", payload, priority=1)
    else:
        killer = site.enqueue("kill_self", {"attempts": 1}, priority=1)
    site.enqueue_many("note", [{}] * 50)
    result = site.run_tick("--workers", "2")
    assert (result.returncode, result.stderr.count(TOO_EARLY)) == (0, 1)
    assert site.statuses() == {"running": 1, "succeeded": 50}
    assert result.stdout.count("succeeded  note") == 50
    site.wait_for_expiry(killer)
    assert site.run_tick("--workers", "2").returncode == 0
    assert (site.ends(killer), site.failures(killer)) == ({("succeeded", 2)}, ["WorkerLost"])


@on_sqlite
def test_tick_whose_workers_were_all_killed_has_not_done_its_work(site: Site) -> None:
    site.enqueue_many("kill_self", [{}] * 2)
    result = site.run_tick("--workers", "2")
    assert result.returncode == 1
    assert "Error: Every worker ended unexpectedly" in result.stderr


@on_sqlite
def test_worker_that_fails_by_an_error_of_its_own_fails_the_tick_with_its_traceback(
    site: Site,
) -> None:
    site.config["CRONJOBS_LEASE"] = 300
    site.enqueue("later", {"delay": 300}, priority=1)
    site.enqueue_many("note", [{}] * 20)
    result = run_patched(
        site,
        """
        from flask_cronjobs.core.worker.keeper import Keeper
        report = Keeper._report
        def broken(self, outcome, recorded):
            if outcome.job_type == "later":
                raise RuntimeError("a bug of ours")
            report(self, outcome, recorded)
        Keeper._report = broken
        """,
        "jobs", "tick", "--workers", "2",
    )  # fmt: skip
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: A worker process failed: RuntimeError")
    assert "queued" not in site.statuses(), "the other worker did what it could"
    (row,) = site.query("SELECT * FROM job_ticks")
    assert row.finished_at is None


@on_sqlite
@pytest.mark.parametrize(
    ("task", "payload"),
    [
        # The first status says that all work was done, and the second that a retry would fail.
        ("end_process", {"how": "0"}),
        ("end_process", {"how": str(HOPELESS)}),
        ("leave_a_process_and_die", {"path": "/nowhere"}),
    ],
)
def test_resident_workers_that_runs_end_are_replaced(
    site: Site, task: str, payload: dict[str, object]
) -> None:
    if "path" in payload:
        payload = {"path": str(site.gate)}
    process = start_workers(site)
    # One after the other: if both were claimed together, the second would wait for its lease.
    for number in (1, 2):
        site.enqueue(task, payload)
        wait_until(lambda number=number: process.errors.count(TOO_EARLY) == number)  # type: ignore[misc]
    again = site.folder / "again"
    site.enqueue_many("wait_for", [{"path": str(again)}] * 2)
    assert len({line["pid"] for line in site.wait_for("begun", 2)}) == 2
    again.touch()
    process.stop()
    site.gate.touch()


@pytest.mark.parametrize("command", ["work", "tick"])
def test_workers_of_a_parent_that_is_killed_stop_in_order(site: Site, command: str) -> None:
    site.config["CRONJOBS_LEASE"] = 300
    runs = site.enqueue_many("sleep", [{}] * 2)
    process = site.start("jobs", command, "--workers", "2")
    pids = {line["pid"] for line in site.wait_for("begun", 2)}
    process.send(signal.SIGKILL)
    wait_until(lambda: not any(map(alive, pids)))
    assert [line["by"] for line in site.trace("interrupted")] == ["ShuttingDown"] * 2
    assert site.ends(*runs) == {("queued", 0)}
    assert process.errors.count("has ended, so this worker stops") == 2


@on_sqlite
def test_a_worker_that_was_just_forked_stops_with_its_parent_too(site: Site) -> None:
    result = run_patched(
        site,
        """
        import os, signal
        fork, begun = os.fork, os.getpid()
        def fork_and_die():
            pid = fork()
            if pid:
                os.kill(begun, signal.SIGKILL)
            while os.getppid() == begun:
                pass
            return pid
        os.fork = fork_and_die
        """,
        "jobs", "work", "--workers", "2",
    )  # fmt: skip
    assert result.returncode == -signal.SIGKILL
    # Its output was read to the end, so the worker has ended as well.
    assert result.stderr.count("has ended, so this worker stops") == 1


def test_lasting_trouble_of_one_resident_worker_ends_the_command_with_the_reason(
    site: Site,
) -> None:
    """Only the first worker reads definitions. Without it, the others would record no slots."""
    site.tick_here()
    site.query("DROP TABLE job_definitions")
    result = start_workers(site).wait()
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("Error: Job tables are missing: ")


@pytest.mark.parametrize(("how", "status"), [("exit", 3), ("raise", 1), ("return", 0)])
@pytest.mark.parametrize(
    "task", ["fork_a_process", "fork_a_process_atomically", "async_fork_a_process"]
)
def test_a_process_that_a_handler_forked_does_not_become_a_second_worker(
    site: Site, task: str, how: str, status: int
) -> None:
    """It would have a copy of the claims that wait behind this run, and perform them as well."""
    ids = site.enqueue_many("note", [{}] * 100)
    run = site.enqueue(task, {"how": how})
    ids += site.enqueue_many("note", [{}] * 100)
    result = site.run_tick()
    assert (result.returncode, site.ends(run)) == (0, {("succeeded", 1)}), result.stderr
    assert [line["status"] for line in site.trace("ended")] == [status]
    assert Counter(line["run"] for line in site.trace("note")) == Counter(ids)
    assert ("a handler forked, did not exit" in result.stderr) == (how != "exit")


# Forks that fail, and temporary trouble


@on_sqlite
def test_workers_that_were_forked_before_a_fork_failed_are_stopped_and_waited_for(
    site: Site,
) -> None:
    site.config["CRONJOBS_LEASE"] = 300
    runs = site.enqueue_many("sleep", [{}] * 2)
    result = run_patched(
        site,
        f"""
        import errno, os, time
        fork, pids = os.fork, []
        def fork_some():
            while pids and "begun" not in open({str(site.trace_file)!r}).read():
                time.sleep(0.02)
            if pids:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            pids.append(fork())
            return pids[0]
        os.fork = fork_some
        """,
        "jobs", "tick", "--workers", "3",
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(
        "Error: Of 3 workers, only 1 could be started, so they were stopped: Resource "
    )
    (line,) = site.trace("begun")
    assert not alive(line["pid"])
    assert site.ends(*runs) == {("queued", 0)}


@on_sqlite
def test_a_worker_that_cannot_be_replaced_is_tried_again(site: Site) -> None:
    site.enqueue("kill_self", {"attempts": 1})
    result = run_patched(
        site,
        """
        import errno, os, signal
        from flask_cronjobs.core import processes
        fork, number = os.fork, 0
        def fork_most():
            global number
            number += 1
            if number in (3, 4):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            pid = fork()
            if pid and number == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return pid
        os.fork, processes.RESTART_SECONDS = fork_most, 0.01
        """,
        "jobs", "work", "--workers", "2",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("could not be replaced. Trying again") == 2


# Stops


@on_sqlite
def test_sigterm_between_the_forks_reaches_all_workers(site: Site) -> None:
    site.enqueue_many("sleep", [{}] * 2)
    result = run_patched(
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
    assert (result.returncode, result.stderr) == (0, "")
    assert site.statuses() == {"queued": 2}


# One row a minute, with the counts of all workers


@on_sqlite
def test_a_worker_that_replaces_the_first_continues_the_minutes(site: Site) -> None:
    process = start_workers(site, "--queue", "ours")
    (row,) = wait_until(lambda: site.query("SELECT pid FROM job_ticks"))
    os.kill(row.pid, signal.SIGKILL)
    wait_until(lambda: site.query(COUNTS)[0].pids == 2)
    site.enqueue_many("note", [{}] * 20, queue="ours")
    wait_until(lambda: process.output.count("succeeded  note") == 20)
    process.stop()
    counts = site.query(COUNTS)[0]
    assert counts.ticks - counts.finished <= 1, "the row of the one that was killed"
    assert counts.succeeded == 20


# Pings of definitions


def run_pinging(site: Site, monitor: Monitor, task: str, *names: str) -> None:
    """Add definitions that ping the monitor by their names, and enqueue a run of each."""
    with site.app.app_context():
        for name in names:
            ping = monitor.url + name
            jobs_app.jobs.add_definition(name, task, schedule="@yearly", ping=ping)
            jobs_app.jobs.run_now(name)


def test_worker_that_is_ended_with_a_stuck_handler_pings_the_failure_first(
    site: Site, monitor: Monitor
) -> None:
    site.config |= {"CRONJOBS_TIMEOUT": 1, "CRONJOBS_SHUTDOWN_GRACE": 0}
    run_pinging(site, monitor, "stubborn", "stuck")
    site.query("UPDATE job_runs SET max_attempts = 1")
    assert site.run_tick().returncode == 1
    assert [path for path, _ in monitor.requests] == ["/stuck/start", "/stuck/fail"]
