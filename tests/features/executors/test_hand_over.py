"""Runs are handed on to an executor, which begins each of them once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.features.executors import hand_over
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import Claim, handed_to
from tests.features.executors.threads import Threads
from tests.handlers import Enqueue
from tests.kit import lose_answer
from tests.marks import on_postgresql
from tests.rows import statuses


def loaded(db: SQLAlchemy, run: JobRun) -> JobRun:
    db.session.refresh(run)
    return run


def expire(db: SQLAlchemy) -> None:
    past = "2020-01-01 00:00:00.000000"
    past += "+00" if db.engine.dialect.name == "postgresql" else ""
    db.session.execute(
        text("UPDATE job_runs SET locked_until = :past WHERE status = 'running'"), {"past": past}
    )
    db.session.commit()


def test_a_message_that_comes_twice_runs_once(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    """This is normal, so it is not logged."""
    run = far.enqueue()
    jobs.tick()
    for _ in range(3):
        executor.deliver(executor.sent[0])
    assert sorted(map(str, executor.results())) == ["None", "None", "succeeded"]
    assert [log for log in caplog.records if log.levelno >= logging.WARNING] == []
    assert loaded(db, run).attempts == 1


def test_a_lost_message_comes_back_by_lease_and_counts_no_attempt(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    run = far.enqueue()
    jobs.tick()
    jobs.tick()
    assert len(executor.sent) == 1  # The lease has not ended.
    expire(db)
    report = jobs.tick()
    assert (report.reclaimed, report.failed) == (0, 0)
    assert len(executor.sent) == 2
    assert loaded(db, run).attempts == 1
    executor.deliver(executor.sent[0])  # The message comes late, and its token is gone.
    assert executor.results() == [None]
    assert handed_to(loaded(db, run).locked_by) == "celery"
    executor.deliver(executor.sent[1])
    assert executor.results() == [None, "succeeded"]


def test_an_executor_that_is_away_gives_runs_back(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    executor.away = ConnectionRefusedError("no broker")
    far.enqueue_many([{}] * 3)
    jobs.tick()
    assert statuses(db) == ["queued"] * 3
    assert [run.attempts for run in db.session.query(JobRun)] == [0, 0, 0]
    (line,) = [log.getMessage() for log in caplog.records if log.levelno == logging.WARNING]
    assert "Celery cannot be reached, so the queue far waits" in line
    assert "no attempt counted: 3" in line
    assert "no broker" in line
    executor.away = None
    jobs.tick()
    assert len(executor.sent) == 6


@on_postgresql
@pytest.mark.parametrize("part", ["candidate AS", "given.fresh"], ids=["claim", "tokens"])
def test_runs_whose_claim_s_answer_is_lost_go_back_at_once(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy, part: str
) -> None:
    far.enqueue_many([{}] * 2)
    lose_answer(db, part, times=range(1, 9))
    jobs.tick()
    assert executor.sent == []
    assert statuses(db) == ["queued"] * 2
    assert [run.attempts for run in db.session.query(JobRun)] == [0, 0]


@on_postgresql
def test_runs_go_back_though_broker_and_database_are_away_at_once(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    executor.away = ConnectionRefusedError("no broker")
    far.enqueue_many([{}] * 2)
    lose_answer(db, "recorded AS", when="before_cursor_execute")
    jobs.tick()
    assert statuses(db) == ["queued"] * 2


def test_number_of_runs_in_the_broker_is_bounded(
    app: Flask, executor: Threads, db: SQLAlchemy
) -> None:
    app.config["CRONJOBS_HANDED_LIMIT"] = 5
    app.config["CRONJOBS_TICK_BUDGET"] = 0.5
    jobs = CronJobs(app)
    task = jobs.task(queue="far", name="bounded")(lambda: None)
    with app.app_context():
        db.create_all()
        task.using(commit=True).enqueue_many([{}] * 12)
        jobs.tick()
        assert statuses(db).count("running") == len(executor.sent) == 5
        for run in executor.sent[:5]:
            executor.deliver(run)
        executor.results()
        jobs.tick()
        assert statuses(db).count("succeeded") == 5
        assert len(executor.sent) == 10


def test_cancel_ends_a_run_that_waits_in_the_broker(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    run = far.enqueue()
    jobs.tick()
    assert jobs.cancel(run.id).status == "cancelled"
    executor.deliver(executor.sent[0])
    assert executor.results() == [None]
    assert (loaded(db, run).status, run.locked_by) == ("cancelled", None)


@pytest.mark.parametrize("kind", ["task", "queue"])
def test_a_run_that_is_paused_in_the_broker_goes_back(
    kind: str, far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    run = far.enqueue()
    jobs.tick()
    jobs.pause(**{kind: "far"})
    executor.deliver(executor.sent[0])
    assert executor.results() == [None]
    assert (loaded(db, run).status, run.attempts) == ("queued", 0)
    jobs.tick()
    assert len(executor.sent) == 1
    jobs.resume(**{kind: "far"})
    jobs.tick()
    assert len(executor.sent) == 2


def test_a_concurrency_key_is_held_in_the_broker(
    executor: Threads, context: None, jobs: CronJobs
) -> None:
    @jobs.task(queue="far", concurrency=1, concurrency_key="all")
    def one() -> None: ...

    one.using(commit=True).enqueue_many([{}] * 3)
    jobs.tick()
    assert len(executor.sent) == 1
    for number in (2, 3):
        executor.deliver(executor.sent[-1])
        executor.results()
        jobs.tick()
        assert len(executor.sent) == number


def test_a_broker_that_hangs_does_not_hold_a_tick_up_beyond_its_budget(
    far: Any, executor: Threads, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the broker finally answers, the abandoned thread hands nothing more on."""
    answers, counts = threading.Event(), list[int]()

    def send(queue: str, claims: Sequence[Claim]) -> None:
        counts.append(len(claims))
        assert answers.wait(120)

    monkeypatch.setattr(hand_over, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(hand_over, "MAX_SENT_RUNS", 2)
    monkeypatch.setattr(executor, "send", send)
    far.enqueue_many([{}] * 3)
    jobs.tick(budget=0.2)
    (thread,) = [t for t in threading.enumerate() if t.name == "cronjobs-hand-over"]
    answers.set()
    thread.join()
    assert counts == [2]


def test_a_queue_that_is_worked_on_gets_more_than_the_limit_in_one_tick(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    executor.keep = False
    object.__setattr__(state_of().settings, "handed_limit", 5)
    far.enqueue_many([{}] * 50)
    jobs.tick()
    executor.results()
    assert statuses(db) == ["succeeded"] * 50


def test_a_tick_whose_budget_is_used_up_before_its_runs_still_hands_on(
    far: Any, executor: Threads, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host, every tick may be this slow. Otherwise no run would ever begin."""
    slow = "flask_cronjobs.core.tick.sync_definitions"
    monkeypatch.setattr(slow, lambda *args: time.sleep(0.05))
    far.enqueue()
    jobs.tick(budget=0.01)
    assert len(executor.sent) == 1


@pytest.mark.parametrize("queues", [("broken", "far"), ("far", "broken")])
@pytest.mark.parametrize(("max_runs", "number"), [(None, 5), (3, 3)])
def test_a_queue_that_cannot_send_holds_up_no_other(
    queues: Sequence[str],
    max_runs: int | None,
    number: int,
    app: Flask,
    executor: Threads,
    monkeypatch: pytest.MonkeyPatch,
    db: SQLAlchemy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is tried again after a while; its runs do not count as handed over."""
    sent: list[str] = []

    def send(queue: str, claims: Sequence[Claim]) -> None:
        sent.extend([queue] * len(claims))
        if queue == "broken":
            raise PermissionError("no such queue")

    monkeypatch.setattr(hand_over, "MAX_SENT_RUNS", 2)
    monkeypatch.setattr(executor, "send", send)
    app.config["CRONJOBS_EXECUTORS"] = dict.fromkeys(queues, "celery")
    jobs = CronJobs(app)
    with app.app_context():
        db.create_all()
        for queue in queues:
            task = jobs.task(queue=queue, name=queue)(lambda: None)
            task.using(commit=True).enqueue_many([{}] * 5)
        jobs.tick(max_runs=max_runs)
        assert statuses(db).count("running") == sent.count("far") == number
    assert 0 < sent.count("broken") <= 2
    (line,) = [log.getMessage() for log in caplog.records if log.levelno == logging.WARNING]
    assert "so the queue broken waits" in line


def test_a_tick_performs_and_hands_over_at_most_so_many_runs(
    far: Any, executor: Threads, jobs: CronJobs, enqueue: Enqueue
) -> None:
    far.enqueue_many([{}] * 5)
    enqueue(lambda: None, [{}] * 5)
    assert jobs.tick(max_runs=3).succeeded == 3
    assert len(executor.sent) == 3
