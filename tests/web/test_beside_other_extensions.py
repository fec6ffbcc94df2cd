"""The pages beside Flask-WTF's CSRFProtect and Flask-Login, as docs/pages.md shows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask import Flask, abort, url_for
from flask.testing import FlaskClient
from flask_login import (  # type: ignore[import-untyped]
    LoginManager,
    UserMixin,
    current_user,
    login_user,
)
from flask_sqlalchemy import SQLAlchemy
from flask_wtf import CSRFProtect  # type: ignore[import-untyped]
from werkzeug.test import TestResponse

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun
from tests.marks import REDIRECTED

from .conftest import NOW, OWN

TOKEN = "a-token-of-some-length"


class User(UserMixin):  # type: ignore[misc]
    """A user who logs in by name only."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.may_see_jobs = name in ("ada", "eve")
        self.is_operator = name == "ada"


def _authorize(action: str) -> bool:
    if not current_user.is_authenticated:
        abort(login.unauthorized())
    allowed: bool = current_user.is_operator if action == "act" else current_user.may_see_jobs
    return allowed


login = LoginManager()


@pytest.fixture(params=["csrf first", "csrf last"])
def app_with_both(request: pytest.FixtureRequest, app: Flask, db: SQLAlchemy) -> Flask:
    """An app with CSRFProtect before or after the jobs, Flask-Login, and one dead run."""
    global login
    login = LoginManager()
    login.login_view = "log_in"
    login.user_loader(User)
    csrf = CSRFProtect()
    app.testing = False
    app.config["CRONJOBS_TICK_TOKEN"] = TOKEN
    if request.param == "csrf first":
        csrf.init_app(app)
    CronJobs(app, authorize=_authorize, actor=lambda: current_user.get_id() or "nobody")
    if request.param == "csrf last":
        csrf.init_app(app)
    login.init_app(app)

    @app.get("/login/", defaults={"name": "nobody"})
    @app.get("/login/<name>")
    def log_in(name: str) -> str:
        login_user(User(name))
        return "in"

    @app.post("/theirs")
    def theirs() -> str:
        return url_for("theirs")

    with app.app_context():
        db.create_all()
        dead: dict[str, Any] = {"status": "dead", "finished_at": NOW, "attempts": 1}
        db.session.add(JobRun(job_type="t", **dead))
        db.session.commit()
    return app


@pytest.fixture
def client(app_with_both: Flask) -> FlaskClient:
    return app_with_both.test_client()


def test_an_operator_retries_with_the_pages_token(client: FlaskClient) -> None:
    def retry(**form: str) -> TestResponse:
        return client.post("/jobs/runs/1/retry", data=form, headers=OWN)

    client.get("/login/ada")
    page = client.get("/jobs/runs/1", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in page.headers  # The page's size would reveal the token.
    match = re.search(r'name="csrf_token" value="([^"]*)"', page.text)
    assert match
    without = retry()
    assert without.status_code == 400
    assert "CSRF" in without.text
    assert 'href="/jobs/runs"' not in without.text  # This answer comes before that of the guard.
    assert retry(csrf_token=match[1]).status_code == 303


def test_a_stranger_is_led_to_the_login_and_others_are_refused(client: FlaskClient) -> None:
    answer = client.get("/jobs/")
    assert answer.status_code in REDIRECTED
    assert answer.location.startswith("/login")
    client.get("/login/bob")
    assert client.get("/jobs/").status_code == 403
    client.get("/login/eve")
    assert "csrf_token" not in client.get("/jobs/runs/1").text


def test_the_tick_by_url_alone_needs_no_csrf_token(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    exempted: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr(CSRFProtect, "exempt", lambda _, view: exempted.append(view))
        assert client.post("/theirs").status_code == 400
    assert exempted == []
    answer = client.post("/jobs/tick", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert client.post("/jobs/tick").status_code == 404  # The guard answered, as this is not 400.
