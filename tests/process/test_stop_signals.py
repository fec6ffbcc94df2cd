"""SIGTERM, SIGINT and SIGHUP: a deploy loses no run and counts no attempt."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.process.support import Site, wait_until

pytestmark = pytest.mark.slow

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_handler_may_finish_within_the_grace(site: Site, number: signal.Signals) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 60
    gate = site.folder / "gate"
    at_work = site.enqueue("wait_for", {"path": str(gate)}, priority=1)
    waiting = site.enqueue("note")
    tick = site.start_tick(env={"JOBS_APP_LOG_LEVEL": "INFO"})
    site.wait_for("begun")
    tick.send(number)
    gate.touch()
    done = tick.wait()
    assert done.returncode == 0, done.stderr
    assert site.run(at_work).status == "succeeded"
    assert [line["what"] for line in site.trace()] == ["begun", "ended"]
    row = site.run(waiting)
    assert (row.status, row.attempts) == ("queued", 0), "claimed after the signal"


def test_handler_that_outlasts_the_grace_is_interrupted_and_given_back(site: Site) -> None:
    run = site.enqueue("sleep", {"seconds": 300})
    tick = site.start_tick()
    site.wait_for("begun")
    tick.send(signal.SIGTERM)
    done = tick.wait()
    assert done.returncode == 0, done.stderr
    assert [line["by"] for line in site.trace("interrupted")] == ["ShuttingDown"]
    row = site.run(run)
    assert (row.status, row.attempts, row.locked_by) == ("queued", 0, None)
    assert site.failures(run) == []
    assert "released" in done.stdout


def test_interrupted_retry_is_given_back_as_failed_with_its_attempt_not_counted(
    site: Site,
) -> None:
    run = site.enqueue("sleep", {"seconds": 300})
    site.query("UPDATE job_runs SET status = 'failed', attempts = 1, last_error = 'first'")
    tick = site.start_tick()
    site.wait_for("begun")
    tick.send(signal.SIGTERM)
    assert tick.wait().returncode == 0
    row = site.run(run)
    assert (row.status, row.attempts, row.last_error) == ("failed", 1, "first")


def test_run_given_back_is_taken_up_by_the_next_tick(site: Site) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 0
    run = site.enqueue("sleep", {"seconds": 300})
    tick = site.start_tick()
    site.wait_for("begun")
    tick.send(signal.SIGTERM)
    tick.wait()
    second = site.start_tick()
    site.wait_for("begun", 2)
    assert [line["attempt"] for line in site.trace("begun")] == [1, 1]
    second.send(signal.SIGTERM)
    assert second.wait().returncode == 0
    assert site.run(run).status == "queued"


def test_claimed_runs_not_begun_are_given_back_at_once(site: Site) -> None:
    """Fast runs make the worker claim ahead; what is claimed behind a slow one goes back."""
    site.config |= {"CRONJOBS_SHUTDOWN_GRACE": 300, "CRONJOBS_LEASE": 600}
    gate = site.folder / "gate"
    site.enqueue_many("note", [{"label": "before"}] * 300)
    site.enqueue("wait_for", {"path": str(gate)})
    site.enqueue_many("note", [{"label": "behind"}] * 50)
    tick = site.start_tick()
    site.wait_for("begun")
    tick.send(signal.SIGTERM)
    wait_until(lambda: site.statuses().get("running") == 1)
    assert tick.running
    gate.touch()
    assert tick.wait().returncode == 0
    assert site.statuses().get("running") is None
    rows = site.query("SELECT DISTINCT attempts FROM job_runs WHERE status = 'queued'")
    assert [row.attempts for row in rows] == [0]


def test_slow_run_holds_nothing_behind_it_though_nobody_asks_to_stop(site: Site) -> None:
    site.config["CRONJOBS_LEASE"] = 600
    gate = site.folder / "gate"
    site.enqueue_many("note", [{}] * 300)
    site.enqueue("wait_for", {"path": str(gate)})
    site.enqueue_many("note", [{}] * 50)
    tick = site.start_tick()
    site.wait_for("begun")
    other = site.run_tick()
    wait_until(lambda: site.statuses().get("running") == 1)
    if site.statuses().get("queued"):
        other = site.run_tick()
    assert other.returncode == 0
    assert site.statuses() == {"running": 1, "succeeded": 350}
    gate.touch()
    assert tick.wait().returncode == 0
    assert site.statuses() == {"succeeded": 351}


def test_second_sigterm_ends_the_process_at_once(site: Site) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 300
    run = site.enqueue("wait_once")
    tick = site.start_tick(env={"JOBS_APP_LOG_LEVEL": "INFO"})
    site.wait_for("begun")
    tick.send(signal.SIGTERM)
    # The first is being heeded once its handler has put the default back.
    wait_until(lambda: not catches(tick.pid, signal.SIGTERM))
    tick.send(signal.SIGTERM)
    assert tick.wait().returncode == -signal.SIGTERM
    assert site.run(run).status == "running"
    site.wait_for_expiry(run)
    assert site.run_tick().returncode == 0
    assert (site.run(run).status, site.run(run).attempts) == ("succeeded", 2)


@pytest.mark.parametrize("command", [("tick",), ("work", "--workers", "2")])
def test_a_closed_terminal_lets_the_handler_finish_though_it_says_so_twice(
    site: Site, command: tuple[str, ...]
) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 60
    gate = site.folder / "gate"
    run = site.enqueue("wait_for", {"path": str(gate)})
    tick = site.start("jobs", *command)
    site.wait_for("begun")
    for _ in range(3):
        os.killpg(tick.pid, signal.SIGHUP)
        time.sleep(0.1)
    gate.touch()
    done = tick.wait()
    assert done.returncode == 0, done.stderr
    assert site.run(run).status == "succeeded"


def test_under_nohup_a_closed_terminal_does_not_matter(site: Site) -> None:
    gate = site.folder / "gate"
    runs = [site.enqueue("wait_for", {"path": str(gate)}), site.enqueue("note")]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # What it starts inherits this.
    try:
        tick = site.start_tick()
    finally:
        signal.signal(signal.SIGHUP, before)
    site.wait_for("begun")
    tick.send(signal.SIGHUP)
    time.sleep(0.5)
    gate.touch()
    assert tick.wait().returncode == 0
    assert [site.run(run).status for run in runs] == ["succeeded", "succeeded"]


def test_handler_that_swallows_the_interruption_is_ended_with_its_process(site: Site) -> None:
    run = site.enqueue("stubborn", {"seconds": 300})
    tick = site.start_tick()
    site.wait_for("begun")
    tick.send(signal.SIGTERM)
    done = tick.wait()
    assert done.returncode == 1
    assert "did not end" in done.stderr
    row = site.run(run)
    assert (row.status, row.attempts, row.locked_by) == ("queued", 0, None)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal."""
    from pathlib import Path

    status = Path(f"/proc/{pid}/status")
    for line in status.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":
            return bool(int(value, 16) & (1 << (number - 1)))
    return False
