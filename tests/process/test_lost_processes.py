"""FAULTS: runs that end their process, and processes that wake when their run is another's."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs, Retry, TickReport
from flask_cronjobs.engine.child import HOPELESS
from flask_cronjobs.models import JobFailure
from tests.marks import on_sqlite
from tests.process.support import Site, wait_until


@pytest.mark.parametrize(
    ("database_url", "how", "status"),
    [("sqlite", "0", 0), ("postgresql", "crash", -signal.SIGSEGV)],
    indirect=["database_url"],
)
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
def test_resident_workers_that_runs_end_are_replaced(site: Site) -> None:
    process = site.start("jobs", "work", "--workers", "2")
    gate = site.folder / "gate"
    site.enqueue_many("wait_for", [{"path": str(gate)}] * 2)
    assert len({line["pid"] for line in site.wait_for("begun", 2)}) == 2
    gate.touch()
    # By the status of one that did all its work, and by that of one that would fail again. One
    # after the other: claimed together, the second would come back only when its lease has ended.
    said = "ended before its time"
    site.enqueue("end_process", {"how": "0"})
    wait_until(lambda: process.errors.count(said) == 1)
    site.enqueue("end_process", {"how": str(HOPELESS)})
    wait_until(lambda: process.errors.count(said) == 2)
    again = site.folder / "again"
    site.enqueue_many("wait_for", [{"path": str(again)}] * 2)
    pids = {line["pid"] for line in site.wait_for("begun", 6)}
    assert len(pids) == 4
    again.touch()
    assert process.running
    process.send(signal.SIGTERM)
    assert process.wait().returncode == 0


def test_run_that_kills_its_workers_costs_no_neighbor_its_last_attempt(site: Site) -> None:
    """A run on its last attempt is claimed by itself, also if that is its first attempt.

    Others are claimed together at their first attempt, and each by itself after that.
    """
    site.config["CRONJOBS_LEASE"] = 300
    killer = site.enqueue("kill_self", priority=1, max_attempts=2)
    neighbors = site.enqueue_many("note", [{}] * 20)
    last = site.enqueue_many("note", [{}] * 200, max_attempts=1)
    for _ in range(2):
        site.enqueue_many("note", [{}] * 60, priority=2)  # So short that more are claimed ahead.
        assert site.run_tick().returncode == -signal.SIGKILL
        site.expire()
    site.tick_here()
    assert (site.run(killer).status, site.failures(killer)) == ("dead", ["WorkerLost"] * 2)
    rows = [site.run(run_id) for run_id in neighbors]
    assert {(row.status, row.attempts) for row in rows} <= {("succeeded", 1), ("succeeded", 2)}
    assert {site.run(run_id).status for run_id in last} == {"succeeded"}


@on_sqlite
def test_each_claim_has_a_token_of_its_own_though_one_process_makes_them_all(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Callable[[], TickReport]
) -> None:
    """Else an outcome of an earlier claim would be taken for that of a later one."""

    @jobs.task(retry=Retry(max_attempts=5, base=0))
    def broken() -> None:
        raise RuntimeError("as ever")

    with app.app_context():
        broken.using(commit=True).enqueue()
        assert tick().dead == 1
        tokens = db.session.scalars(select(JobFailure.worker)).all()
    assert len(tokens) == len(set(tokens)) == 5
    assert {token.rpartition(":")[0] for token in tokens} == {
        f"{socket.gethostname()}:{os.getpid()}"
    }
