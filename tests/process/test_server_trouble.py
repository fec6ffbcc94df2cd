"""FAULTS: connections cut, the server restarted, away or full, and PgBouncer before it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.postgres import LocalServer, user_of_servers
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


@pytest.mark.slow
def test_tick_without_a_server_says_so_in_one_line(
    site: Site, restartable_postgres: LocalServer
) -> None:
    run_id = site.enqueue("note")
    restartable_postgres.stop()
    done = site.run_tick()
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Error: The database cannot be used: ")
    restartable_postgres.start()
    wait_until(site.can_answer)
    assert site.run_tick().returncode == 0
    assert site.run(run_id).status == "succeeded"


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


def test_read_only_server_delays_and_fails_nothing(
    site: Site, restartable_postgres: LocalServer
) -> None:
    """A failover seen from the app: the server answers, and takes no writes for a while."""
    run_id = site.enqueue("note")
    with psycopg.connect(plain(restartable_postgres.admin_url), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        admin.execute("SELECT pg_reload_conf()")
        try:
            tick = site.start_tick()
            wait_until(lambda: said_read_only(restartable_postgres))
            assert tick.running
        finally:
            admin.execute("SET default_transaction_read_only = off")
            admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
            admin.execute("SELECT pg_reload_conf()")
    assert tick.wait().returncode == 0
    wait_until(site.can_answer)
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 1)


def said_read_only(server: LocalServer) -> bool:
    return "in a read-only transaction" in (server.root / "log").read_text()


def test_full_disk_ends_the_tick_with_one_line_and_loses_nothing(
    site: Site, restartable_postgres: LocalServer
) -> None:
    run_id = site.enqueue("note")
    folder = restartable_postgres.root / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"No small file system can be mounted: {mounted.stderr!r}")
    owner = user_of_servers()
    try:
        os.chown(folder, owner.get("user", os.getuid()), owner.get("group", os.getgid()))
        fill_tablespace(site, folder)
        done = site.run_tick()
        assert done.returncode == 1
        assert done.stderr.splitlines() == [done.stderr.strip()]
        assert "No space left on device" in done.stderr or "could not extend" in done.stderr
        site.query("DROP TABLE filler")
        assert site.run_tick().returncode == 0
        assert site.run(run_id).status == "succeeded"
    finally:
        with psycopg.connect(plain(site.url), autocommit=True) as admin:
            admin.execute("DROP TABLE IF EXISTS filler, job_ticks")
            admin.execute("DROP TABLESPACE IF EXISTS small")
        subprocess.run(["umount", str(folder)], check=True)


def fill_tablespace(site: Site, folder: Path) -> None:
    """Put the ticks on a small disk, and fill it to the last page."""
    fill = "INSERT INTO filler SELECT repeat('x', 500) FROM generate_series(1, 90)"
    with psycopg.connect(plain(site.url), autocommit=True) as admin:
        admin.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        admin.execute("ALTER TABLE job_ticks SET TABLESPACE small")
        admin.execute("CREATE TABLE filler (text text) TABLESPACE small")
        with suppress(psycopg.errors.DiskFull):
            while True:
                admin.execute(fill)


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
