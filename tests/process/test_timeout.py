"""FAULTS: a handler that runs too long, ignores its interruption, or never lets go of the GIL."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, Retry, TickReport, current_run
from flask_cronjobs.models import JobFailure
from tests.marks import on_sqlite
from tests.process.support import Site

Tick = Callable[[], TickReport]
KINDS = pytest.mark.parametrize("kind", ["", "async_"], ids=["plain", "async"])


@on_sqlite
def test_timeout_interrupts_a_blocking_sleep_that_except_exception_would_go_on_from(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    seen: list[str] = []

    @jobs.task(timeout=0.2, retry=Retry(max_attempts=2, base=0))
    def slow_at_first() -> None:
        if current_run.attempt == 1:
            try:
                time.sleep(120)
            except Exception:
                seen.append("except Exception")
            finally:
                seen.append("finally")
        seen.append("went on")

    with app.app_context():
        slow_at_first.using(commit=True).enqueue()
        report = tick()
        assert (report.failed, report.succeeded) == (1, 1)
        assert seen == ["finally", "went on"]
        failure = db.session.scalars(db.select(JobFailure)).one()
        assert (failure.attempt, failure.error_type) == (1, "TimedOut")
        assert failure.error == "the handler ran longer than its timeout of 0.2 s"


def test_cancel_interrupts_a_running_handler(site: Site) -> None:
    run_id = site.enqueue("sleep", {"seconds": 300})
    tick = site.start_tick()
    site.wait_for("begun")
    assert site.cancel(run_id) == "running"
    assert site.wait_for("interrupted")[0]["by"] == "Cancelled"
    assert tick.wait().returncode == 0
    run = site.run(run_id)
    assert (run.status, run.error_type, run.attempts) == ("cancelled", "Cancelled", 1)
    assert site.failures(run_id) == []
    assert site.run_tick().returncode == 0
    assert len(site.trace("begun")) == 1


@on_sqlite
@pytest.mark.parametrize(("by", "status"), [("Cancelled", "cancelled"), ("ShuttingDown", "queued")])
def test_handler_that_swallows_its_interruption_is_ended_with_its_process(
    site: Site, by: str, status: str
) -> None:
    run_id = site.enqueue("stubborn", {"seconds": 300})
    tick = site.start_tick()
    site.wait_for("begun")
    if by == "Cancelled":
        site.cancel(run_id)
    else:
        tick.send(signal.SIGTERM)
    done = tick.wait()
    assert done.returncode == 1
    assert "did not end" in done.stderr
    assert [line["by"] for line in site.trace("swallowed")] == [by]
    assert (site.run(run_id).status, site.run(run_id).locked_by) == (status, None)
    assert site.failures(run_id) == []


@KINDS
def test_handler_that_swallows_its_timeout_is_ended_with_its_process(site: Site, kind: str) -> None:
    """Its neighbors come back at once, attempts not counted, and not by lease."""
    site.config["CRONJOBS_LEASE"] = 300
    gate = site.folder / "gate"
    if not kind:
        site.enqueue_many("note", [{}] * 30, priority=2)  # So short that more are claimed ahead.
    # Not on its last attempt: such a run is claimed by itself, without neighbors.
    bad = site.enqueue(f"{kind}too_long_and_stubborn", priority=1, max_attempts=2)
    neighbors = site.enqueue_many(f"{kind}wait_for", [{"path": str(gate)}] * 10)
    done = site.run_tick()
    assert done.returncode == 1
    assert "did not end" in done.stderr
    run = site.run(bad)
    assert (run.status, run.error_type, run.attempts) == ("failed", "TimedOut", 1)
    assert "its process was ended" in run.last_error
    assert site.failures(bad) == ["TimedOut"]
    assert site.trace("swallowed")
    assert {(row.status, row.attempts) for row in map(site.run, neighbors)} == {("queued", 0)}
    site.cancel(bad)
    gate.touch()
    assert site.run_tick().returncode == 0
    assert {(row.status, row.attempts) for row in map(site.run, neighbors)} == {("succeeded", 1)}


@on_sqlite
@KINDS
def test_handler_in_c_that_hears_no_timeout_is_ended_with_its_process(
    site: Site, kind: str
) -> None:
    """It lets go of the interpreter's lock, and never comes back to be interrupted."""
    site.config["CRONJOBS_LEASE"] = 300
    bad = site.enqueue(f"{kind}too_long_in_c", priority=1, max_attempts=2)
    neighbors = site.enqueue_many(f"{kind}wait_for", [{"path": "/nowhere"}] * 4)
    done = site.run_tick()
    assert done.returncode == 1
    run = site.run(bad)
    assert (run.status, run.error_type, run.attempts) == ("failed", "TimedOut", 1)
    assert "its process was ended" in run.last_error
    assert {(row.status, row.attempts) for row in map(site.run, neighbors)} == {("queued", 0)}
    blocks = f"task async_too_long_in_c, run {bad}: its handler blocks the event loop"
    assert (blocks in done.stderr) == bool(kind)


@KINDS
def test_handler_that_never_lets_go_of_the_interpreter_is_ended_by_the_watchdog(
    site: Site, kind: str
) -> None:
    run_id = site.enqueue(f"{kind}hold_the_interpreter")
    done = site.run_tick()
    assert done.returncode == 1
    assert re.search(r"Timeout \(0:00:0\d", done.stderr)
    assert "hold_the_interpreter" in done.stderr
    site.wait_for_expiry(run_id)
    assert site.run_tick().returncode == 0
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 2)
    assert site.failures(run_id) == ["WorkerLost"]


@on_sqlite
def test_a_handler_whose_process_is_ended_leaves_what_it_printed(site: Site) -> None:
    run = site.enqueue("speak_stubbornly", max_attempts=1)
    site.run_tick()
    assert site.run(run).error_type == "TimedOut"
    rows = site.query("SELECT attempt, output FROM job_outputs")
    assert [tuple(row) for row in rows] == [(1, "last words\n")]
