"""The runs with a rate that a worker claims, and the starts that these claims take."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.worker.claims import WorkerClaims
from flask_cronjobs.core.worker.outcomes import released
from flask_cronjobs.core.worker.work_options import WorkOptions
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.features.rates import rates, worker_rates
from tests.kit import outcome
from tests.marks import on_postgresql
from tests.rows import ago

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def books(state: State) -> Iterator[Bookkeeping]:
    with Bookkeeping(state.engine, patience=0) as books:
        yield books


@pytest.mark.parametrize("begun", [False, True])
def test_start_that_was_taken_is_never_given_back(
    jobs: CronJobs, state: State, books: Bookkeeping, begun: bool
) -> None:
    jobs.task(name="limited", rate="1/hour")(lambda: None)
    for _ in range(2):
        jobs.enqueue("limited", commit=True)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    (first,) = claims.claim([], 2, idle=True).claims
    ended = outcome(first, "succeeded") if begun else released(first)
    assert claims.record([ended]).recorded == {first.id}
    assert claims.claim([], 2, idle=True).claims == ()


def test_run_at_a_rate_is_claimed_only_when_it_can_begin_at_once(
    jobs: CronJobs, state: State, books: Bookkeeping
) -> None:
    """It is never claimed ahead, while another run is running."""
    jobs.task(name="limited", rate="1/hour", burst=9)(lambda: None)
    jobs.task(name="it")(lambda: None)
    limited = jobs.enqueue("limited", commit=True).id
    unlimited = [jobs.enqueue("it", commit=True).id for _ in range(2)]
    jobs.enqueue("limited", commit=True)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    assert [claim.id for claim in claims.claim([], 9, idle=True).claims] == [limited]
    assert [claim.id for claim in claims.claim([], 9, idle=False).claims] == unlimited
    assert claims.claim([], 9, idle=False).claims == ()
    assert len(claims.claim([], 9, idle=True).claims) == 1


def test_late_outcome_holds_no_rate_key_back(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, state: State, books: Bookkeeping
) -> None:
    """Its worker was frozen past its lease, and another one has done the run."""
    jobs.task(name="limited", rate="100/s")(lambda: None)
    run = jobs.enqueue("limited", commit=True)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    (late,) = claims.claim([], 1, idle=True).claims
    db.session.execute(text("UPDATE job_runs SET locked_by = 'other:2:token'"))
    db.session.commit()
    failed = outcome(late, "failed")._replace(holds_rate=True, delay=3600.0)
    assert claims.record([failed]).recorded == set()
    tat = text("SELECT count(*) FROM job_rates WHERE tat > :tat").bindparams(tat=ago(seconds=-60))
    assert db.session.scalars(tat).one() == 0
    db.session.execute(text("UPDATE job_runs SET locked_by = :token"), {"token": late.token})
    db.session.commit()
    assert claims.record([failed]).recorded == {run.id}
    assert db.session.scalars(tat).one() == 1


def test_task_that_is_full_keeps_no_other_of_its_rate_key_from_starts(
    jobs: CronJobs, state: State, books: Bookkeeping
) -> None:
    for name in ("export", "ask"):
        jobs.task(name=name, rate="1/s", rate_key="key")(lambda: None)
    for name in ("export", "ask"):
        jobs.enqueue(name, commit=True)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    claims.open_starts(True, ("export", "ask"))
    (claim,) = claims.claim([], 1, idle=True, tasks=("ask",)).claims
    assert claim.job_type == "ask"


@on_postgresql
def test_worker_rests_behind_a_locked_row_of_a_rate(
    db: SQLAlchemy, jobs: CronJobs, state: State, books: Bookkeeping,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It takes runs of other keys meanwhile."""
    now = [1000.0]
    monkeypatch.setattr(worker_rates, "time", SimpleNamespace(monotonic=lambda: now[0]))
    spent: list[object] = []
    spend = rates.spend

    def spend_and_note(*arguments: Any) -> Any:
        spent.append(arguments)
        return spend(*arguments)

    monkeypatch.setattr(rates, "spend", spend_and_note)
    jobs.task(name="limited", rate="100/s", burst=3, rate_key="{key}")(lambda key: None)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    jobs.enqueue("limited", {"key": "a"}, commit=True)
    (first,) = claims.claim([], 1, idle=True).claims
    claims.record([outcome(first, "succeeded")])
    for _ in range(9):
        jobs.enqueue("limited", {"key": "a"}, commit=True)
    jobs.enqueue("limited", {"key": "b"}, commit=True)
    url = db.engine.url.set(drivername="postgresql").render_as_string(False)
    spent.clear()
    with psycopg.connect(url) as locker:
        locker.execute("SELECT 1 FROM job_rates FOR UPDATE")
        batches = [claims.claim([], 1, idle=True).claims for _ in range(20)]
        assert [claim.concurrency_key for batch in batches for claim in batch] == [None]
        assert len(spent) <= 4
        assert 0 < claims.next_start - now[0] <= 1
        now[0] += 2
        for _ in range(20):
            claims.claim([], 1, idle=True)
        assert len(spent) <= 5, "one run shows that it is locked still"
    now[0] += 2
    assert claims.claim([], 1, idle=True).claims
