"""The example app under test, and what a browser does."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import Select, func, select
from werkzeug.test import TestResponse

from example_app.demo import put_back
from example_app.extensions import db, jobs
from flask_cronjobs import TickReport
from flask_cronjobs.models import JobRun

PASSWORD = "correct horse"
LINUS = {
    "name": "Linus",
    "email": "linus@example.com",
    "password": PASSWORD,
    "timezone": "Europe/Helsinki",
}
REMINDED = [f"customer{number}@example.net" for number in (1, 4, 5, 7)]


class Tally:
    """The example app under test; each call has its own app context, as in production.

    :param app: the app, with empty tables.
    """

    def __init__(self, app: Flask) -> None:
        self.app = app

    def tick(self) -> TickReport:
        with self.app.app_context():
            return jobs.tick()

    def run_now(self, name: str) -> int:
        with self.app.app_context():
            return jobs.run_now(name)

    def retry(self, run_id: int) -> None:
        with self.app.app_context():
            jobs.retry(run_id)

    def put_back(self, period: timedelta) -> None:
        with self.app.app_context():
            put_back(period)

    def runs(self, task: str) -> list[JobRun]:
        return self.all(select(JobRun).where(JobRun.job_type == task).order_by(JobRun.id))

    def all(self, query: Select[Any]) -> list[Any]:
        with self.app.app_context():
            return list(db.session.scalars(query))

    def count(self, model: type[object]) -> int:
        counted: int = self.all(select(func.count()).select_from(model))[0]
        return counted


def submit(client: FlaskClient, path: str, **values: str) -> TestResponse:
    """Load a page and send its form, hidden fields included."""
    return client.post(path, data={**hidden_fields(client, path), **values})


def hidden_fields(client: FlaskClient, path: str) -> dict[str, str]:
    # If two fields have the same name, the last one counts: the header has its own form.
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]+)"', client.get(path).text))
