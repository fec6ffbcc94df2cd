"""FAULTS: what ends a process ends many async handlers at once, and none is lost or done twice."""

from __future__ import annotations

import re
import signal

import pytest

from tests.marks import on_sqlite
from tests.process.support import Site, wait_until

pytestmark = pytest.mark.slow


def begun(site: Site) -> int:
    """How many handlers have begun."""
    return len(site.trace("begun"))


def test_kill_costs_each_run_one_attempt_and_no_effect_is_done_twice(site: Site) -> None:
    gate = site.folder / "gate"
    site.config["CRONJOBS_ASYNC_AT_ONCE"] = 20
    waiting = site.enqueue_many("async_wait", [{"path": str(gate)}] * 8)
    site.enqueue_many("async_effect", [{"key": f"k{number}"} for number in range(60)])
    tick = site.start_tick()
    wait_until(lambda: begun(site) == 8 and len(site.trace("effect")) > 10)
    tick.send(signal.SIGKILL)
    tick.wait()
    gate.touch()
    site.tick_until_done()
    assert site.statuses() == {"succeeded": 68}
    assert {site.run(id_).attempts for id_ in waiting} == {2}
    keys = [line["key"] for line in site.trace("effect")]
    assert len(keys) == len(set(keys))
    in_doubt = site.query("SELECT key FROM job_effects WHERE state <> 'done'")
    assert len(keys) >= 60 - len(in_doubt)
    rows = site.query("SELECT max(attempts) AS most FROM job_runs WHERE job_type <> 'on_schedule'")
    assert rows[0].most == 2


def test_sigterm_lets_handlers_end_within_the_grace(site: Site) -> None:
    gate = site.folder / "gate"
    site.config |= {"CRONJOBS_SHUTDOWN_GRACE": 60, "CRONJOBS_ASYNC_AT_ONCE": 5}
    site.enqueue_many("async_wait", [{"path": str(gate)}] * 9)
    tick = site.start_tick()
    wait_until(lambda: begun(site) == 5)
    tick.send(signal.SIGTERM)
    wait_until(lambda: site.statuses().get("queued") == 4)
    gate.touch()
    assert tick.wait().returncode == 0
    assert site.statuses() == {"queued": 4, "succeeded": 5}
    assert begun(site) == 5


def test_sigterm_gives_back_those_that_do_not_end_within_the_grace(site: Site) -> None:
    ids = site.enqueue_many("async_wait", [{"path": "/nowhere"}] * 5)
    tick = site.start_tick()
    wait_until(lambda: begun(site) == 5)
    tick.send(signal.SIGTERM)
    assert tick.wait().returncode == 0
    for id_ in ids:
        row = site.run(id_)
        assert (row.status, row.attempts, row.locked_by) == ("queued", 0, None)
    assert site.trace("ended") == []


def test_handler_that_swallows_its_timeout_is_ended_with_its_process(site: Site) -> None:
    """The others at work come back at once, attempts not counted, and not by lease."""
    site.config["CRONJOBS_LEASE"] = 300
    gate = site.folder / "gate"
    bad = site.enqueue("async_stubborn", priority=1)
    others = site.enqueue_many("async_wait", [{"path": str(gate)}] * 4)
    done = site.run_tick()
    assert done.returncode == 1
    assert "did not end" in done.stderr
    run = site.run(bad)
    assert (run.status, run.error_type, run.attempts) == ("failed", "TimedOut", 1)
    assert "its process was ended" in run.last_error
    assert site.trace("swallowed")
    assert {(site.run(id_).status, site.run(id_).attempts) for id_ in others} == {("queued", 0)}
    gate.touch()
    assert site.run_tick().returncode == 0
    assert site.statuses() == {"succeeded": 5}


@on_sqlite
def test_handler_in_c_that_hears_no_timeout_is_named_and_ended_with_its_process(
    site: Site,
) -> None:
    site.config["CRONJOBS_LEASE"] = 300
    gate = site.folder / "gate"
    bad = site.enqueue("async_in_c", priority=1)
    others = site.enqueue_many("async_wait", [{"path": str(gate)}] * 4)
    done = site.run_tick()
    assert done.returncode == 1
    assert f"task async_in_c, run {bad}: its handler blocks the event loop" in done.stderr
    run = site.run(bad)
    assert (run.status, run.error_type, run.attempts) == ("failed", "TimedOut", 1)
    assert {(site.run(id_).status, site.run(id_).attempts) for id_ in others} == {("queued", 0)}


@on_sqlite
def test_handler_that_never_lets_go_of_the_interpreter_is_ended_by_the_watchdog(
    site: Site,
) -> None:
    run_id = site.enqueue("async_hold_the_interpreter")
    done = site.run_tick()
    assert done.returncode == 1
    assert re.search(r"Timeout \(0:00:0\d", done.stderr)
    site.wait_for_expiry(run_id)
    assert site.run_tick().returncode == 0
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 2)


def test_run_that_kills_its_process_costs_the_others_one_attempt_and_never_their_last(
    site: Site,
) -> None:
    killer = site.enqueue("async_kill", max_attempts=3)
    others = site.enqueue_many("async_wait", [{"path": "/", "seconds": 1}] * 6)
    last = site.enqueue_many("async_wait", [{"path": "/", "seconds": 1}] * 3, max_attempts=1)
    for _ in range(20):
        site.run_tick()
        site.expire()
        if site.statuses() == {"dead": 1, "succeeded": 9}:
            break
    assert site.statuses() == {"dead": 1, "succeeded": 9}
    assert site.failures(killer) == ["WorkerLost"] * 3
    assert {site.run(id_).attempts for id_ in others} <= {1, 2}
    assert {site.run(id_).attempts for id_ in last} == {1}


def test_frozen_worker_s_late_outcomes_are_refused(site: Site) -> None:
    gate = site.folder / "gate"
    site.config["CRONJOBS_LEASE"] = 60
    ids = site.enqueue_many("async_wait", [{"path": str(gate)}] * 3)
    zombie = site.start_tick(env={"JOBS_APP_LOG_LEVEL": "INFO"})
    wait_until(lambda: begun(site) == 3)
    zombie.send(signal.SIGSTOP)
    site.expire()
    gate.touch()
    assert site.run_tick().returncode == 0
    rows = [site.run(id_) for id_ in ids]
    assert {(row.status, row.attempts) for row in rows} == {("succeeded", 2)}
    zombie.send(signal.SIGCONT)
    done = zombie.wait()
    assert done.returncode == 0
    assert done.stderr.count("lease lost: task async_wait") == 3
    assert [site.run(id_) for id_ in ids] == rows
