"""``flask jobs work --workers``: one row a minute, with the counts of all workers."""

from __future__ import annotations

import os
import signal

import pytest

from tests.process.support import Site, wait_until

pytestmark = pytest.mark.slow

COUNTS = """
    SELECT count(*) AS ticks, count(finished_at) AS finished, sum(succeeded) AS succeeded,
        sum(released) AS released, count(DISTINCT pid) AS pids
    FROM job_ticks
"""


def test_all_counts_are_in_one_row_also_those_of_workers_that_end_last(site: Site) -> None:
    site.config |= {"CRONJOBS_SHUTDOWN_GRACE": 60, "CRONJOBS_LEASE": 60}
    site.run_tick()
    site.query("DELETE FROM job_ticks")
    gate = site.folder / "gate"
    process = site.start("jobs", "work", "--workers", "2", "--queue", "ours")
    wait_until(lambda: site.query(COUNTS)[0].ticks)
    runs = site.enqueue_many("wait_for", [{"path": str(gate)}] * 2, queue="ours")
    begun = {line["pid"]: line["run"] for line in site.wait_for("begun", 2)}
    (first,) = {row.pid for row in site.query("SELECT pid FROM job_ticks")}
    other = begun[next(pid for pid in begun if pid != first)]
    # The first worker's handler is cancelled, so it ends before the other's.
    site.cancel(begun[first])
    process.send(signal.SIGTERM)
    site.wait_for_status(begun[first], "cancelled")
    wait_until(lambda: site.query(COUNTS)[0].finished == 1)
    gate.touch()
    assert process.wait().returncode == 0
    assert site.run(other).status == "succeeded"
    (row,) = site.query("SELECT * FROM job_ticks")
    assert (row.succeeded, row.cancelled, len(runs)) == (1, 1, 2)


def test_a_worker_that_replaces_the_first_goes_on_with_the_minutes(site: Site) -> None:
    process = site.start("jobs", "work", "--workers", "2", "--queue", "ours")
    (row,) = wait_until(lambda: site.query("SELECT pid FROM job_ticks"))
    notes = site.enqueue_many("note", [{}] * 20, queue="ours")
    wait_until(lambda: process.output.count("succeeded  note") == 20)
    os.kill(row.pid, signal.SIGKILL)
    wait_until(lambda: site.query(COUNTS)[0].pids == 2)
    process.send(signal.SIGTERM)
    assert process.wait().returncode == 0
    counts = site.query(COUNTS)[0]
    assert (counts.ticks, counts.finished, counts.succeeded) == (2, 1, len(notes))
