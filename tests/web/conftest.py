"""Fixtures of the pages: an app whose rights a test can change, a client, and rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, TypeAlias

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from jinja2 import StrictUndefined
from sqlalchemy import select
from werkzeug.test import TestResponse

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.models import JobRun
from flask_cronjobs.web.render import _templates
from tests.rows import Rows
from tests.tables import make_tables

#: The rows of tables, by their names.
Contents: TypeAlias = "dict[str, list[dict[str, Any]]]"
NOW = datetime.now(timezone.utc)
OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an SQLite database, unless marked: other tests cover what pages read and do."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def url_prefix() -> str:
    """The path of the pages."""
    return "/jobs"


@pytest.fixture
def rights() -> set[str]:
    """The rights that `authorize` grants; a test may change them."""
    return {"read", "act"}


@pytest.fixture
def settings() -> dict[str, Any]:
    """Settings for the app; a test module may override this."""
    return {"CRONJOBS_SHOW_PAYLOAD": True}


@pytest.fixture
def jobs(app: Flask, db: SQLAlchemy, rights: set[str], settings: dict[str, Any]) -> CronJobs:
    """The extension with *rights*, two tasks, and a definition that the first tick makes."""
    app.config.update(settings)
    app.testing = False  # Errors become pages, as they do in production.
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
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a template uses an undefined name."""
    monkeypatch.setattr(_templates(), "undefined", StrictUndefined)


class Pages(Rows):
    """The pages of an app, as a user with *rights* has them, and rows for them to show."""

    get: Any

    def __init__(self, app: Flask, db: SQLAlchemy, jobs: CronJobs, rights: set[str]) -> None:
        super().__init__(state_of(app).engine)
        self.app, self.db, self.jobs, self.rights = app, db, jobs, rights
        self.client = app.test_client()
        self.get = self.client.get

    def text(self, path: str = "") -> str:
        """Return the page at *path* below the prefix."""
        answer = self.get(f"/jobs/{path}")
        assert answer.status_code == 200, answer.text
        return answer.text

    def hide_payloads(self) -> None:
        """Unset ``CRONJOBS_SHOW_PAYLOAD``."""
        object.__setattr__(state_of(self.app).settings, "show_payload", False)

    def shows(self, path: str, *parts: str, hides: Sequence[str] = ()) -> str:
        """Return the page at *path*, after checking that it has all *parts* and none of *hides*."""
        page = self.text(path)
        assert [part for part in parts if part not in page] == [], path
        assert [part for part in hides if part in page] == [], path
        return page

    def post(self, path: str, **form: str) -> TestResponse:
        """Post as our own pages do."""
        return self.client.post(path, data=form, headers=OWN)

    def said(self, answer: TestResponse) -> str:
        """Return the message of an action's page, and check that it is shown only once."""
        assert answer.status_code == 303
        page = self.get(answer.location).text
        assert 'role="status"' in page
        assert 'role="status"' not in self.get(answer.location).text
        return page[page.index('role="status">') :].partition("</p>")[0].partition(">")[2]

    def contents(self) -> Contents:
        """Return the contents of all tables."""
        with self.app.app_context():
            return {
                table.name: [dict(row._mapping) for row in self.db.session.execute(select(table))]
                for table in JobRun.metadata.sorted_tables
            }

    def status(self, run_id: int) -> str:
        """Return the status of a run."""
        with self.app.app_context():
            return self.db.session.get_one(JobRun, run_id).status

    def runs(self) -> list[JobRun]:
        """Return all runs, by id."""
        with self.app.app_context():
            return list(self.db.session.scalars(select(JobRun).order_by(JobRun.id)))

    def add(self, status: str = "queued", **values: Any) -> int:
        """Add a run of `remind` that was due, or ended, a minute ago."""
        usual: dict[str, Any] = {"job_type": "remind"}
        if status in ("failed", "dead"):
            usual |= {"error_type": "ValueError", "last_error": "no"}
        return self.run(status, 60, **(usual | values))

    def define(self, name: str = "remind", **values: Any) -> int:
        """Add a definition of `remind`, for which no slot is due."""
        usual: dict[str, Any] = {"job_type": "remind", "schedule": "0 7 * * *"}
        usual |= {"timezone": "Europe/Berlin", "next_run_at": None}
        return self.definition(name, **(usual | values))


@pytest.fixture
def pages(app: Flask, db: SQLAlchemy, jobs: CronJobs, rights: set[str]) -> Pages:
    """The pages, and rows for them to show."""
    return Pages(app, db, jobs, rights)
