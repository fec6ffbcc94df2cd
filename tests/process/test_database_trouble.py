"""FAULTS: the server is cut off, restarted, away, full or hanging; poolers; wrong clocks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.marks import on_postgresql, on_sqlite
from tests.postgres import LocalServer
from tests.process.support import Site, wait_until

CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
#: How far one host's clock is ahead and another's is behind, in seconds.
SKEW = 90


def plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(False)


@on_postgresql
def test_connections_cut_again_and_again_lose_and_double_nothing(site: Site) -> None:
    ids = site.enqueue_many("sleep", [{"seconds": 0.05}] * 60)
    site.config["CRONJOBS_LEASE"] = 60
    tick = site.start_tick()
    with psycopg.connect(plain(site.url), autocommit=True) as admin:
        for number in range(1, 9):
            site.wait_for("ended", number * 5)
            admin.execute(CUT)
    assert tick.wait().returncode == 0
    wait_until(site.can_answer)
    assert sorted(line["run"] for line in site.trace("ended")) == sorted(ids)
    assert site.ends(*ids) == {("succeeded", 1)}


@on_postgresql
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_run_survives_a_restart_of_the_server(
    mode: str, site: Site, restartable_postgres: LocalServer
) -> None:
    site.config["CRONJOBS_LEASE"] = 60
    run, tick = site.begin("wait_for", {"path": str(site.gate)})
    restartable_postgres.restart(mode)
    site.gate.touch()
    assert tick.wait().returncode == 0
    wait_until(site.can_answer)
    assert site.ends(run) == {("succeeded", 1)}


@on_postgresql
@pytest.mark.parametrize("task", ["sleep", "stubborn"])
def test_tick_whose_server_stays_away_ends_its_handler_and_itself(
    task: str, site: Site, restartable_postgres: LocalServer
) -> None:
    """After the lease another worker may have the run, so the handler must not continue."""
    run, tick = site.begin(task)
    restartable_postgres.stop()
    result = tick.wait()
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "The database cannot be used: " in result.stderr
    by = {line["by"] for line in site.trace("interrupted", "swallowed")}
    assert by == {"LeaseLost"}
    again = site.run_tick()
    assert (again.returncode, again.stdout, len(again.stderr.splitlines())) == (1, "", 1)
    assert again.stderr.startswith("Error: The database cannot be used: ")
    restartable_postgres.start()
    wait_until(site.can_answer)
    assert site.run(run).status == "running"
    site.expire()
    site.cancel(run)
    site.tick_here()
    assert site.failures(run) == ["WorkerLost"]


@on_postgresql
def test_read_only_server_delays_and_fails_nothing(
    site: Site, restartable_postgres: LocalServer
) -> None:
    """In a failover, the app's server answers for a while, but accepts no writes."""
    run = site.enqueue("note")
    log = restartable_postgres.root / "log"
    with psycopg.connect(plain(restartable_postgres.admin_url), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        admin.execute("SELECT pg_reload_conf()")
        try:
            tick = site.start_tick()
            wait_until(lambda: "in a read-only transaction" in log.read_text())
            assert tick.running
        finally:
            admin.execute("SET default_transaction_read_only = off")
            admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
            admin.execute("SELECT pg_reload_conf()")
    assert tick.wait().returncode == 0
    wait_until(site.can_answer)
    assert site.ends(run) == {("succeeded", 1)}


@on_postgresql
@pytest.mark.pgbouncer
def test_everything_works_by_way_of_pgbouncer_in_transaction_mode(
    site: Site, pgbouncer_url: str
) -> None:
    notes = site.enqueue_many("note", [{}] * 30)
    site.enqueue_many("effect", [{"key": str(n % 3)} for n in range(6)])
    atomic = site.enqueue_many("atomic_entry", [{"label": str(n)} for n in range(5)])
    site.enqueue_many("one_at_a_time", [{"key": "k"}] * 5)
    site.enqueue("fail", {"attempts": 1})
    site.enqueue("kill_self", {"attempts": 1}, priority=-1)
    site.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"connect_args": {"prepare_threshold": None}}
    site.env["JOBS_APP_DATABASE"] = pgbouncer_url
    ticks = [site.start_tick() for _ in range(3)]
    codes = sorted(tick.wait().returncode for tick in ticks)
    assert codes == [-9, 0, 0], [tick.errors for tick in ticks]
    site.expire()
    for _ in range(5):
        assert site.run_tick().returncode == 0
    assert site.statuses() == {"succeeded": 48}
    assert len(site.trace("note")) == len(notes)
    assert sorted(line["key"] for line in site.trace("effect")) == ["0", "1", "2"]
    assert len(site.query("SELECT * FROM entries")) == len(atomic)


