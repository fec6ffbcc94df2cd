"""A Celery worker with older code than the ticks does not stop its queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.features.executors.tokens import REFUSED_SECONDS
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.models import JobRun
from tests.features.executors.threads import Threads
from tests.rows import ago, statuses


@pytest.fixture
def old_app(app: Flask) -> Iterator[Flask]:
    """The app as it was before the task ``far`` was added."""
    old, db = Flask("old"), SQLAlchemy()
    old.config.update(SQLALCHEMY_DATABASE_URI=app.config["SQLALCHEMY_DATABASE_URI"])
    db.init_app(old)
    CronJobs(old).task(queue="far", name="known")(lambda: None)
    yield old
    with old.app_context():
        db.engine.dispose()


def refuse(executor: Threads, old_app: Flask, jobs: CronJobs) -> None:
    """Tick, and let workers with old code begin what was handed on."""
    executor.app = old_app
    jobs.tick()
    for claim in executor.sent:
        executor.deliver(claim)
    executor.results()


def test_refused_runs_are_due_in_a_minute_and_the_others_of_the_queue_go_on(
    far: Any, executor: Threads, app: Flask, old_app: Flask, jobs: CronJobs, db: SQLAlchemy,
) -> None:  # fmt: skip
    far.enqueue_many([{}] * 2)
    jobs.task(queue="far", name="known")(lambda: None).using(commit=True).enqueue()
    refuse(executor, old_app, jobs)
    assert sorted(statuses(db)) == ["queued", "queued", "succeeded"]
    for run in db.session.query(JobRun).filter_by(job_type="far"):
        assert run.attempts == 0
        assert 0 < (run.run_at - ago()).total_seconds() <= REFUSED_SECONDS
    jobs.tick()
    assert len(executor.sent) == 3, "one of them was handed on before its minute was over"
    executor.app, executor.keep = app, False
    db.session.query(JobRun).filter_by(status="queued").update({"run_at": ago(1)})
    db.session.commit()
    jobs.tick()
    executor.results()
    assert statuses(db) == ["succeeded"] * 3


def test_log_and_doctor_name_task_and_worker(
    far: Any,
    executor: Threads,
    old_app: Flask,
    jobs: CronJobs,
    state: State,
    caplog: pytest.LogCaptureFixture,
) -> None:
    far.enqueue()
    assert not [finding for finding in examine(state) if finding.id == "refused-task"]
    refuse(executor, old_app, jobs)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("The task far" in line and "The worker " in line for line in lines)
    (finding,) = [finding for finding in examine(state) if finding.id == "refused-task"]
    assert finding.level == "error"
    assert "'far'" in finding.what
    assert "The worker " in finding.what


def test_a_late_message_of_a_refused_run_puts_nothing_off(
    far: Any, executor: Threads, old_app: Flask, jobs: CronJobs, db: SQLAlchemy
) -> None:
    """Its token is gone, and another worker may have the run by now."""
    run = far.enqueue()
    refuse(executor, old_app, jobs)
    db.session.refresh(run)
    before = run.run_at
    executor.deliver(executor.sent[0])
    executor.results()
    db.session.refresh(run)
    assert run.run_at == before
