"""Names and messages from the tables cannot disturb a page; its buttons find their rows."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_cronjobs.models import JobDefinition, JobEffect

ODD = "odd\x1b[31mfake\x07\u202eline\u2066\x9b"
FORBIDDEN = "\x1b\x07\u202e\u2066\x9b"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """What is shown does not depend on the database."""
    return sqlite_url


def test_pages_show_no_control_characters_and_their_buttons_work(
    app: Flask,
    db: SQLAlchemy,
    client: FlaskClient,
    post: Callable[..., TestResponse],
    add: Callable[..., int],
    define: Callable[..., int],
    ticked: Callable[..., None],
) -> None:
    ticked(host=ODD, worker=ODD)
    define(ODD)
    run_id = add("dead", job_type=ODD, error_type=ODD, last_error=ODD, queue=ODD, result=ODD)
    add("running", job_type=ODD, progress=0.5, progress_message=ODD, locked_by=ODD)
    with app.app_context():
        db.session.add(JobEffect(key=ODD, state="in_doubt"))
        db.session.commit()
    pages = (
        "/jobs/",
        "/jobs/runs",
        f"/jobs/runs/{run_id}",
        "/jobs/runs/2",
        "/jobs/effects",
        "/jobs/ticks",
    )
    for path in pages:
        text = client.get(path).text
        shown = re.sub(r'<input type="hidden"[^>]*>', "", text)
        assert "fake" in shown, path
        assert [char for char in FORBIDDEN if char in html.unescape(shown)] == [], path
    field = re.search(
        r'action="/jobs/definitions/pause">.*?name="name" value="([^"]*)"',
        client.get("/jobs/").text,
        re.S,
    )
    assert field is not None
    assert html.unescape(field[1]) == ODD
    post("/jobs/definitions/pause", name=ODD)
    with app.app_context():
        assert db.session.query(JobDefinition).one().paused_at is not None
    assert [
        char for char in FORBIDDEN if char in client.get("/jobs/").text.partition("<ol")[0]
    ] == []
