"""FAULTS: a handler that runs too long, ignores its timeout, or never lets go of the GIL."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, TickReport, TimedOut
from flask_cronjobs.models import JobFailure, JobRun
from tests.marks import on_sqlite
from tests.process.support import Site

Tick = Callable[[], TickReport]


def test_timeout_interrupts_a_blocking_sleep(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task(timeout=0.2, retry=False)
    def sleepy() -> None:
        time.sleep(120)

    with app.app_context():
        run_id = sleepy.using(commit=True).enqueue().id
    began = time.monotonic()
    assert tick().dead == 1
    assert time.monotonic() - began < 60
    with app.app_context():
        run = db.session.get(JobRun, run_id)
        assert run is not None
        assert (run.status, run.error_type) == ("dead", "TimedOut")
        assert run.last_error == "the handler ran longer than its timeout of 0.2 s"
        failure = db.session.scalars(db.select(JobFailure)).one()
        assert (failure.attempt, failure.error_type) == (1, "TimedOut")


def test_except_exception_does_not_swallow_a_timeout(
    app: Flask, jobs: CronJobs, tick: Tick
) -> None:
    seen: list[str] = []

    @jobs.task(timeout=0.2, retry=False)
    def careful() -> None:
        try:
            time.sleep(120)
        except Exception:
            seen.append("except Exception")
        finally:
            seen.append("finally")
        seen.append("went on")

    with app.app_context():
        careful.using(commit=True).enqueue()
    assert tick().dead == 1
    assert seen == ["finally"]
    assert not issubclass(TimedOut, Exception)


def test_handler_that_ends_in_time_leaves_no_alarm_behind(
    app: Flask, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task(timeout=0.3)
    def quick() -> None: ...

    @jobs.task
    def slower() -> None:
        time.sleep(0.6)

    with app.app_context():
        for task in (quick, slower, quick, slower):
            task.using(commit=True).enqueue()
    report = tick()
    time.sleep(0.4)
    assert report.succeeded == 4


def test_timed_out_run_is_tried_again(app: Flask, jobs: CronJobs, tick: Tick) -> None:
    from flask_cronjobs import Retry, current_run

    @jobs.task(timeout=0.2, retry=Retry(max_attempts=2, base=0))
    def slow_at_first() -> None:
        if current_run.attempt == 1:
            time.sleep(120)

    with app.app_context():
        slow_at_first.using(commit=True).enqueue()
    report = tick()
    assert (report.failed, report.succeeded) == (1, 1)


def test_handler_that_swallows_its_timeout_is_ended_with_its_process(site: Site) -> None:
    """Its neighbors come back at once, attempts not counted, and not by lease."""
    site.config["CRONJOBS_LEASE"] = 300
    site.enqueue_many("note", [{}] * 30, priority=2)  # So short that more are claimed ahead.
    bad = site.enqueue("too_long_and_stubborn", {"seconds": 300}, priority=1, max_attempts=2)
    neighbors = site.enqueue_many("note", [{}] * 10)
    done = site.run_tick()
    assert done.returncode == 1
    run = site.run(bad)
    # Not on its last attempt: such a run is claimed by itself, without neighbors.
    assert (run.status, run.error_type, run.attempts) == ("failed", "TimedOut", 1)
    assert "its process was ended" in run.last_error
    assert site.failures(bad) == ["TimedOut"]
    assert {line["by"] for line in site.trace("swallowed")} == {"TimedOut"}
    for id_ in neighbors:
        assert (site.run(id_).status, site.run(id_).attempts) == ("queued", 0)
    site.cancel(bad)
    assert site.run_tick().returncode == 0
    assert {(site.run(id_).status, site.run(id_).attempts) for id_ in neighbors} == {
        ("succeeded", 1)
    }


@on_sqlite
def test_handler_in_c_that_hears_no_timeout_is_ended_with_its_process(site: Site) -> None:
    """It lets go of the interpreter's lock, and never comes back to be interrupted."""
    site.config["CRONJOBS_LEASE"] = 300
    bad = site.enqueue("too_long_in_c", priority=1, max_attempts=1)
    neighbor = site.enqueue("note")
    assert site.run_tick().returncode == 1
    run = site.run(bad)
    assert (run.status, run.error_type, run.attempts) == ("dead", "TimedOut", 1)
    assert "its process was ended" in run.last_error
    site.tick_here()
    assert (site.run(neighbor).status, site.run(neighbor).attempts) == ("succeeded", 1)


def test_neighbors_of_a_long_run_are_free_while_it_works(site: Site) -> None:
    gate = site.folder / "gate"
    site.enqueue_many("note", [{}] * 30, priority=2)
    long = site.enqueue("wait_for", {"path": str(gate)}, priority=1)
    neighbors = site.enqueue_many("note", [{}] * 10)
    first = site.start_tick()
    site.wait_for("begun")
    for id_ in neighbors:
        site.wait_for_status(id_, "queued")
    assert site.run_tick().returncode == 0
    assert {(site.run(id_).status, site.run(id_).attempts) for id_ in neighbors} == {
        ("succeeded", 1)
    }
    assert site.run(long).status == "running"
    gate.touch()
    assert first.wait().returncode == 0
    assert site.statuses() == {"succeeded": 41}


@pytest.mark.slow
def test_handler_that_never_lets_go_of_the_interpreter_is_ended_by_the_watchdog(
    site: Site,
) -> None:
    run_id = site.enqueue("hold_the_interpreter")
    done = site.run_tick()
    assert done.returncode == 1
    assert re.search(r"Timeout \(0:00:0\d", done.stderr)
    assert "hold_the_interpreter" in done.stderr
    site.wait_for_expiry(run_id)
    assert site.run_tick().returncode == 0
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 2)
    assert site.failures(run_id) == ["WorkerLost"]


@pytest.mark.slow
def test_slow_receiver_of_a_run_that_has_ended_is_not_taken_for_its_handler(site: Site) -> None:
    """What was lit for the run at work does not burn on when that run is over."""
    site.config |= {"CRONJOBS_LEASE": 600, "CRONJOBS_SHUTDOWN_GRACE": 0}
    run_ids = [site.enqueue("with_a_slow_receiver"), site.enqueue("note")]
    done = site.run_tick()
    assert (done.returncode, done.stderr) == (0, "")
    assert len(site.trace("received")) == 1
    assert [site.run(run_id).status for run_id in run_ids] == ["succeeded"] * 2
