"""Cancelling what runs, from another process."""

from __future__ import annotations

from tests.process.support import Site


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


def test_handler_that_swallows_its_cancel_is_ended_with_its_process(site: Site) -> None:
    run_id = site.enqueue("stubborn", {"seconds": 300})
    tick = site.start_tick()
    site.wait_for("begun")
    site.cancel(run_id)
    assert tick.wait().returncode == 1
    assert [line["by"] for line in site.trace("swallowed")] == ["Cancelled"]
    assert (site.run(run_id).status, site.failures(run_id)) == ("cancelled", [])


def test_request_in_the_row_is_all_that_a_cancel_needs(site: Site) -> None:
    run_id = site.enqueue("sleep", {"seconds": 300})
    tick = site.start_tick()
    site.wait_for("begun")
    site.query(f"UPDATE job_runs SET cancel_requested_at = '{site.past}'")
    assert tick.wait().returncode == 0
    assert site.run(run_id).status == "cancelled"


def test_cancelled_run_whose_worker_dies_is_not_tried_again(site: Site) -> None:
    run_id = site.enqueue("wait_once")
    tick = site.start_tick()
    site.wait_for("begun")
    tick.end()
    assert site.cancel(run_id) == "running"
    site.expire()
    site.tick_here()
    assert site.run(run_id).status == "cancelled"
    assert site.trace("redone") == []


def test_cancel_of_what_ended_meanwhile_changes_nothing(site: Site) -> None:
    run_id = site.enqueue("note")
    site.query(f"UPDATE job_runs SET cancel_requested_at = '{site.past}'")
    site.tick_here()
    assert site.run(run_id).status == "succeeded"
