"""What is told to stop, stops: by a signal, a cancel or a timeout. No run is lost."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.marks import on_sqlite
from tests.process.support import Site, Tick, wait_until

#: Why a handler is to end: the exception that it sees, and then its run's state.
REASONS = {
    "sigterm": ("ShuttingDown", ("queued", 0, None)),
    "cancel": ("Cancelled", ("cancelled", 1, "Cancelled")),
    "cancel by row": ("Cancelled", ("cancelled", 1, "Cancelled")),
    "timeout": ("TimedOut", ("failed", 1, "TimedOut")),
}


def ask(site: Site, tick: Tick, run: int, reason: str) -> None:
    """Request the end of a running run; a timeout needs no request."""
    if reason == "sigterm":
        tick.send(signal.SIGTERM)
    elif reason == "cancel":
        assert site.cancel(run) == "running"
    elif reason == "cancel by row":
        site.query(f"UPDATE job_runs SET cancel_requested_at = '{site.past}' WHERE id = {run}")


def end_of(site: Site, run: int) -> tuple[str, int, str | None]:
    row = site.run(run)
    assert row.locked_by is None
    return row.status, row.attempts, row.error_type


@pytest.mark.parametrize("task", ["sleep", "async_wait"])
@pytest.mark.parametrize("reason", ["sigterm", "cancel", "cancel by row"])
def test_handler_is_interrupted(site: Site, task: str, reason: str) -> None:
    run, tick = site.begin(task)
    ask(site, tick, run, reason)
    result = tick.wait()
    assert result.returncode == 0, result.stderr
    error, end = REASONS[reason]
    (interrupted,) = site.trace("interrupted")
    assert interrupted["by"] == (error if task == "sleep" else "CancelledError")
    assert (end_of(site, run), site.failures(run)) == (end, [])
    assert ("released" if reason == "sigterm" else "cancelled") in result.stdout


@on_sqlite
@pytest.mark.parametrize(
    ("task", "reason"),
    [
        *itertools.product(("stubborn", "async_stubborn"), ("sigterm", "cancel", "timeout")),
        *itertools.product(("in_c", "async_in_c"), ("timeout",)),
    ],
)
def test_handler_that_does_not_end_is_ended_with_its_process(
    site: Site, task: str, reason: str
) -> None:
    """Its process's other runs come back at once, not by lease, and lose no attempt."""
    site.config |= {"CRONJOBS_LEASE": 300, "CRONJOBS_ASYNC_AT_ONCE": 5}
    if reason == "timeout":
        site.config["CRONJOBS_TIMEOUT"] = 1
    if "async" in task:
        rest = site.enqueue_many("async_wait", [{}] * 4)
    else:
        site.enqueue_many("note", [{}] * 30, priority=2)  # Fast runs, so more are claimed ahead.
        rest = site.enqueue_many("note", [{}] * 10)
    # This is not its last attempt: such a run is claimed alone.
    run = site.enqueue(task, priority=1, max_attempts=2)
    tick = site.start_tick()
    site.wait_for("begun", 5 if "async" in task else 1)
    ask(site, tick, run, reason)
    result = tick.wait()
    assert result.returncode == 1
    error, end = REASONS[reason]
    assert end_of(site, run) == end
    assert {line["by"] for line in site.trace("swallowed")} <= {error, "CancelledError"}
    assert bool(site.trace("swallowed")) == ("stubborn" in task)
    assert site.ends(*rest) == {("queued", 0)}
    assert "did not end" in result.stderr
    if reason == "timeout":
        assert "its process was ended" in site.run(run).last_error
        assert site.failures(run) == ["TimedOut"]
    if task == "async_in_c":
        assert f"task {task}, run {run}: its handler has blocked the event loop" in result.stderr


