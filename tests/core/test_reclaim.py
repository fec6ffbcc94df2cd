"""The runs of a lost worker are reclaimed and reported, whatever the connection does."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs, DatabaseTrouble, LeaseLost, Retry
from flask_cronjobs.core import gate, leases
from flask_cronjobs.core import reclaim as reclaim_module
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.leases import renew
from flask_cronjobs.core.reclaim import reclaim
from flask_cronjobs.core.tick import begin_tick, housekeeping
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.log import worker_name
from flask_cronjobs.models import JobFailure, JobRun
from flask_cronjobs.signals import run_dead, run_failed, unheard
from flask_cronjobs.types import Claim
from tests.kit import lose_answer, received
from tests.marks import on_postgresql, on_sqlite
from tests.rows import Rows, ago


def give_up(attempt: int, error: BaseException) -> float | None:
    """A policy that retries nothing."""
    return None


@pytest.mark.parametrize("policy", [Retry(on=OSError), Retry(not_on=Exception), give_up])
def test_policy_is_not_asked_about_a_lost_worker(
    jobs: CronJobs, context: None, rows: Rows, policy: Any
) -> None:
    """The policy is about the handler's own errors; the default delay applies here."""
    jobs.task(name="it", retry=policy)(lambda: None)
    lost_columns: dict[str, Any] = {"job_type": "it", "locked_until": ago(5), "max_attempts": 3}
    ids = [rows.run("running", attempts=attempts, **lost_columns) for attempts in (1, 3)]
    assert jobs.tick().reclaimed == 2
    assert [rows.get(id_).status for id_ in ids] == ["failed", "dead"]


@pytest.mark.parametrize("policy", [Retry(on=OSError), Retry(not_on=BaseException), give_up])
def test_policy_is_not_asked_about_a_lost_lease(
    jobs: CronJobs, context: None, rows: Rows, policy: Any
) -> None:
    """A lease that ends is no error of the handler, whether its worker lives or has died."""

    def lose_lease() -> None:
        raise LeaseLost("the lease ended")

    jobs.task(name="it", retry=policy)(lose_lease)
    ids = [rows.run(job_type="it", attempts=attempts, max_attempts=3) for attempts in (0, 2)]
    assert (jobs.tick().failed, [rows.get(id_).status for id_ in ids]) == (1, ["failed", "dead"])


@pytest.mark.parametrize(
    "values",
    [
        {"status": "running", "locked_until": ago(5)},
        {"status": "running", "locked_until": ago(5), "locked_by": "handed:celery:x:host:1:y"},
        {"status": "failed", "failed_at": ago(5), "attempts": 3, "max_attempts": 3},
    ],
    ids=["lost", "handed over", "no attempt is left"],
)
def test_workers_are_woken_when_runs_are_given_back_or_ended(
    state: State, context: None, rows: Rows, values: dict[str, Any]
) -> None:
    """Runs of the same key may have waited for the one that was ended."""
    rows.run(**values)
    with Bookkeeping(state.engine) as books:
        row = begin_tick(state, books).row
        first, *others = housekeeping(state, books, row, unheard, Counter(), list.copy)
    assert first
    assert not any(others)


@on_postgresql
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_reclaimed_run_is_reported_though_the_connection_broke(
    app: Flask,
    jobs: CronJobs,
    db: SQLAlchemy,
    state: State,
    caplog: pytest.LogCaptureFixture,
    committed: bool,
) -> None:
    jobs.task(name="it")(lambda: None)
    lost_id = Rows(state.engine).run("running", job_type="it", locked_until=ago(5), max_attempts=3)
    moment = "after_cursor_execute" if committed else "before_cursor_execute"
    with app.app_context(), received(run_failed) as outcomes:
        statements = lose_answer(db, "job_failures", when=moment)
        report = jobs.tick()
    assert statements
    assert (report.reclaimed, [outcome.id for outcome in outcomes]) == (1, [lost_id])
    lines = [r for r in caplog.records if getattr(r, "cronjobs_run_id", None) == lost_id]
    assert [(r.levelno, vars(r)["cronjobs_event"]) for r in lines] == [(logging.WARNING, "failed")]


