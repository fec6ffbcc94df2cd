"""Fixtures of the pages: an app whose rights a test can change, a client, and rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobDefinition, JobRun, JobTick
from tests.tables import make_tables

NOW = datetime.now(timezone.utc)
OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """SQLite, unless marked: what pages read and do is tested below them on both databases."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def url_prefix() -> str:
    """The path of the pages."""
    return "/jobs"


@pytest.fixture
def rights() -> set[str]:
    """What `authorize` lets pass; a test may change it as it goes."""
    return {"read", "act"}


@pytest.fixture
def settings() -> dict[str, Any]:
    """Settings for the app; a test module may override this."""
    return {"CRONJOBS_SHOW_PAYLOAD": True}


@pytest.fixture
def jobs(app: Flask, db: SQLAlchemy, rights: set[str], settings: dict[str, Any]) -> CronJobs:
    """The extension with *rights*, two tasks, and a definition that the first tick makes."""
    app.config.update(settings)
    app.testing = False  # So that errors become pages, as they do in production.
    jobs = CronJobs(app, authorize=lambda action: action in rights, actor=lambda: "ada")

    @jobs.task(schedule="0 7 * * *", timezone="Europe/Berlin")
    def remind() -> str:
        return "done"

    @jobs.task(retry=1)
    def break_down(word: str = "x") -> None:
        raise ValueError(f"no {word}")

    make_tables(app, db)
    return jobs


@pytest.fixture(autouse=True)
def _no_kept_health(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request to health look anew."""
    monkeypatch.setattr("flask_cronjobs.web.monitoring.KEEP", 0.0)


@pytest.fixture
def client(app: Flask, jobs: CronJobs) -> FlaskClient:
    """A client of the pages."""
    return app.test_client()


@pytest.fixture
def post(client: FlaskClient) -> Callable[..., TestResponse]:
    """Post as a page of our own does."""

    def post(path: str, **form: str) -> TestResponse:
        return client.post(path, data=form, headers=OWN)

    return post


@pytest.fixture
def add(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> Callable[..., int]:
    """Add a run; the rest of its columns follow from its status."""

    def add(status: str = "queued", **values: Any) -> int:
        ended = NOW - timedelta(minutes=1)
        usual: dict[str, Any] = {"job_type": "remind", "scheduled_for": ended, "run_at": ended}
        if status in ("succeeded", "dead", "cancelled", "skipped"):
            usual |= {"finished_at": ended, "started_at": ended - timedelta(seconds=2)}
        if status in ("failed", "dead"):
            usual |= {"attempts": 1, "error_type": "ValueError", "last_error": "no"}
        if status == "running":
            later = NOW + timedelta(hours=1)
            usual |= {"locked_by": "web-1:7:ab", "locked_until": later, "started_at": ended}
        with app.app_context():
            row = JobRun(**(usual | {"status": status} | values))
            db.session.add(row)
            db.session.commit()
            return row.id

    return add


@pytest.fixture
def define(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> Callable[..., int]:
    """Add a definition."""

    def define(name: str = "remind", **values: Any) -> int:
        usual = {"job_type": "remind", "schedule": "0 7 * * *", "timezone": "Europe/Berlin"}
        with app.app_context():
            row = JobDefinition(**(usual | {"name": name} | values))
            db.session.add(row)
            db.session.commit()
            return row.id

    return define


@pytest.fixture
def ticked(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> Callable[..., None]:
    """Add a tick, so many seconds ago."""

    def ticked(seconds: float = 5, **values: Any) -> None:
        then = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        usual: dict[str, Any] = {"worker": "web-1:7", "host": "web-1", "pid": 7}
        usual |= {"started_at": then, "seen_at": then, "finished_at": then}
        with app.app_context():
            db.session.add(JobTick(**(usual | values)))
            db.session.commit()

    return ticked