@pytest.mark.parametrize("task", ["hold_the_interpreter", "async_hold_the_interpreter"])
def test_handler_that_never_lets_go_of_the_interpreter_is_ended_by_the_watchdog(
    site: Site, task: str
) -> None:
    run = site.enqueue(task)
    result = site.run_tick()
    assert result.returncode == 1
    assert re.search(r"Timeout \(0:00:0\d", result.stderr)
    assert "hold_the_interpreter" in result.stderr
    site.wait_for_expiry(run)
    assert site.run_tick().returncode == 0
    assert (site.ends(run), site.failures(run)) == ({("succeeded", 2)}, ["WorkerLost"])


@on_sqlite
def test_slow_receiver_of_a_run_that_has_ended_is_not_taken_for_its_handler(site: Site) -> None:
    """The watchdog that was set for the run is no longer active when the run has ended."""
    site.config |= {"CRONJOBS_LEASE": 600, "CRONJOBS_SHUTDOWN_GRACE": 0}
    runs = [site.enqueue("with_a_slow_receiver"), site.enqueue("note")]
    result = site.run_tick()
    assert (result.returncode, result.stderr) == (0, "")
    assert len(site.trace("received")) == 1
    assert {status for status, _ in site.ends(*runs)} == {"succeeded"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_handler_may_finish_within_the_grace(site: Site, number: signal.Signals) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 60
    run, tick = site.begin("wait_for", {"path": str(site.gate)}, priority=1)
    waiting = site.enqueue("note")
    tick.send(number)
    site.gate.touch()
    result = tick.wait()
    assert result.returncode == 0, result.stderr
    assert site.ends(run) == {("succeeded", 1)}
    assert site.ends(waiting) == {("queued", 0)}, "claimed after the signal"


@pytest.mark.parametrize("asked", [True, False], ids=["stopping", "working"])
def test_runs_claimed_behind_a_slow_one_are_given_back_at_once(site: Site, asked: bool) -> None:
    """After fast runs, the worker claims ahead."""
    site.config |= {"CRONJOBS_SHUTDOWN_GRACE": 300, "CRONJOBS_LEASE": 600}
    site.enqueue_many("note", [{}] * 300)
    site.enqueue("wait_for", {"path": str(site.gate)})
    site.enqueue_many("note", [{}] * 50)
    tick = site.start_tick()
    site.wait_for("begun")
    if asked:
        tick.send(signal.SIGTERM)
    wait_until(lambda: site.statuses().get("running") == 1)
    if not asked:
        assert site.run_tick().returncode == 0
        assert site.statuses() == {"running": 1, "succeeded": 350}
    assert tick.running
    site.gate.touch()
    assert tick.wait().returncode == 0
    rows = site.query("SELECT DISTINCT status, attempts FROM job_runs")
    assert set(map(tuple, rows)) <= {("queued", 0), ("succeeded", 1)}


@on_sqlite
def test_second_sigterm_ends_the_process_at_once(site: Site) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 300
    run, tick = site.begin("wait_once")
    tick.send(signal.SIGTERM)
    # The first one is being handled once its handler has restored the default.
    wait_until(lambda: not catches(tick.pid, signal.SIGTERM))
    tick.send(signal.SIGTERM)
    assert tick.wait().returncode == -signal.SIGTERM
    assert site.ends(run) == {("running", 1)}


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has its own handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return bool(int(caught, 16) & (1 << (number - 1)))


@on_sqlite
@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_ends_a_process_that_a_handler_forked_as_multiprocessing_expects(
    site: Site, workers: str
) -> None:
    run = site.enqueue("terminate_a_process")
    result = site.run_tick("--workers", workers)
    assert (result.returncode, site.ends(run)) == (0, {("succeeded", 1)}), result.stderr
    (ended,) = site.trace("ended")
    assert ended["status"] == -signal.SIGTERM


@on_sqlite
@pytest.mark.parametrize("command", [("tick",), ("work", "--workers", "2")])
def test_a_closed_terminal_lets_the_handler_finish_though_it_says_so_twice(
    site: Site, command: tuple[str, ...]
) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 60
    run = site.enqueue("wait_for", {"path": str(site.gate)})
    tick = site.start("jobs", *command)
    site.wait_for("begun")
    for _ in range(3):
        os.killpg(tick.pid, signal.SIGHUP)
        time.sleep(0.1)
    site.gate.touch()
    result = tick.wait()
    assert result.returncode == 0, result.stderr
    assert site.ends(run) == {("succeeded", 1)}


@on_sqlite
def test_under_nohup_a_closed_terminal_does_not_matter(site: Site) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # The process below inherits this.
    try:
        run, tick = site.begin("wait_for", {"path": str(site.gate)})
    finally:
        signal.signal(signal.SIGHUP, before)
    later = site.enqueue("note")
    tick.send(signal.SIGHUP)
    time.sleep(0.5)
    site.gate.touch()
    assert tick.wait().returncode == 0
    assert site.ends(run, later) == {("succeeded", 1)}


def test_sigterm_at_random_moments_orphans_no_run(site: Site) -> None:
    site.config["CRONJOBS_LEASE"] = 600
    ids = site.enqueue_many("wait_for", [{"path": str(site.gate)}] * 2, priority=1)
    ids += site.enqueue_many("note", [{}] * 2000)
    ticks = [site.start_tick() for _ in range(2)]
    site.wait_for("begun", 2)
    site.gate.touch()
    site.wait_for("note")
    chance = random.Random(61)
    for tick in ticks:
        time.sleep(chance.uniform(0, 0.05))
        tick.send(signal.SIGTERM)
    # A tick that had done its work has restored the signal's default, and holds nothing.
    assert {tick.wait().returncode for tick in ticks} <= {0, -signal.SIGTERM}
    rows = site.query("SELECT DISTINCT status, attempts, locked_by FROM job_runs")
    assert set(rows) <= {("queued", 0, None), ("succeeded", 1, None)}
    while site.tick_here().succeeded:
        pass
    assert site.statuses() == {"succeeded": 2002}
    assert Counter(line["run"] for line in site.trace("note", "ended")) == Counter(ids)


@on_sqlite
def test_cancel_of_a_run_whose_handler_does_not_run(site: Site) -> None:
    """A run whose worker is dead is not tried again; one that has just ended stays as it is."""
    run, tick = site.begin("wait_once")
    tick.end()
    assert site.cancel(run) == "running"
    site.expire()
    site.tick_here()
    assert (site.run(run).status, site.trace("redone")) == ("cancelled", [])
    ended = site.enqueue("note")
    site.query(f"UPDATE job_runs SET cancel_requested_at = '{site.past}' WHERE id = {ended}")
    site.tick_here()
    assert site.ends(ended) == {("succeeded", 1)}


@on_sqlite
@pytest.mark.parametrize("how", ["own", "ignore", "default", "block"])
@pytest.mark.parametrize("task", ["take_signals", "async_take_signals"])
def test_handler_that_leaves_signal_handlers_behind_does_not_make_others_deaf(
    site: Site, task: str, how: str
) -> None:
    """A timeout interrupts the next handler, and SIGTERM ends the worker while it is idle."""
    site.config |= {"CRONJOBS_TIMEOUT": 1, "CRONJOBS_LEASE": 600}
    first = site.enqueue(task, {"how": how}, priority=1)
    late = site.enqueue("sleep", max_attempts=1)
    worker = site.start("jobs", "work")
    site.wait_for_status(late, "dead")
    assert site.failures(late) == ["TimedOut"]
    (interrupted,) = site.trace("interrupted")
    assert interrupted["by"] == "TimedOut"
    worker.send(signal.SIGTERM)
    result = worker.wait()
    assert (result.returncode, site.ends(first)) == (0, {("succeeded", 1)}), result.stderr
    assert site.trace("heard by the app") == []
    assert result.stderr.count(f"After a run of the task {task}, the signals ") == 1
