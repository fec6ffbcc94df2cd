"""No handler begins or continues past the end of its lease, whatever the connection does."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs, LeaseLost, current_run
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.claim import Answer, record_and_claim
from flask_cronjobs.core.worker.held_runs import Leases
from flask_cronjobs.core.worker.keeper import Keeper
from flask_cronjobs.core.worker.monitor import RunMonitor
from flask_cronjobs.core.worker.runner import Runner
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import Claim, Outcome
from tests.handlers import AGAIN, Enqueue, holders, read_runs
from tests.marks import on_postgresql

pytestmark = pytest.mark.usefixtures("context")


def test_run_whose_lease_ended_before_it_began_is_given_back(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was frozen between the claim and the handler."""
    calls: list[int] = []
    late = iter([False, True])

    def holds(self: Leases, claim: Claim) -> bool:
        return next(late)

    monkeypatch.setattr(Leases, "holds", holds)
    enqueue(lambda: calls.append(1))
    assert jobs.tick().succeeded == 1
    assert calls == [1]
    assert holders(db) == [("succeeded", 1, None)]


def test_lease_is_counted_from_before_the_claim_was_sent(
    jobs: CronJobs, db: SQLAlchemy, state: State, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    object.__setattr__(state.settings, "lease", 1.0)
    calls: list[int] = []

    def slow(*args: Any, **kwargs: Any) -> Any:
        answer = record_and_claim(*args, **kwargs)
        if answer.claims and not calls:
            calls.append(0)
            time.sleep(1.1)  # The answer comes after the lease has ended.
        return answer

    monkeypatch.setattr("flask_cronjobs.core.worker.claims.record_and_claim", slow)
    enqueue(lambda: calls.append(1))
    jobs.tick(budget=5)
    assert calls == [0, 1]
    assert holders(db) == [("succeeded", 1, None)]


def test_nothing_begins_once_the_keeper_has_died(
    jobs: CronJobs, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper dies when the runner has taken a claim and not begun it."""
    calls: list[int] = []
    claimed, died = threading.Event(), threading.Event()
    perform, receive = Runner.perform, Keeper._receive

    def perform_late(self: Runner, claim: Claim) -> Outcome:
        claimed.set()
        assert died.wait(30)
        return perform(self, claim)

    def die(self: Keeper, outcomes: Sequence[Outcome], answer: Answer, sent: float) -> None:
        receive(self, outcomes, answer, sent)
        assert claimed.wait(30)
        raise ZeroDivisionError("a bug")

    end = RunMonitor.end_without_keeper

    def end_then_tell(self: RunMonitor, error: BaseException) -> None:
        end(self, error)
        died.set()

    monkeypatch.setattr(Runner, "perform", perform_late)
    monkeypatch.setattr(Keeper, "_receive", die)
    monkeypatch.setattr(RunMonitor, "end_without_keeper", end_then_tell)
    enqueue(lambda: calls.append(1))
    with pytest.raises(ZeroDivisionError):
        jobs.tick()
    assert calls == []


def test_handler_at_work_is_interrupted_once_the_keeper_has_died(
    jobs: CronJobs, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, never = threading.Event(), threading.Event()
    ended_by: list[type[BaseException]] = []
    receive = Keeper._receive

    def die(self: Keeper, outcomes: Sequence[Outcome], answer: Answer, sent: float) -> None:
        receive(self, outcomes, answer, sent)
        assert begun.wait(30)
        raise ZeroDivisionError("a bug")

    def it() -> None:
        begun.set()
        try:
            never.wait(30)
        except BaseException as error:
            ended_by.append(type(error))
            raise

    monkeypatch.setattr(Keeper, "_receive", die)
    enqueue(it)
    with pytest.raises(ZeroDivisionError):
        jobs.tick()
    assert ended_by == [LeaseLost]


@pytest.mark.parametrize("by", ["signal", "start itself"])
def test_ctrl_c_while_the_keeper_starts_leaves_no_keeper(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    start = Keeper.start
    keepers: list[Keeper] = []

    def interrupted(self: Keeper) -> None:
        start(self)
        keepers.append(self)
        if by == "start itself":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

    monkeypatch.setattr(Keeper, "start", interrupted)
    enqueue(lambda: None)
    with pytest.raises(KeyboardInterrupt):
        jobs.tick()
    assert not keepers[0].is_alive()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert read_runs(db, JobRun.status) != [("running",)]


class Big:
    """An object that a handler holds."""


@pytest.mark.parametrize("how", ["timeout", "failure", "cancel"])
def test_frames_of_an_ended_handler_are_free_before_the_next_run(
    app: Flask, jobs: CronJobs, how: str, enqueue: Enqueue
) -> None:
    references: list[weakref.ref[Big]] = []
    alive: list[bool] = []

    def hog() -> None:
        big = Big()
        references.append(weakref.ref(big))
        if how == "failure":
            raise ValueError
        if how == "cancel":
            run_id = current_run.id
            threading.Thread(target=lambda: cancel(run_id)).start()
        time.sleep(60)

    def cancel(run_id: int) -> None:
        with app.app_context():
            jobs.cancel(run_id)

    def probe() -> None:
        alive.append(references[0]() is not None)

    enqueue(hog, retry=False, timeout=0.05 if how == "timeout" else 60, priority=1)
    enqueue(probe)
    gc.disable()
    try:
        jobs.tick()
    finally:
        gc.enable()
    assert alive == [False]


@on_postgresql
def test_interrupted_query_is_cancelled_in_the_server(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    def slow() -> None:
        db.session.execute(text("SELECT pg_sleep(30) AS endless"))

    enqueue(slow, timeout=0.3, retry=AGAIN)
    jobs.tick()
    jobs.tick()
    with db.engine.connect() as connection:
        remaining = connection.scalar(
            text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE '%endless%'"
            )
        )
    assert remaining == 0


@on_postgresql
def test_statement_that_hangs_is_ended(db: SQLAlchemy) -> None:
    with Bookkeeping(db.engine, patience=0.0, limit=0.3) as books:
        (pid,) = books.rows(text("SELECT pg_backend_pid()"))[0]
        os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        try:
            with pytest.raises(Exception, match="database cannot be used"):
                books.rows(text("SELECT 1"), repeat=False)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert time.monotonic() - started < 15
        assert books.rows(text("SELECT 1"))[0][0] == 1
    assert "cronjobs-deadlines" in {thread.name for thread in threading.enumerate()}