# A connection that hangs, or that an interrupted handler leaves behind


@on_sqlite
def test_handler_interrupted_in_a_query_leaves_no_lock(site: Site) -> None:
    """The traceback keeps the cursor, which keeps SQLite's write lock for up to a lease."""
    site.config |= {"CRONJOBS_LEASE": 600}
    run = site.enqueue("write_and_query_on")
    site.start("jobs", "work")
    site.wait_for_status(run, "dead")
    assert site.run(run).error_type == "TimedOut"


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server by /proc")
@on_postgresql
def test_nobody_works_on_a_run_past_its_lease_when_the_connection_hangs(site: Site) -> None:
    lease = 3.0
    site.config |= {"CRONJOBS_LEASE": lease}
    run = site.enqueue("work_on", {"seconds": 20})
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
    # The server stops as well; otherwise the worker would continue with a new connection.
    server = int(Path(f"/proc/{backends[0]}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (server, *backends):
        os.kill(pid, signal.SIGSTOP)
    stopped = time.time()
    try:
        wait_until(lambda: time.time() > stopped + lease + 1)
        at_work = [line["at"] for line in site.trace("at work")]
        assert max(at_work) < stopped + lease + 0.5, "it went on past its lease"
    finally:
        first.send(signal.SIGKILL)  # Python handles the signal before the server can answer.
        for pid in (server, *backends):
            os.kill(pid, signal.SIGCONT)
    site.wait_for_expiry(run)


# Hosts with wrong clocks. SQLite's clock is that of the process


@pytest.fixture(scope="session")
def libfaketime() -> str:
    """Return the library that fakes a process's clock, installed with apt-get if possible."""
    path = _library()
    if path is None and os.geteuid() == 0:
        for command in (["update"], ["install", "--yes", "libfaketime"]):
            subprocess.run(["apt-get", "--quiet", *command], capture_output=True)
        path = _library()
    if path is None:
        pytest.skip("libfaketime is not installed, and cannot be")
    return path


def _library() -> str | None:
    return next(map(str, Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1")), None)


@pytest.fixture
def hosts(libfaketime: str) -> list[dict[str, str]]:
    """The environments of two hosts: the clock of one is ahead, and the other's is behind."""
    faked = {"LD_PRELOAD": libfaketime, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return [{**faked, "FAKETIME": f"{skew:+d}s"} for skew in (SKEW, -SKEW)]


@on_postgresql
def test_nothing_is_early_late_or_twice_where_hosts_clocks_are_wrong_and_they_are_warned(
    site: Site, hosts: list[dict[str, str]]
) -> None:
    """All due times here are closer to now than the error of the clocks."""
    ahead, _ = hosts
    held_run = site.enqueue("note")
    site.query(
        "UPDATE job_runs SET status = 'running', attempts = 1, locked_by = 'other:1:token',"
        " locked_until = clock_timestamp() + interval '75 seconds'"
    )
    early = site.enqueue("note")
    site.query(
        "UPDATE job_runs SET run_at = clock_timestamp() + interval '75 seconds' WHERE id = :id",
        id=early,
    )
    later = site.enqueue("later", {"delay": 75})
    assert site.run_tick(env=ahead).returncode == 0
    assert (site.run(held_run).status, site.run(held_run).locked_by) == ("running", "other:1:token")
    assert (site.run(early).status, site.run(later).status) == ("queued", "failed")
    (delay,) = site.query(
        "SELECT extract(epoch FROM run_at - clock_timestamp()) AS left FROM job_runs"
        " WHERE status = 'failed'"
    )
    assert 0 < delay.left <= 75
    soon = "SELECT id FROM job_definitions WHERE next_run_at > clock_timestamp() + interval '1 min'"
    assert site.query(soon) == []

    site.make_slots_due()
    site.enqueue_many("note", [{}] * 5)
    ticks = [site.start_tick(env=host) for host in hosts]
    assert [tick.wait().returncode for tick in ticks] == [0, 0]
    assert site.query("SELECT id FROM job_runs WHERE scheduled_for > clock_timestamp()") == []
    assert site.query(soon) == []
    counts = Counter((line["name"], line["slot"]) for line in site.trace("slot"))
    assert len({name for name, _ in counts}) == 5
    assert set(counts.values()) == {1}
    assert len(site.trace("note")) == 5
    for tick, way in zip(ticks, ("ahead of", "behind"), strict=True):
        assert re.search(rf"This host's clock is [89]\d s {way} the database's", tick.errors)
    rows = site.query("SELECT clock_offset FROM job_ticks")
    assert {round(row.clock_offset, -1) for row in rows} == {SKEW, -SKEW}
