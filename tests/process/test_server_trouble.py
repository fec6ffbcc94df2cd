"""FAULTS: connections cut, the server restarted, away or full, and PgBouncer before it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.postgres import LocalServer
from tests.process import support
from tests.process.support import Site, wait_until

CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
def site(postgresql_url: str, tmp_path: Path) -> Iterator[Site]:
    """A site on PostgreSQL."""
    with support.site(postgresql_url, tmp_path) as made:
        yield made


def plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(False)


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
    assert site.statuses() == {"succeeded": 60}
    assert sorted(line["run"] for line in site.trace("ended")) == sorted(ids)
    assert {row.attempts for row in site.query("SELECT attempts FROM job_runs")} == {1}


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_run_survives_a_restart_of_the_server(
    mode: str, site: Site, restartable_postgres: LocalServer
) -> None:
    gate = site.folder / "gate"
    site.config["CRONJOBS_LEASE"] = 60
    run_id = site.enqueue("ended_or_waits", {"path": str(gate)})
    tick = site.start_tick()
    site.wait_for("begun")
    restartable_postgres.restart(mode)
    gate.touch()
    assert tick.wait().returncode == 0
    wait_until(site.can_answer)
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 1)


@pytest.mark.parametrize("task", ["sleep", "stubborn"])
def test_tick_whose_server_stays_away_ends_its_handler_and_itself(
    task: str, site: Site, restartable_postgres: LocalServer
) -> None:
    """Beyond the lease another may have the run, so the handler must not go on."""
    run_id = site.enqueue(task, {"seconds": 300})
    tick = site.start_tick()
    site.wait_for("begun")
    restartable_postgres.stop()
    done = tick.wait()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "The database cannot be used: " in done.stderr
    by = {line["by"] for line in site.trace("interrupted", "swallowed")}
    assert by == {"LeaseLost"}
    restartable_postgres.start()
    wait_until(site.can_answer)
    assert site.run(run_id).status == "running"
    site.expire()
    site.cancel(run_id)
    site.tick_here()
    assert site.failures(run_id) == ["WorkerLost"]


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
    rows = site.query("SELECT status FROM job_runs WHERE definition_id IS NULL")
    assert [row.status for row in rows] == ["succeeded"] * 48
    assert len(site.trace("note")) == len(notes)
    assert sorted(line["key"] for line in site.trace("effect")) == ["0", "1", "2"]
    assert len(site.query("SELECT * FROM entries")) == len(atomic)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server by /proc")
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
