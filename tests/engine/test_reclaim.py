"""Runs whose worker was lost are taken back, and it is told whatever the connection does."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event

from flask_cronjobs import CronJobs, Retry
from flask_cronjobs.signals import run_failed
from flask_cronjobs.types import Outcome
from tests.marks import on_postgresql
from tests.rows import Rows, ago


def test_lost_worker_is_no_exception_that_the_policy_names(
    app: Flask, jobs: CronJobs, db: SQLAlchemy
) -> None:
    """``on`` and ``not_on`` speak of what the handler raises."""
    jobs.task(name="picky", retry=Retry(on=OSError))(lambda: None)
    jobs.task(name="fussy", retry=Retry(not_on=Exception))(lambda: None)
    rows = Rows(app, db)
    lost = [
        rows.run("running", job_type=name, locked_until=ago(5), max_attempts=3)
        for name in ("picky", "fussy")
    ]
    with app.app_context():
        assert jobs.tick().reclaimed == 2
    assert [rows.get(id_).status for id_ in lost] == ["failed", "failed"]


def test_callable_policy_is_not_asked_about_a_lost_worker(
    app: Flask, jobs: CronJobs, db: SQLAlchemy
) -> None:
    """It knows the exceptions of its handler; the default delay holds while attempts are left."""
    asked: list[BaseException] = []

    def policy(attempt: int, error: BaseException) -> float | None:
        asked.append(error)
        return None

    jobs.task(name="it", retry=policy)(lambda: None)
    rows = Rows(app, db)
    lost = [
        rows.run("running", job_type="it", locked_until=ago(5), attempts=attempts, max_attempts=3)
        for attempts in (1, 3)
    ]
    with app.app_context():
        assert jobs.tick().reclaimed == 2
    assert [rows.get(id_).status for id_ in lost] == ["failed", "dead"]
    assert asked == []


@on_postgresql
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_run_taken_back_is_told_though_the_connection_broke(
    app: Flask,
    jobs: CronJobs,
    db: SQLAlchemy,
    caplog: pytest.LogCaptureFixture,
    committed: bool,
) -> None:
    jobs.task(name="it")(lambda: None)
    lost = Rows(app, db).run("running", job_type="it", locked_until=ago(5), max_attempts=3)
    heard: list[int] = []
    broken: list[str] = []

    def hear(sender: Flask, outcome: Outcome) -> None:
        heard.append(outcome.id)

    def lose(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "job_failures" in statement and not broken:
            broken.append(statement)
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    moment = "after_cursor_execute" if committed else "before_cursor_execute"
    with app.app_context(), run_failed.connected_to(hear, app):
        event.listen(db.engine, moment, lose)
        report = jobs.tick()
    assert len(broken) == 1
    assert (report.reclaimed, heard) == (1, [lost])
    told = [r for r in caplog.records if getattr(r, "cronjobs_run_id", None) == lost]
    assert [(r.levelno, vars(r)["cronjobs_event"]) for r in told] == [(logging.WARNING, "failed")]
