"""``SQLALCHEMY_ECHO`` shows the app's statements, and none of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun


@pytest.mark.flask_sqlalchemy
def test_only_the_statements_of_the_app_are_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'shop.sqlite'}"
    app.config["SQLALCHEMY_ECHO"] = True
    db = SQLAlchemy(app)
    jobs = CronJobs(app)

    @jobs.task
    def ask() -> None:
        db.session.execute(text("SELECT 'of the handler'"))

    with app.app_context():
        db.create_all()
        ask.using(commit=True).enqueue()
    caplog.clear()
    for command in ("tick", "admin list --json", "admin doctor"):
        assert "ask" in app.test_cli_runner().invoke(args=["jobs", *command.split()]).output
    messages = [r.getMessage() for r in caplog.records if r.name.startswith("sqlalchemy")]
    assert "SELECT 'of the handler'" in messages
    assert not [message for message in messages if "job_" in message or "Pool" in message]
    with app.app_context():
        db.session.query(JobRun).all()
        assert "job_runs" in caplog.text
        db.engine.dispose()
