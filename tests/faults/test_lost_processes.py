"""FAULTS: a run that ends its process by itself: by `os._exit`, or by a crash in C."""

from __future__ import annotations

import signal

import pytest

from tests.faults.support import Site
from tests.processes.support import wait_until

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize(("how", "status"), [("0", 0), ("crash", -signal.SIGSEGV)])
def test_run_that_ends_its_process_comes_back_by_lease(site: Site, how: str, status: int) -> None:
    """Even if the process leaves the status of one that did all its work."""
    site.config["CRONJOBS_LEASE"] = 300
    run_id = site.enqueue("end_process", {"how": how})
    assert site.run_tick().returncode == status
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("running", 1)
    site.tick_here()
    assert site.run(run_id).status == "running"
    site.expire()
    assert site.tick_here().reclaimed == 1
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 2)
    assert site.failures(run_id) == ["WorkerLost"]


@on_sqlite
def test_forked_worker_that_a_run_ends_is_said_though_its_status_is_that_of_success(
    site: Site,
) -> None:
    run_id = site.enqueue("end_process", {"how": "0"})
    done = site.run_tick("--workers", "2")
    assert done.returncode == 0
    assert done.stderr.count("ended before its time") == 1
    assert site.run(run_id).status == "running"


@on_sqlite
def test_resident_workers_that_runs_end_are_replaced(site: Site) -> None:
    process = site.start("jobs", "work", "--workers", "2")
    site.enqueue_many("end_process", [{"how": "0"}] * 2)
    wait_until(lambda: process.errors.count("ended before its time") == 2)
    later = site.enqueue("note")
    site.wait_for_status(later, "succeeded")
    assert process.running
    process.send(signal.SIGTERM)
    assert process.wait().returncode == 0
