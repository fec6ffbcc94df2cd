"""A connection that hangs, or that an interrupted handler leaves behind, harms no other run."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.marks import on_postgresql, on_sqlite
from tests.process.support import Site, wait_until


@on_sqlite
def test_handler_interrupted_in_a_query_leaves_no_lock(site: Site) -> None:
    """The traceback keeps the cursor, and the cursor SQLite's write lock: up to a lease."""
    site.config |= {"CRONJOBS_LEASE": 60}
    run_id = site.enqueue("write_and_query_on")
    began = time.monotonic()
    site.start("jobs", "work")
    site.wait_for_status(run_id, "dead")
    assert time.monotonic() - began < 30
    assert site.run(run_id).error_type == "TimedOut"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the server by /proc")
@on_postgresql
def test_nobody_works_on_a_run_past_its_lease_when_the_connection_hangs(site: Site) -> None:
    lease = 3.0
    site.config |= {"CRONJOBS_LEASE": lease}
    run_id = site.enqueue("work_on", {"seconds": 20})
    first = site.start_tick()
    site.wait_for("at work", 5)
    backends = [
        row.pid
        for row in site.query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND query LIKE '%job_runs%'"
        )
    ]
    assert backends
    # The server itself as well, or the worker would go on with a new connection.
    server = int(Path(f"/proc/{backends[0]}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (server, *backends):
        os.kill(pid, signal.SIGSTOP)
    stopped = time.time()
    try:
        wait_until(lambda: time.time() > stopped + lease + 1)
        at_work = [line["at"] for line in site.trace("at work")]
        assert max(at_work) < stopped + lease + 0.5, "it went on past its lease"
    finally:
        first.send(signal.SIGKILL)  # Before the server can hear from it again.
        for pid in (server, *backends):
            os.kill(pid, signal.SIGCONT)
    site.wait_for_expiry(run_id)
