"""How pages, commands, health, metrics and the doctor show runs that are handed on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.features.executors.executor import EXTENSION
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.insights.health import read_verdict
from flask_cronjobs.insights.run_detail import find_run
from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.run_list import list_runs
from tests.features.executors.threads import Threads


@pytest.fixture
def handed(far: Any, jobs: CronJobs) -> int:
    """The id of a run that waits in the executor's broker."""
    run = far.enqueue(value=7)
    jobs.tick()
    return int(run.id)


@pytest.mark.pages
def test_pages_say_that_a_run_was_handed_on(handed: int, app: Flask) -> None:
    app.debug = True
    client = app.test_client()
    page = client.get(f"/jobs/runs/{handed}").get_data(as_text=True)
    assert re.search("It was handed to celery (just now|.* ago), and has not begun there.", page)
    assert "<dt>Handed to</dt>" in page
    listed = client.get("/jobs/runs?status=running").get_data(as_text=True)
    assert "handed to celery," in listed


@pytest.mark.pages
def test_metrics_count_what_waits_in_brokers(handed: int, app: Flask) -> None:
    pytest.importorskip("prometheus_client")
    app.debug = True
    assert "cronjobs_handed_runs 1.0" in app.test_client().get("/jobs/metrics").get_data(True)


def test_run_that_waits_too_long_in_a_broker_is_overdue(
    handed: int, state: State, db: SQLAlchemy
) -> None:
    assert read_verdict(state).word == "ok"
    db.session.execute(text("UPDATE job_runs SET run_at = '2020-01-01 00:00:00.000000'"))
    db.session.commit()
    verdict = read_verdict(state)
    assert verdict.word == "overdue"
    assert [(finding.id, finding.number) for finding in verdict.findings] == [("overdue", 1)]
    assert [run.id for run in list_runs(state, RunFilter(overdue=True)).rows] == [handed]


def test_a_run_that_comes_back_is_no_lost_worker(handed: int, state: State, db: SQLAlchemy) -> None:
    db.session.execute(text("UPDATE job_runs SET locked_until = '2020-01-01 00:00:00.000000'"))
    db.session.commit()
    view = find_run(state, handed)
    assert view is not None
    assert not view.row.is_stale(view.now)


def of_engines(state: State) -> Sequence[tuple[str, str]]:
    return [(finding.level, finding.what) for finding in examine(state) if finding.id == "executor"]


def test_doctor_asks_celery(
    far: Any, executor: Threads, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_engines(state) == [("ok", "Celery executes far")]
    executor.problems = ["no worker answers"]
    assert of_engines(state) == [("error", "no worker answers")]

    def check(queues: object) -> Sequence[str]:
        raise ConnectionRefusedError("no broker")

    monkeypatch.setattr(executor, "check", check)
    ((level, text),) = of_engines(state)
    assert level == "error"
    assert "Celery cannot be checked: ConnectionRefusedError: no broker" in text


def test_without_celery_doctor_and_ticks_say_what_to_do(
    far: Any, app: Flask, jobs: CronJobs, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    del app.extensions[EXTENSION]
    ((level, text),) = of_engines(state)
    assert level == "error"
    assert "call flask_cronjobs.executors.celery.init(" in text
    far.enqueue()
    jobs.tick()
    assert "flask_cronjobs.executors.celery.init(" in caplog.text


@pytest.mark.parametrize(
    "value", ["redis://:s3cret@mq", {"far": "redis://:s3cret@mq"}, {"far": {"password": "s3cret"}}]
)
def test_a_refused_executor_is_not_shown(value: object, app: Flask) -> None:
    """Its text may contain a password."""
    from flask_cronjobs import ConfigError

    app.config["CRONJOBS_EXECUTORS"] = value
    with pytest.raises(ConfigError) as caught:
        CronJobs(app)
    assert "s3cret" not in str(caught.value)
    assert "'celery'" in str(caught.value)
