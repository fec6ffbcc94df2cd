"""A worker of an executor whose code is older than that of the ticks does not stop its queue."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.engine import hand_over
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.health import read_verdict
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobRun
from tests.executors.threads import Threads
from tests.rows import ago

LIMIT = 5
REFUSED = 12


@pytest.fixture
def old_app(app: Flask) -> Iterator[Flask]:
    """The same app before the task ``far`` was added."""
    old, db = Flask("old"), SQLAlchemy()
    old.config.update(SQLALCHEMY_DATABASE_URI=app.config["SQLALCHEMY_DATABASE_URI"])
    db.init_app(old)
    jobs = CronJobs(old)
    jobs.task(queue="far", name="known")(lambda: None)
    yield old
    with old.app_context():
        db.engine.dispose()


@pytest.fixture
def queue(
    app: Flask, executor: Threads, old_app: Flask, context: None, jobs: CronJobs, far: Any
) -> Threads:
    """The executor, whose workers have old code, of a queue that begins with runs of a new task."""
    known = jobs.task(queue="far", name="known")(lambda: None)
    far.enqueue_many([{}] * REFUSED)
    known.using(commit=True).enqueue_many([{}] * LIMIT)
    executor.app = old_app
    return executor


@pytest.fixture(autouse=True)
def limits(app: Flask) -> None:
    app.config.update(CRONJOBS_HANDED_LIMIT=LIMIT, CRONJOBS_TICK_BUDGET=1)


def tick_and_deliver(executor: Threads, jobs: CronJobs, times: int) -> None:
    for _ in range(times):
        before = len(executor.sent)
        jobs.tick()
        for run in executor.sent[before:]:
            executor.deliver(run)
        executor.results()


def by_task(db: SQLAlchemy) -> dict[str, Counter[str]]:
    db.session.rollback()
    found: dict[str, Counter[str]] = {"far": Counter(), "known": Counter()}
    for run in db.session.query(JobRun):
        found[run.job_type][run.status] += 1
        assert run.status == "succeeded" or run.attempts == 0
    return found


def test_other_runs_of_the_queue_go_on_and_one_run_of_the_refused_task_is_tried_at_a_time(
    queue: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    tick_and_deliver(queue, jobs, 3)
    assert by_task(db) == {"far": {"queued": REFUSED}, "known": {"succeeded": LIMIT}}
    assert Counter(run.task for run in queue.sent) == {"far": LIMIT + 2, "known": LIMIT}


def test_within_a_tick_it_is_tried_after_a_growing_delay(
    queue: Threads, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "FIRST_PAUSE", 0.1)
    queue.keep = False
    jobs.tick(budget=2)
    queue.results()
    tried = Counter(run.task for run in queue.sent)["far"]
    # At most after 0, 0.1, 0.3, 0.7 and 1.5 s.
    assert tried <= REFUSED + 5


def test_its_runs_are_executed_once_the_workers_have_its_code(
    queue: Threads, app: Flask, jobs: CronJobs, db: SQLAlchemy
) -> None:
    tick_and_deliver(queue, jobs, 2)
    queue.app, queue.keep = app, False
    jobs.tick(budget=60)
    queue.results()
    assert by_task(db)["far"] == {"succeeded": REFUSED}


def test_task_and_worker_are_named(
    queue: Threads, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    tick_and_deliver(queue, jobs, 1)
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert any("The task far" in line and "The worker " in line for line in lines)
    caplog.clear()
    queue.keep = False
    jobs.tick()
    assert any("The queue far holds runs of the task far back" in line for line in caplog.messages)


def test_doctor_and_verdict_tell_of_it(
    queue: Threads, jobs: CronJobs, db: SQLAlchemy, state: State
) -> None:
    assert not [each for each in examine(state) if each.id == "refused-task"]
    tick_and_deliver(queue, jobs, 1)
    (finding,) = [each for each in examine(state) if each.id == "refused-task"]
    assert finding.level == "error"
    assert "'far'" in finding.what
    assert "The worker " in finding.what
    long_ago = ago(state.settings.health_overdue + 60)
    db.session.query(JobRun).filter_by(job_type="far").update({"run_at": long_ago})
    db.session.commit()
    assert read_verdict(state).word == "overdue"