@on_sqlite
def test_living_worker_that_could_not_renew_under_a_lock_keeps_its_run(
    app: Flask, db: SQLAlchemy, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import holds SQLite's lock for longer than the lease; a tick waits for it as well."""
    rows = Rows(state.engine)
    alive, dead = (
        rows.run("running", job_type="it", locked_until=ago(5), locked_by=f"host:{pid}:token")
        for pid in (1, 2)
    )
    holder = sqlite3.connect(state.engine.url.database or "", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    counts: list[int] = []
    checked = threading.Event()
    expired_leases = leases.look_for_expired

    def look(books: Bookkeeping) -> list[Claim]:
        expired = expired_leases(books)
        checked.set()
        return expired

    def renew_meanwhile(seconds: float) -> None:
        with Bookkeeping(state.engine, patience=0) as books:
            claim = Claim(alive, "host:1:token", "it", {}, 1, 3, ago(5))
            assert renew(books, [claim], 60).held == {alive}

    monkeypatch.setattr(leases, "look_for_expired", look)
    monkeypatch.setattr(
        reclaim_module, "time", SimpleNamespace(**{**vars(time), "sleep": renew_meanwhile})
    )

    def tick() -> None:
        with Bookkeeping(state.engine) as books:
            counts.append(sum(map(len, reclaim(state, books, unheard))))

    thread = threading.Thread(target=tick)
    thread.start()
    assert checked.wait(60)
    holder.execute("COMMIT")
    holder.close()
    thread.join()
    assert counts == [1]
    assert (rows.get(alive).status, rows.get(dead).status) == ("running", "failed")


def test_worker_whose_heartbeat_comes_during_a_reclaim_keeps_its_run(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was slow, not dead: its heartbeat comes between reading the leases and the write."""
    jobs.task(name="it")(lambda: None)
    run_id = rows.run("running", job_type="it", locked_until=ago(5), locked_by="slow:1:token")
    look = leases.look_for_expired
    counts: list[int] = []

    def look_and_renew(books: Bookkeeping) -> list[Claim]:
        expired = look(books)
        counts.append(len(expired))
        if len(counts) == (
            2 if books.dialect.one_writer else 1
        ):  # The second read on SQLite is the last.
            db.session.execute(update(JobRun).values(locked_until=ago(-600)))
            db.session.commit()
        return expired

    monkeypatch.setattr(leases, "look_for_expired", look_and_renew)
    with app.app_context():
        assert jobs.tick().reclaimed == 0
        run = rows.get(run_id)
        assert (run.status, run.attempts, run.locked_by) == ("running", 1, "slow:1:token")
        assert db.session.scalars(select(JobFailure)).all() == []
    assert counts[0] == 1


def test_each_claim_has_a_token_of_its_own_though_one_process_makes_them_all(
    app: Flask, jobs: CronJobs, db: SQLAlchemy
) -> None:
    """Otherwise an outcome of an earlier claim would be taken for that of a later one."""

    @jobs.task(retry=Retry(max_attempts=5, base=0))
    def broken() -> None:
        raise RuntimeError("as ever")

    with app.app_context():
        broken.using(commit=True).enqueue()
        assert jobs.tick().dead == 1
        tokens = db.session.scalars(select(JobFailure.worker)).all()
    assert len(tokens) == len(set(tokens)) == 5
    assert {token.rpartition(":")[0] for token in tokens} == {worker_name()}


@pytest.mark.parametrize(
    "values",
    [
        {"status": "running", "locked_until": ago(5), "attempts": 1, "max_attempts": 1},
        {"status": "failed", "failed_at": ago(5), "attempts": 3, "max_attempts": 3},
    ],
    ids=["its worker died", "no attempt is left"],
)
def test_death_is_reported_though_the_next_runs_of_its_key_cannot_be_opened(
    jobs: CronJobs,
    context: None,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
) -> None:
    """Nothing reports it later, since its row has ended."""
    jobs.task(name="it", concurrency=1)(lambda: None)
    run_id = rows.run(job_type="it", **values)

    def fail(*_: object) -> int:
        raise DatabaseTrouble("the connection broke", transient=True)

    with monkeypatch.context() as patched, received(run_dead) as deaths:
        patched.setattr(gate, "open_behind", fail)
        jobs.tick()
    assert rows.get(run_id).status == "dead"
    assert len(deaths) == 1
