"""``flask jobs work``: does what ticks do, stays, and goes when it is asked to."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import on_sqlite
from tests.process import jobs_app
from tests.process.support import ROOT, Site, wait_until


@pytest.mark.parametrize("workers", [1, 2])
def test_resident_workers_take_up_what_comes_and_stop_gracefully(site: Site, workers: int) -> None:
    site.config |= {"CRONJOBS_SHUTDOWN_GRACE": 60, "CRONJOBS_LEASE": 60}
    gate = site.folder / "gate"
    with site.app.app_context():
        jobs_app.jobs.tick()  # So that the definitions are there, and can be due.
    past = "2020-01-01 00:00:00.000000" + ("+00" if site.on_postgresql else "")
    site.query(f"UPDATE job_definitions SET next_run_at = '{past}'")
    ours = "SELECT * FROM job_ticks WHERE finished_at IS NULL"

    process = site.start("jobs", "work", "--workers", str(workers))
    slots = {line["name"] for line in site.wait_for("slot", 5)}
    assert slots == {f"scheduled-{number}" for number in range(5)}
    wait_until(lambda: len(site.query(ours)) == 1)  # One row a minute, however many workers.
    waiting = site.enqueue("note")
    site.wait_for_status(waiting, "succeeded")

    at_work = site.enqueue_many("wait_for", [{"path": str(gate)}] * workers)
    begun = site.wait_for("begun", workers)
    assert len({line["pid"] for line in begun}) == workers
    process.send(signal.SIGTERM)
    gate.touch()
    done = process.wait(20)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("skipped    on_schedule  ") == 5
    assert {site.run(run).status for run in at_work} == {"succeeded"}
    assert f"succeeded  note  run {waiting}" in done.stdout
    after = site.enqueue("note")
    assert site.run(after).status == "queued"


@on_sqlite
def test_sigterm_in_the_pause_before_a_restart_ends_all(site: Site) -> None:
    process = site.start("jobs", "work", "--workers", "2")
    killer = site.enqueue("kill_self", {"attempts": 1})
    wait_until(lambda: "ended before its time" in process.errors)
    process.send(signal.SIGTERM)
    assert process.wait(20).returncode == 0
    assert site.run(killer).attempts == 1


@on_sqlite
def test_missing_tables_end_all_resident_workers(site: Site) -> None:
    empty = {jobs_app.DATABASE: f"sqlite:///{site.folder / 'empty.sqlite'}"}
    done = site.start("jobs", "work", "--workers", "2", env=empty).wait(20)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert "flask --app tests.process.harmful_app jobs admin init" in done.stderr
    assert "Traceback" not in done.stderr


@on_sqlite
@pytest.mark.parametrize("workers", ["1", "2"])
def test_output_to_a_full_disk_harms_no_run(site: Site, workers: str) -> None:
    ids = site.enqueue_many("note", [{}] * 20)
    command = [sys.executable, "-m", "flask", "--app", jobs_app.__name__, "jobs", "tick"]
    with Path("/dev/full").open("wb") as full:
        subprocess.run(
            [*command, "--workers", workers],
            cwd=ROOT,
            env=site.environment,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    assert {(row.status, row.attempts) for row in map(site.run, ids)} == {("succeeded", 1)}
    assert len(site.trace("note")) == 20
    assert site.query("SELECT id FROM job_ticks WHERE finished_at IS NULL") == []
