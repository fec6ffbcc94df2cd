"""``SQLALCHEMY_ECHO`` shows the app's statements, and none of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLite: the engine, not the database, decides."""
    return f"sqlite:///{tmp_path / 'echo.sqlite'}"


def test_only_the_statements_of_handlers_are_shown(
    app: Flask, jobs: CronJobs, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task
    def ask() -> None:
        db.session.execute(text("SELECT 'of the handler'"))

    with app.app_context():
        ask.using(commit=True).enqueue()
        db.engine.echo = True
    caplog.clear()
    run = app.test_cli_runner().invoke
    for command in ("tick", "admin list --json", "admin doctor"):
        assert "ask" in run(args=["jobs", *command.split()]).output
    shown = [record.getMessage() for record in caplog.records if "sqlalchemy" in record.name]
    assert "SELECT 'of the handler'" in shown
    assert not [message for message in shown if "job_" in message]
    with app.app_context():
        db.session.query(JobRun).all()
    assert "job_runs" in caplog.text
