"""FAULTS: runs that end their process, and processes that wake when their run is another's."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text

from flask_cronjobs import CronJobs, Retry, TickReport
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.engine.processes import HOPELESS
from flask_cronjobs.jobs.runs import leases
from flask_cronjobs.jobs.runs.leases import Expiry
from flask_cronjobs.models import JobFailure, JobRun
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


@on_sqlite
def test_run_that_kills_its_workers_takes_its_neighbors_along_once_at_most(site: Site) -> None:
    """They are claimed together at their first attempt, and each by itself after that."""
    site.config["CRONJOBS_LEASE"] = 300
    killer = site.enqueue("kill_self", priority=1, max_attempts=2)
    neighbors = site.enqueue_many("note", [{}] * 20)
    for _ in range(2):
        site.enqueue_many("note", [{}] * 30, priority=2)  # So short that more are claimed ahead.
        assert site.run_tick().returncode == -signal.SIGKILL
        site.expire()
    site.tick_here()
    assert (site.run(killer).status, site.failures(killer)) == ("dead", ["WorkerLost"] * 2)
    ends = {(site.run(run_id).status, site.run(run_id).attempts) for run_id in neighbors}
    assert ends <= {("succeeded", 1), ("succeeded", 2)}


def test_run_that_kills_its_workers_costs_no_neighbor_its_last_attempt(site: Site) -> None:
    """A run on its last attempt is claimed by itself, also if that is its first attempt."""
    site.config["CRONJOBS_LEASE"] = 300
    killer = site.enqueue("kill_self", priority=1, max_attempts=2)
    neighbors = site.enqueue_many("note", [{}] * 200, max_attempts=1)
    for _ in range(2):
        site.enqueue_many("note", [{}] * 60, priority=2)  # So short that more are claimed ahead.
        assert site.run_tick().returncode == -signal.SIGKILL
        site.expire()
    site.tick_here()
    assert (site.run(killer).status, site.failures(killer)) == ("dead", ["WorkerLost"] * 2)
    assert {site.run(run_id).status for run_id in neighbors} == {"succeeded"}


@on_sqlite
def test_process_that_wakes_while_another_does_its_run_is_told_and_changes_nothing(
    site: Site,
) -> None:
    site.config["CRONJOBS_LEASE"] = 300
    run_id = site.enqueue("sleep", {"seconds": 300})
    zombie = site.start_tick()
    site.wait_for("begun")
    zombie.send(signal.SIGSTOP)
    site.expire()
    other = site.start_tick()
    site.wait_for("begun", 2)
    before = site.run(run_id)
    assert (before.status, before.attempts) == ("running", 2)
    assert f":{other.pid}:" in before.locked_by
    zombie.send(signal.SIGCONT)
    assert zombie.wait().returncode == 0
    assert "lease lost: task sleep" in zombie.errors
    (interrupted,) = site.trace("interrupted")
    assert (interrupted["pid"], interrupted["by"]) == (zombie.pid, "LeaseLost")
    assert site.run(run_id) == before
    assert site.failures(run_id) == ["WorkerLost"]
    other.send(signal.SIGTERM)
    assert other.wait().returncode == 0
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("failed", 1)


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


def test_worker_that_beats_while_its_run_is_taken_back_keeps_it(
    app: Flask,
    db: SQLAlchemy,
    jobs: CronJobs,
    tick: Callable[[], TickReport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was slow, not dead: its heartbeat comes between the look at the leases and the write."""
    look = leases.look_for_expired
    jobs.task(name="it")(lambda: None)
    lease = "UPDATE job_runs SET locked_until = :until"

    looks: list[int] = []

    def slow_look(books: Bookkeeping, *args: int) -> Expiry:
        found = look(books, *args)
        looks.append(len(found.leases))
        if db.engine.dialect.name == "sqlite" and len(looks) == 1:
            return found  # On SQLite there is a second look before the write.
        assert len(found.leases) == 1
        db.session.execute(text(lease), {"until": "2999-01-01 00:00:00.000000"})
        db.session.commit()
        return found

    with app.app_context():
        jobs.get("it").using(commit=True).enqueue()
        db.session.execute(
            text(
                "UPDATE job_runs SET status = 'running', attempts = 1, locked_by = 'slow:1:token',"
                " locked_until = '2020-01-01 00:00:00.000000'"
            )
        )
        db.session.commit()
        monkeypatch.setattr(leases, "look_for_expired", slow_look)
        assert tick().reclaimed == 0
        run = db.session.scalars(select(JobRun)).one()
        assert (run.status, run.attempts, run.locked_by) == ("running", 1, "slow:1:token")
        assert db.session.scalars(select(JobFailure)).all() == []
